"""The command line, shared by `python -m devtools.sandbox` and `manage.py sandbox_provider`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from devtools.sandbox.options import Options

DESCRIPTION = (
    "A local e-mail provider that answers as Resend does, keeps account of what it accepted, and fails on demand."
)

EPILOG = """\
examples
  the limits of a fresh Resend team (10 requests/s, 50 ms), on port 8025:
      python -m devtools.sandbox
  as fast as it can, on any free port (the address is the one line it prints):
      python -m devtools.sandbox --port 0 --rate 0 --latency-ms 0
  a token bucket in place of fixed one-second windows, two requests deep:
      python -m devtools.sandbox --window bucket --burst 2
  let the application under test use it:
      RESEND_BASE_URL=http://127.0.0.1:8025 RESEND_API_KEY=re_sandbox python manage.py ...

while it runs
  what it accepted, a JSON object per line and e-mail; what it counted:
      curl http://127.0.0.1:8025/_sandbox/log
      curl http://127.0.0.1:8025/_sandbox/stats
  the next 20 requests fail; then forget every fault:
      curl -X POST http://127.0.0.1:8025/_sandbox/faults -d '{"fault": "503", "count": 20}'
      curl -X DELETE http://127.0.0.1:8025/_sandbox/faults
  start again from nothing:
      curl -X POST http://127.0.0.1:8025/_sandbox/reset

It stops with exit code 0 on SIGTERM or Ctrl-C. docs/sandbox.md lists every endpoint and fault.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    default = Options()
    add = parser.add_argument
    add("--host", default=default.host, help="address to listen on (default %(default)s: this machine only)")
    add("--port", type=_whole(0, 65535), default=default.port, help="0 takes a free port (default %(default)s)")
    add(
        "--rate",
        type=_whole(0),
        default=default.rate,
        metavar="N",
        help="requests per second over all keys; 0 is unlimited (default %(default)s)",
    )
    add(
        "--window",
        choices=("fixed", "bucket"),
        default=default.window,
        help="fixed one-second windows, or a token bucket (default %(default)s)",
    )
    add("--burst", type=_whole(1), metavar="N", help="depth of the bucket in requests (default: the rate)")
    add("--daily-quota", type=_whole(1), metavar="N", help="e-mails in any 24 hours (default: no quota)")
    add(
        "--latency-ms",
        type=_milliseconds,
        default=default.latency_ms,
        metavar="MS",
        help="an answer is sent this long after its request was processed (default %(default)g)",
    )
    add(
        "--api-key",
        action="append",
        dest="api_keys",
        metavar="KEY",
        help="a key that is valid; may be repeated (default re_sandbox)",
    )
    add(
        "--verified-domain",
        action="append",
        dest="verified_domains",
        metavar="DOMAIN",
        help="a domain that may be sent from; may be repeated (default: every domain may)",
    )
    add(
        "--send-id-tag",
        default=default.send_id_tag,
        metavar="NAME",
        help="the tag that names a send, by which doubles are found (default %(default)s)",
    )
    add("--keep-bodies", action="store_true", help="keep and show html, text and headers too (costs memory)")


def options_from(values: dict[str, Any]) -> Options:
    """Options from parsed arguments. Raises ValueError with a message for the user."""
    if values["burst"] is not None and values["window"] != "bucket":
        raise ValueError("--burst belongs to --window bucket; a fixed window has no burst.")
    return Options(
        host=values["host"],
        port=values["port"],
        rate=values["rate"],
        window=values["window"],
        burst=values["burst"],
        daily_quota=values["daily_quota"],
        latency_ms=values["latency_ms"],
        api_keys=tuple(values["api_keys"] or Options().api_keys),
        verified_domains=tuple(domain.lower() for domain in values["verified_domains"] or ()),
        send_id_tag=values["send_id_tag"],
        keep_bodies=values["keep_bodies"],
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m devtools.sandbox",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arguments(parser)
    try:
        options = options_from(vars(parser.parse_args(argv)))
    except ValueError as err:
        parser.error(str(err))
    from devtools.sandbox.server import run  # after parsing: `--help` needs no server

    return run(options)


def _whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """An argparse type: a whole number within bounds."""
    bounds = f"at least {least}" if most is None else f"between {least} and {most}"

    def whole_number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if value < least or (most is not None and value > most):
            raise argparse.ArgumentTypeError(f"{value} must be {bounds}")
        return value

    return whole_number


def _milliseconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 3_600_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of milliseconds from 0 to an hour")
    return value
