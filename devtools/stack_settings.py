"""The project's settings, but for four things: the commands of `devtools` are there, though it runs as in production; a worker's
log has one more line, which says that it takes tickets and is what `devtools.stack` waits for; a browser on this machine can log
in to the admin, though there is no TLS; and `STACK_EMAIL_ADAPTER`, a dotted path, puts another adapter before the same
provider."""

import os

from config.settings import *  # noqa: F403
from config.settings import INSTALLED_APPS, LOGGING, MESSAGING_PROVIDERS

if "devtools" not in INSTALLED_APPS:
    INSTALLED_APPS.append("devtools")

LOGGING["loggers"]["dramatiq"]["level"] = "INFO"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = False
if adapter := os.environ.get("STACK_EMAIL_ADAPTER"):
    MESSAGING_PROVIDERS["email"] = adapter
