"""The project's settings, with one more line in the log: a worker says when it takes tickets.

That line is what `devtools.stack` waits for; nothing else differs.
"""

from config.settings import *  # noqa: F403
from config.settings import LOGGING

LOGGING["loggers"]["dramatiq"]["level"] = "INFO"
