"""The project's settings, behind a pooler that drops startup options."""

from config.settings import *  # noqa: F403

DATABASES["default"]["OPTIONS"].pop("options")  # noqa: F405
