import os

from django.core.asgi import get_asgi_application

# A web server is production unless it is told otherwise: forgotten variables must not make it a development one.
os.environ.setdefault("DEBUG", "0")
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
application = get_asgi_application()

from core.db.cursor import require_session  # noqa: E402  # it needs the settings

require_session()
