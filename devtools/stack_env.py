"""What the processes of a stack find in their environment, whatever the terminal has in its own."""

from __future__ import annotations

import base64
import os
import secrets


def base_env() -> dict[str, str]:
    """This process's environment, without what points at other servers, and with what makes logs readable at once."""
    foreign = {"EMBEDDED_CONTROL", "DATABASE_URL", "REDIS_URL", "TEST_DATABASE_NAME", "GUNICORN_CMD_ARGS"}
    env = {name: value for name, value in os.environ.items() if name not in foreign and not name.startswith("PYTEST_")}
    return env | {
        "DJANGO_SETTINGS_MODULE": "devtools.stack_settings",
        "LOG_LEVEL": "INFO",  # the lines that say that a process is ready
        "LOG_FORMAT": "text",
        "PYTHONUNBUFFERED": "1",  # buffered lines would be missing when they are needed: after a kill
    }


def production() -> dict[str, str]:
    """Settings as in production, with keys that are made for this run and known to nobody else."""
    key = base64.urlsafe_b64encode
    return {
        "DEBUG": "0",
        "ALLOWED_HOSTS": "127.0.0.1",
        "SECRET_KEY": secrets.token_hex(32),
        "ENCRYPTION_KEYS": f"stack:{key(secrets.token_bytes(32)).decode()}",
        "FINGERPRINT_KEY": key(secrets.token_bytes(32)).decode(),
    }
