"""The `date` filter: deterministic, in UTC, without the machine's clock, zone or locale.

The library's own asks all three (the current time for "now" and for two-digit years, the local zone for Unix times,
the C library for names), and the same batch must give the same bytes on any worker on any day.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from email.utils import parsedate_to_datetime

_MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]
_DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
_MONTH_NUMBER = {name[:3].lower(): number for number, name in enumerate(_MONTHS, 1)}

_UNIX = re.compile(r"-?[0-9]{1,12}")
_DAY_FIRST = re.compile(r"([0-9]{1,2})\.? ([A-Za-z]{3,9}),? ([0-9]{4})")
_MONTH_FIRST = re.compile(r"([A-Za-z]{3,9}) ([0-9]{1,2}),? ([0-9]{4})")
_MAX_TEXT = 64  # characters; no date is longer

Format = tuple[Callable[[datetime], object], int, str]  # value, width, what fills it up


def to_datetime(value: object, now: datetime) -> datetime | None:
    """`value` as an aware time: `now`/`today`, a Unix time, ISO 8601, RFC 5322 or `March 14, 2026` / `14 March 2026`.

    A time without a zone is taken as UTC, one with an offset keeps it. None: it is none of these.
    """
    if isinstance(value, datetime):
        return value if value.tzinfo else value.replace(tzinfo=UTC)
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day, tzinfo=UTC)
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return _from_unix(value)
    if not isinstance(value, str) or len(value) > _MAX_TEXT:
        return None
    text = value.strip()
    if text in ("now", "today"):
        return now
    if _UNIX.fullmatch(text) and len(text) != 8:  # eight digits are an ISO date: 20260314
        return _from_unix(int(text))
    return _parse(text)


def _from_unix(seconds: float) -> datetime | None:
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, OSError, ValueError):
        return None


def _parse(text: str) -> datetime | None:
    found: datetime | None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = _parse_words(text)
    if found is None:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _parse_words(text: str) -> datetime | None:
    if match := _DAY_FIRST.fullmatch(text):
        day, name, year = match.groups()
    elif match := _MONTH_FIRST.fullmatch(text):
        name, day, year = match.groups()
    else:
        try:
            return parsedate_to_datetime(text)
        except (ValueError, TypeError, IndexError, OverflowError):
            return None
    number = _MONTH_NUMBER.get(name[:3].lower())
    if number is None or not _MONTHS[number - 1].lower().startswith(name.lower()):
        return None
    try:
        return datetime(int(year), number, int(day), tzinfo=UTC)
    except ValueError:
        return None


def _hour12(at: datetime) -> int:
    return at.hour % 12 or 12


def _offset(at: datetime) -> str:
    minutes = (at.utcoffset() or timedelta()) // timedelta(minutes=1)
    return f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02d}{abs(minutes) % 60:02d}"


def _zone(at: datetime) -> str:
    return _offset(at) if at.utcoffset() else "UTC"


_FORMATS: dict[str, Format] = {
    "Y": (lambda at: at.year, 4, "0"),
    "C": (lambda at: at.year // 100, 2, "0"),
    "y": (lambda at: at.year % 100, 2, "0"),
    "m": (lambda at: at.month, 2, "0"),
    "B": (lambda at: _MONTHS[at.month - 1], 0, " "),
    "b": (lambda at: _MONTHS[at.month - 1][:3], 0, " "),
    "h": (lambda at: _MONTHS[at.month - 1][:3], 0, " "),
    "d": (lambda at: at.day, 2, "0"),
    "e": (lambda at: at.day, 2, " "),
    "j": (lambda at: at.timetuple().tm_yday, 3, "0"),
    "H": (lambda at: at.hour, 2, "0"),
    "k": (lambda at: at.hour, 2, " "),
    "I": (_hour12, 2, "0"),
    "l": (_hour12, 2, " "),
    "M": (lambda at: at.minute, 2, "0"),
    "S": (lambda at: at.second, 2, "0"),
    "L": (lambda at: at.microsecond // 1000, 3, "0"),
    "N": (lambda at: at.microsecond * 1000, 9, "0"),
    "f": (lambda at: at.microsecond, 6, "0"),
    "p": (lambda at: "AM" if at.hour < 12 else "PM", 0, " "),
    "P": (lambda at: "am" if at.hour < 12 else "pm", 0, " "),
    "z": (_offset, 0, " "),
    "Z": (_zone, 0, " "),
    "A": (lambda at: _DAYS[at.weekday()], 0, " "),
    "a": (lambda at: _DAYS[at.weekday()][:3], 0, " "),
    "u": (lambda at: at.isoweekday(), 1, "0"),
    "w": (lambda at: at.isoweekday() % 7, 1, "0"),
    "G": (lambda at: at.isocalendar().year, 4, "0"),
    "g": (lambda at: at.isocalendar().year % 100, 2, "0"),
    "V": (lambda at: at.isocalendar().week, 2, "0"),
    "U": (lambda at: (at.timetuple().tm_yday + 6 - at.isoweekday() % 7) // 7, 2, "0"),
    "W": (lambda at: (at.timetuple().tm_yday + 6 - at.weekday()) // 7, 2, "0"),
    "s": (lambda at: int(at.timestamp()), 0, " "),
    "n": (lambda at: "\n", 0, " "),
    "t": (lambda at: "\t", 0, " "),
    "%": (lambda at: "%", 0, " "),
}
_SHORTHANDS = {
    "F": "%Y-%m-%d",
    "T": "%H:%M:%S",
    "X": "%H:%M:%S",
    "R": "%H:%M",
    "r": "%I:%M:%S %p",
    "D": "%m/%d/%y",
    "x": "%m/%d/%y",
    "v": "%e-%^b-%Y",
    "c": "%a %b %e %H:%M:%S %Y",
}
_DIRECTIVE = re.compile(r"%([-0_^]?)([A-Za-z%])")


def strftime(at: datetime, pattern: str) -> str:
    """Liquid's (Ruby's) directives with English names; the flags `-` (bare), `0`, `_` (fill), `^` (capitals).

    A directive that does not exist stays as it is written.
    """

    def one(match: re.Match[str]) -> str:
        flag, letter = match.groups()
        if letter in _SHORTHANDS:
            found = strftime(at, _SHORTHANDS[letter])
        elif letter in _FORMATS:
            value, width, fill = _FORMATS[letter]
            fill = {"0": "0", "_": " "}.get(flag, fill)
            found = str(value(at))
            if flag != "-":
                found = found.rjust(width, fill)
        else:
            return match[0]
        return found.upper() if flag == "^" else found

    return _DIRECTIVE.sub(one, pattern)
