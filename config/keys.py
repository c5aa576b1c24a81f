"""`python -m config.keys`: prints fresh secrets, without settings, environment or servers.

The same as `python manage.py generate_keys`, which comes here: Django would import the settings before it ran the
command, and they need the very keys (or, in development, start the embedded servers).
"""

from __future__ import annotations

import sys

from core.management.commands.generate_keys import Command


def main(arguments: list[str]) -> None:
    command = Command()
    options = vars(command.create_parser("manage.py", "generate_keys").parse_args(arguments))
    command.execute(*options.pop("args", ()), **options)


if __name__ == "__main__":
    main(sys.argv[1:])
