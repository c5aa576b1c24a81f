"""Filters of lists. What is no list is taken for a list of one, nil for an empty one, and lists in a list are laid flat.

The library's own leave out a 0 where a value is asked for, take 1 for true, cannot sort what holds nil, and stop at it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from liquid import Environment, Markup
from liquid.exceptions import FilterArgumentError
from liquid.filter import with_environment

from messaging.channels.templates.numbers import total
from messaging.channels.templates.text import to_text


def _elements(value: object) -> list[Any]:
    if value is None:
        return []
    if isinstance(value, list | tuple):
        return list(_flat(value))
    return list(value) if isinstance(value, range) else [value]


def _flat(values: Sequence[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _flat(value)
        else:
            yield value


def _property(item: object, name: object) -> Any:
    """nil for an item that has no such property, or none at all."""
    if isinstance(item, dict):
        return item.get(name) if isinstance(name, str) else None
    if isinstance(item, str):
        return name if isinstance(name, str) and name in item else None
    if isinstance(item, int) and not isinstance(item, bool):
        raise FilterArgumentError("a number has no properties", token=None)
    return None


def same(a: object, b: object) -> bool:
    """Equal as Liquid has it: 1 is 1.0, but not true."""
    return a == b and isinstance(a, bool) == isinstance(b, bool)


def _matcher(name: object, value: object) -> Callable[[object], bool]:
    if value is None:
        return lambda item: not _falsy(_property(item, name))
    return lambda item: same(_property(item, name), value)


def _falsy(value: object) -> bool:
    return value is None or value is False


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def where(values: object, name: object, value: object = None) -> list[object]:
    return list(filter(_matcher(name, value), _elements(values)))


def reject(values: object, name: object, value: object = None) -> list[object]:
    matches = _matcher(name, value)
    return [item for item in _elements(values) if not matches(item)]


def find(values: object, name: object, value: object = None) -> object:
    return next(filter(_matcher(name, value), _elements(values)), None)


def find_index(values: object, name: object, value: object = None) -> int | None:
    matches = _matcher(name, value)
    return next((i for i, item in enumerate(_elements(values)) if matches(item)), None)


def has(values: object, name: object, value: object = None) -> bool:
    return any(map(_matcher(name, value), _elements(values)))


def mapped(values: object, name: object) -> list[object]:
    return [_property(item, name) for item in _elements(values)]


def compact(values: object, name: object = None) -> list[object]:
    return [item for item in _elements(values) if (item if name is None else _property(item, name)) is not None]


def uniq(values: object, name: object = None) -> list[object]:
    seen: dict[str, object] = {}
    for item in _elements(values):
        seen.setdefault(_identity(item if name is None else _property(item, name)), item)
    return list(seen.values())


def _identity(value: object) -> str:
    """Equal for equal values: 1, 1.0, "1" and true are four."""
    return json.dumps(value, sort_keys=True, default=to_text)


def sort(values: object, name: object = None) -> list[object]:
    return _sorted(values, name, _comparable)


def sort_natural(values: object, name: object = None) -> list[object]:
    return _sorted(values, name, lambda keys: [to_text(key).lower() for key in keys])


def _sorted(values: object, name: object, as_keys: Callable[[list[Any]], list[Any]]) -> list[object]:
    """Items without a key last, all others by their keys; equal ones stay in their order."""
    keyed = [(item if name is None else _property(item, name), item) for item in _elements(values)]
    with_key = [(key, item) for key, item in keyed if key is not None]
    keys = as_keys([key for key, _ in with_key])
    order = sorted(range(len(keys)), key=keys.__getitem__)
    return [with_key[i][1] for i in order] + [item for key, item in keyed if key is None]


def _comparable(keys: list[Any]) -> list[Any]:
    alike = len(keys) < 2 or all(map(_is_number, keys)) or all(isinstance(key, str) for key in keys)
    if not alike:
        raise FilterArgumentError("values of these kinds have no order", token=None)
    return keys


def total_of(values: object, name: object = None) -> int | float:
    return total(_elements(values if name is None else mapped(values, name)))


@with_environment
def join(values: object, separator: object = " ", *, environment: Environment) -> str:
    glue = to_text(separator)
    if environment.autoescape and glue == " ":
        glue = Markup(" ")
    return glue.join(map(to_text, _elements(values)))


def concat(values: object, more: object) -> list[object]:
    if not isinstance(more, list | tuple):
        raise FilterArgumentError("only a list can be added to a list", token=None)
    return [*_elements(values), *more]


def reverse(values: object) -> list[object]:
    return _elements(values)[::-1]


def first(values: object) -> object:
    if isinstance(values, dict):
        return next(iter(values.items()), None)
    return values[0] if isinstance(values, list | tuple | range) and values else None


def last(values: object) -> object:
    return values[-1] if isinstance(values, list | tuple | range) and values else None


def size(value: object) -> int:
    return len(value) if isinstance(value, str | list | tuple | dict | range) else 0
