"""The values that a template is filled with: plain JSON, bounded, and nothing that could pass for safe markup."""

from __future__ import annotations

import math
import re
from typing import TypeAlias

from core.security.hashing import canonical_json
from messaging.domain.errors import InvalidInput

JSON: TypeAlias = "bool | int | float | str | list[JSON] | dict[str, JSON] | None"

MAX_BYTES = 16 * 1024  # encoded: a million recipients' variables still fit into a table
MAX_DEPTH = 8  # the object itself is depth 1
MAX_KEY = 64  # characters
_NAME = re.compile(r"[^\W\d][\w-]*")
_INT_LIMIT = 2**63  # what every JSON reader between here and a report keeps exactly, or at least as an integer


def validate_variables(raw: object, field: str = "variables") -> dict[str, JSON]:
    """A copy of `raw` made of plain dicts, lists and scalars. Raises InvalidInput (`invalid_type`,
    `invalid_variables`, `variables_too_large`).

    Top-level keys are variable names (letters, digits, `_`, `-`; no digit first). Keys further down may be any string:
    a template reaches them as `user["first name"]`.
    """
    if not isinstance(raw, dict):
        raise InvalidInput("invalid_type", "must be a JSON object: {name: value}", field=field)
    for key in raw:
        if not isinstance(key, str) or not _NAME.fullmatch(key):
            raise _invalid("names must be letters, digits, _ and -, and start with a letter or _", field)
    room = _Room(field)
    copy = {_text(key, room): _copy(value, 2, room) for key, value in raw.items()}
    try:
        encoded = canonical_json(copy)
    except UnicodeEncodeError:
        raise _invalid("strings must be valid Unicode (a half of a surrogate pair is not)", field) from None
    if len(encoded) > MAX_BYTES:
        raise _too_large(field)
    return copy


class _Room:
    """Bounds the copying itself: what is too large is refused before it has been walked through."""

    __slots__ = ("field", "left")

    def __init__(self, field: str) -> None:
        self.field = field
        self.left = MAX_BYTES

    def take(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            raise _too_large(self.field)


def _copy(value: object, depth: int, room: _Room) -> JSON:
    if isinstance(value, str):
        return _text(value, room, key=False)
    room.take(1)
    if value is None or value is True or value is False:
        return value
    if isinstance(value, int):
        number = int(value)  # an IntEnum member becomes its number
        if not -_INT_LIMIT <= number < _INT_LIMIT:
            raise _invalid("integers must fit into 64 bits; send larger ones as strings", room.field)
        return number
    if isinstance(value, float):
        if not math.isfinite(value):
            raise _invalid("NaN and Infinity are not JSON", room.field)
        return float(value)
    if depth > MAX_DEPTH:
        raise _invalid(f"values may be nested at most {MAX_DEPTH} deep", room.field)
    if isinstance(value, dict):
        return {_text(key, room): _copy(item, depth + 1, room) for key, item in value.items()}
    if isinstance(value, list):
        return [_copy(item, depth + 1, room) for item in value]
    raise _invalid(f"values must be JSON, not {type(value).__name__}", room.field)


def _text(value: object, room: _Room, *, key: bool = True) -> str:
    if not isinstance(value, str):
        raise _invalid("keys must be strings", room.field)
    if key and not 0 < len(value) <= MAX_KEY:
        raise _invalid(f"keys must have 1 to {MAX_KEY} characters", room.field)
    room.take(len(value) + 1)
    if "\0" in value:
        raise _invalid("strings must not contain NUL", room.field)
    # Subclasses may claim to be safe HTML (`__html__`), and would be rendered unescaped.
    return value if type(value) is str else str.__getitem__(value, slice(None))


def _invalid(message: str, field: str) -> InvalidInput:
    return InvalidInput("invalid_variables", message, field=field)


def _too_large(field: str) -> InvalidInput:
    return InvalidInput("variables_too_large", f"at most {MAX_BYTES} bytes as JSON", field=field)
