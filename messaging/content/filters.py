"""The filters of templates: an allow-list, each one metered.

A filter may not read a clock, a locale or chance, and pays from the render's budget for what it is given and what it
returns, so that no chain of them can cost more than the budget (`runtime.BUDGET`). The ones that would be superlinear,
unbounded, or show an object's memory address are replaced or pay beforehand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from liquid import Environment, Markup, StrictDefaultUndefined
from liquid.builtin.filters import array
from liquid.builtin.tags.for_tag import ForLoop
from liquid.builtin.tags.tablerow_tag import TableRow
from liquid.exceptions import FilterArgumentError, ResourceLimitError
from liquid.filter import sequence_filter

from messaging.content import dates

if TYPE_CHECKING:
    from messaging.content.runtime import Context

Filter = Callable[..., object]

#: Units. One unit is what handling a character costs at most, about 10 ns.
FILTER = 64  # for calling a filter at all
ELEMENT = 16  # for an element of a list or an object
MAX_VALUE = 300_000  # the largest value that may exist in a template, in units
MAX_INT_BITS = 256  # of a number: `times` in a loop would otherwise double its digits each time


class BudgetSpentError(ResourceLimitError):
    """The template costs more than a render may. A LiquidError, so that it passes through the engine unchanged."""

    def __init__(self) -> None:
        super().__init__("the template costs more than a render may", token=None)


class Budget:
    """What one render may still spend. Counts work, not time: the same inputs always come to the same end."""

    __slots__ = ("left",)

    def __init__(self, units: int) -> None:
        self.left = units

    def spend(self, units: int) -> None:
        self.left -= units
        if self.left < 0:
            raise BudgetSpentError


def measure(value: object) -> int:
    """The units that going through `value` once costs. Raises BudgetSpentError beyond MAX_VALUE, after as much work."""
    units = _measure(value, MAX_VALUE)
    if units > MAX_VALUE:
        raise BudgetSpentError
    return units


def _measure(value: object, room: int) -> int:
    kind = type(value)
    if kind is str or kind is Markup:
        return len(value)  # type: ignore[arg-type]
    if kind is int:
        return 1 if value.bit_length() <= MAX_INT_BITS else room + 1  # type: ignore[attr-defined]
    if kind is list or kind is tuple:
        units = ELEMENT
        for item in value:  # type: ignore[attr-defined]
            units += ELEMENT + _measure(item, room - units)
            if units > room:
                break
        return units
    if kind is dict:
        units = ELEMENT
        for key, item in value.items():  # type: ignore[attr-defined]
            units += ELEMENT + len(key) + _measure(item, room - units)
            if units > room:
                break
        return units
    if kind is range:
        # Ranges are bounded where they are made (`runtime.BoundedRange`).
        return ELEMENT * len(value)  # type: ignore[arg-type]
    return 1


def metered(
    function: Filter, *, factor: int = 1, before: Callable[..., int] | None = None, lenient: bool = False
) -> Filter:
    """`function` as `Context.filter` calls it: with the context in front.

    `factor`: units a character costs on the way. `before(left, *arguments)`: units to pay for what it is about to
    build; arguments of the wrong type cost nothing here, the filter itself refuses them. An undefined argument is an
    error, which some filters of the library would take for a missing one, unless `lenient`.
    """
    with_environment = getattr(function, "with_environment", False)

    def call(context: Context, left: object, /, *args: object, **kwargs: object) -> object:
        budget = context.budget
        units = FILTER + factor * measure(left)
        for argument in args:
            if type(argument) is StrictDefaultUndefined and not lenient:
                str(argument)  # raises
            units += measure(argument)
        if before is not None:
            units += before(left, *args)
        budget.spend(units)
        if type(left) in (ForLoop, TableRow):
            # `forloop` and its like: a filter would iterate the very loop that is running.
            raise FilterArgumentError("a loop's own variables cannot be filtered", token=None)
        if with_environment:
            kwargs["environment"] = context.env
        result = function(left, *args, **kwargs)
        budget.spend(measure(result))
        return result

    return call


def _text_length(value: object) -> int:
    return len(value) if isinstance(value, str) else 1


def _before_replace(left: object, old: object = "", new: object = "", *_: object) -> int:
    occurrences = measure(left) // max(1, _text_length(old)) + 1
    return occurrences * measure(new)


def _before_join(left: object, separator: object = " ", *_: object) -> int:
    return (measure(left) // ELEMENT) * measure(separator)


def _before_sort(left: object, *_: object) -> int:
    units = measure(left)
    return units * units.bit_length()


def _before_uniq(left: object, *_: object) -> int:
    units = measure(left)
    return units * (units // ELEMENT)


def _date(context: Context, left: object, /, pattern: object = None, *rest: object) -> object:
    """`date` of the library, with the batch's time for now, UTC, and without machine or locale in it (see dates)."""
    context.budget.spend(FILTER + measure(left) + measure(pattern))
    for value in (left, pattern):
        if type(value) is StrictDefaultUndefined:
            str(value)  # raises
    if rest or not isinstance(pattern, str):
        raise FilterArgumentError("date needs one format", token=None)
    if left is None or left == "":
        return ""
    at = dates.to_datetime(left, context.now)
    if at is None:
        raise FilterArgumentError("not a date", token=None)
    context.budget.spend(32 * FILTER * pattern.count("%"))
    result = dates.strftime(at, pattern)
    context.budget.spend(len(result))
    return Markup(result) if isinstance(pattern, Markup) else result


