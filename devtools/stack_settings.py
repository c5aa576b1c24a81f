"""The project's settings, but for two things: a worker's log has one more line, which says that it takes tickets and is
what `devtools.stack` waits for; and a browser on this machine can log in to the admin, though there is no TLS."""

from config.settings import *  # noqa: F403
from config.settings import LOGGING

LOGGING["loggers"]["dramatiq"]["level"] = "INFO"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = False
