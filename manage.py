#!/usr/bin/env python
"""Django's command line. `python manage.py help` lists what there is."""

import os
import sys

from config.embedded.errors import EmbeddedServiceError


def main() -> None:
    if sys.argv[1:2] == ["generate_keys"]:  # before there are settings, which need the keys
        from config.keys import main as generate_keys

        return generate_keys(sys.argv[2:])
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    try:
        from django.core.management import execute_from_command_line
    except ImportError as error:
        raise SystemExit(
            "Django is not installed for this Python. Run: . .venv/bin/activate  (make setup creates it)"
        ) from error

    try:
        execute_from_command_line(sys.argv)
    except EmbeddedServiceError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