_DROPPED = ("<script", "</script>"), ("<style", "</style>"), ("<!--", "-->")


def strip_html(value: object) -> str:
    """Tags, comments, scripts and styles taken out, in one pass: the library's parser is quadratic on broken HTML."""
    text = "" if value is None else str(value)
    lower = text.lower()
    if len(lower) != len(text):  # a few letters change length with their case; positions must agree
        lower = text
    kept: list[str] = []
    at = 0
    absent: set[str] = set()  # closers that do not occur any more: not looked for again
    while (opening := text.find("<", at)) >= 0:
        closer = next((end for start, end in _DROPPED if lower.startswith(start, opening)), ">")
        end = -1 if closer in absent else lower.find(closer, opening)
        if end < 0:
            absent.add(closer)
            closer = ">"
            end = -1 if closer in absent else lower.find(closer, opening)
            if end < 0:
                break
        kept.append(text[at:opening])
        at = end + len(closer)
    kept.append(text[at:])
    result = "".join(kept)
    return Markup(result) if isinstance(value, Markup) else result


@sequence_filter
def map_(sequence: list[Any], key: object) -> list[object]:
    """`map` of the library, with nil for what is missing: its own stand-in prints a memory address inside a list."""
    return [None if item is array._NULL else item for item in array.map_(sequence, key)]


#: Costlier per character than a unit; measured with the worst text for each.
_FACTORS = {"url_encode": 6, "url_decode": 4, "split": 4, "strip_html": 10, "squish": 4, "truncatewords": 4}
_FACTORS |= {
    "escape_once": 5,
    "sum": 3,
    "where": 3,
    "find": 3,
    "has": 3,
    "find_index": 3,
    "reject": 2,
    "map": 2,
    "join": 2,
}
_FACTORS |= {"round": 80, "times": 4, "minus": 4, "plus": 4, "modulo": 4}  # of a number: it counts as one character
_BEFORE: dict[str, Callable[..., int]] = {
    "replace": _before_replace,
    "join": _before_join,
    "sort": _before_sort,
    "sort_natural": _before_sort,
    "uniq": _before_uniq,
}
#: The standard ones. `escapejs` is left out (no script runs in a message).
_NAMES = frozenset(
    {"abs", "at_least", "at_most", "ceil", "divided_by", "floor", "minus", "modulo", "plus", "round", "times"}
    | {
        "append",
        "capitalize",
        "downcase",
        "lstrip",
        "newline_to_br",
        "prepend",
        "remove",
        "remove_first",
        "remove_last",
    }
    | {"replace", "replace_first", "replace_last", "rstrip", "slice", "split", "squish", "strip", "strip_newlines"}
    | {"truncate", "truncatewords", "upcase", "escape", "escape_once", "safe", "url_decode", "url_encode"}
    | {"base64_decode", "base64_encode", "base64_url_safe_decode", "base64_url_safe_encode"}
    | {"compact", "concat", "find", "find_index", "first", "has", "join", "last", "reject", "reverse", "sort"}
    | {"sort_natural", "sum", "uniq", "where", "default", "size"}
)

FILTER_NAMES = _NAMES | {"map", "strip_html", "date"}


def install(environment: Environment) -> None:
    """Replaces the filters of `environment` by the allow-list."""
    library = environment.filters
    filters = {name: metered(library[name], factor=_FACTORS.get(name, 1), before=_BEFORE.get(name)) for name in _NAMES}
    filters["default"] = metered(library["default"], lenient=True)
    filters["map"] = metered(map_, factor=_FACTORS["map"])
    filters["strip_html"] = metered(strip_html, factor=_FACTORS["strip_html"])
    filters["date"] = _date
    environment.filters = filters
