import os

from django.core.wsgi import get_wsgi_application

from config.framing import Framed

# A web server is production unless it is told otherwise: forgotten variables must not make it a development one.
os.environ.setdefault("DEBUG", "0")
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
application = Framed(get_wsgi_application())

from core.db.cursor import require_session  # noqa: E402  # it needs the settings

require_session()
