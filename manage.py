#!/usr/bin/env python
"""Django's command line. `python manage.py help` lists what there is."""

import os
import sys

from config.embedded.errors import EmbeddedServiceError


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    from django.core.management import execute_from_command_line

    try:
        execute_from_command_line(sys.argv)
    except EmbeddedServiceError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
