"""How a value becomes text, in one place: as Liquid's reference implementation (Ruby) writes it, never as Python does.

There are two forms, as there: what a template prints (`printed`: nil is nothing, a list is its elements), and what a
filter takes for text (`to_text`: a list is written out, `["a", nil, 1.0]`). They differ for lists only.
"""

from __future__ import annotations

import json
from datetime import date, datetime

from liquid import Markup, escape
from liquid.undefined import Undefined


def to_text(value: object) -> str:
    """The text that a filter works on. Markup stays Markup. Raises UndefinedError for what has no value."""
    kind = type(value)
    if kind is str or kind is Markup:
        return value  # type: ignore[return-value]
    if value is None:
        return ""
    return value if isinstance(value, str) else _written(value)


def printed(value: object, autoescape: bool) -> str:
    """What `{{ value }}` writes, with markup taken out of it if `autoescape`."""
    if isinstance(value, list | tuple):
        return (Markup if autoescape else str)().join([printed(item, autoescape) for item in value])
    text = to_text(value)
    return escape(text) if autoescape else text


def inspect(value: object) -> str:
    """A value inside a list or an object that is written out."""
    if value is None:
        return "nil"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return _written(value)


def _written(value: object) -> str:
    if value is True:
        return "true"
    if value is False:
        return "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(inspect, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{inspect(key)}=>{inspect(item)}" for key, item in value.items()) + "}"
    if isinstance(value, range):
        return f"{value.start}..{value.stop - 1}"
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S} UTC"  # there is no other than `now`, which is in UTC
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Undefined):
        str(value)  # raises
    # `empty`, `blank`, `forloop`: what a template may name, and nobody can mean to print.
    return ""


def _float(value: float) -> str:
    """The same digits in both languages; an exponent follows a fraction in Ruby: 1.0e+20."""
    digits, e, exponent = repr(value).partition("e")
    return f"{digits}.0e{exponent}" if e and "." not in digits else digits + e + exponent
