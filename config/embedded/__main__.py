"""`python -m config.embedded …`: embedded servers from a shell.

run COMMAND [ARGUMENT…]     become the command, with both servers up for its life and DATABASE_URL, REDIS_URL set
status                      what runs, as JSON
start|stop|kill|restart postgres|redis
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import NoReturn

from config.embedded.client import command, ensure_services
from config.embedded.errors import EmbeddedServiceError
from config.embedded.options import Options
from config.embedded.paths import Paths

DEFAULT_FOLDER = Path(__file__).resolve().parents[2] / ".dev"


def main(arguments: list[str]) -> None:
    match arguments:
        case ["run", program, *rest]:
            _run(program, rest)
        case ["status"] | ["start" | "stop" | "kill" | "restart", "postgres" | "redis"]:
            os.environ.setdefault("EMBEDDED_CONTROL", str(Paths.of(Options.read(DEFAULT_FOLDER).folder).control))
            print(json.dumps(command(*arguments), indent=2))  # noqa: T201
        case _:
            sys.exit(__doc__)


def _run(program: str, arguments: list[str]) -> NoReturn:
    os.environ.setdefault("DEBUG", "1")  # a DATABASE_URL without it means production
    missing = {name for name in ("DATABASE_URL", "REDIS_URL") if not os.environ.get(name)}
    if missing:
        ensure_services(DEFAULT_FOLDER, need_postgres="DATABASE_URL" in missing, need_redis="REDIS_URL" in missing)
    try:
        os.execvp(program, [program, *arguments])  # noqa: S606  # the developer's own command
    except OSError as error:
        sys.exit(f"{program}: {error.strerror}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except EmbeddedServiceError as error:
        sys.exit(str(error))
