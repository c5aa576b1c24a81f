"""The filters of templates: an allow-list, each one metered, each given what it works on.

A filter may not read a clock, a locale or chance, and pays from the render's budget for what it is given and what it
returns, so that no chain of them can cost more than the budget (`runtime.BUDGET`). What it is given has become text,
where it takes text, in the one way there is (`text`). The library's filters that would be superlinear, unbounded,
or differ from the reference implementation are replaced by ours.

A filter of ours refuses its arguments by a FilterArgumentError, and whatever else it raises is a bug of ours. The
library's also raise what Python raises for values that they cannot take.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from liquid import Environment, Markup
from liquid.builtin.tags.for_tag import ForLoop
from liquid.builtin.tags.tablerow_tag import TableRow
from liquid.exceptions import FilterArgumentError, ResourceLimitError
from liquid.undefined import StrictDefaultUndefined

from messaging.channels.templates import dates, lists, numbers, strings
from messaging.channels.templates.text import to_text

Filter = Callable[..., object]

#: Units. One unit is what handling a character costs at most, about 10 ns.
FILTER = 64  # for calling a filter at all
ELEMENT = 16  # for an element of a list or an object
WRITTEN = 4  # for each unit of a list or an object that is written out
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


class Rendering(Protocol):
    """What filters and tags need to know of a render (`runtime.Context`). `now`: the batch's time."""

    autoescape: bool
    budget: Budget
    env: Environment
    now: datetime


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


class Spec(NamedTuple):
    """A filter. `text`: which of its arguments it takes for text, what is filtered being number 0."""

    function: Filter
    text: frozenset[int] = frozenset()
    factor: int = 1  # units that a character costs on the way
    before: Callable[..., int] | None = None  # units to pay for what it is about to build
    ours: bool = True
    lenient: bool = False  # takes what has no value
    with_context: bool = False


def metered(spec: Spec) -> Filter:
    """`spec.function` as `Context.filter` calls it: with the context in front."""
    function, text, factor, before, ours, lenient, with_context = spec
    with_environment = getattr(function, "with_environment", False)
    least, most, options = _signature(function, without=1 + with_context)

    def call(context: Rendering, left: object, /, *args: Any, **kwargs: object) -> object:
        if not least <= len(args) <= most or not options.issuperset(kwargs):
            raise FilterArgumentError("too few or too many arguments", token=None)
        if type(left) in (ForLoop, TableRow):
            # `forloop` and its like: a filter would iterate the very loop that is running.
            raise FilterArgumentError("a loop's own variables cannot be filtered", token=None)
        given = [left, *args]
        units = FILTER
        for i, value in enumerate(given):
            if type(value) is StrictDefaultUndefined and not lenient:
                str(value)  # raises
            size = measure(value)
            units += size * (1 if i else factor)
            if i in text and type(value) is not str:
                context.budget.spend(WRITTEN * size)
                given[i] = to_text(value)
                units += len(given[i])
        if before is not None:
            units += before(*given)
        context.budget.spend(units)
        if with_environment:
            kwargs["environment"] = context.env
        if with_context:
            given.insert(0, context)
        try:
            result = function(*given, **kwargs)
        except (ValueError, ArithmeticError):
            if ours:
                raise
            raise FilterArgumentError("not a value for this filter", token=None) from None
        context.budget.spend(measure(result))
        return result

    return call


def _signature(function: Filter, without: int) -> tuple[int, int, frozenset[str]]:
    """How few and how many arguments it takes, `without` the first ones, and what may be given by name."""
    parameters = list(inspect.signature(function).parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][without:]
    least = sum(p.default is p.empty for p in positional)
    named = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY} - {"environment"}
    return least, len(positional), frozenset(named)


def _before_replace(left: str, old: str, new: str = "") -> int:
    return (len(left) // max(1, len(old)) + 1) * len(new)


def _before_join(left: object, separator: str = " ") -> int:
    return (measure(left) // ELEMENT) * len(separator)


def _before_sort(left: object, *_: object) -> int:
    units = measure(left)
    return units * units.bit_length()


def _date(context: Rendering, value: object, pattern: object) -> str:
    """`date` of the library, with the batch's time for now, UTC, and without machine or locale in it (see dates)."""
    if not isinstance(pattern, str):
        raise FilterArgumentError("date needs one format", token=None)
    if value is None or value == "":
        return ""
    at = dates.to_datetime(value, context.now)
    if at is None:
        raise FilterArgumentError("not a date", token=None)
    context.budget.spend(32 * FILTER * pattern.count("%"))
    result = dates.strftime(at, pattern)
    return Markup(result) if isinstance(pattern, Markup) else result


_SUBJECT = frozenset({0})  # only what is filtered is text
_ALL = frozenset({0, 1, 2})


def _ours() -> dict[str, Spec]:
    """`factor`: costlier per character than a unit; measured with the worst value for each."""
    properties = {"where": lists.where, "find": lists.find, "has": lists.has, "find_index": lists.find_index}
    by_property: dict[str, Filter] = {**properties, "reject": lists.reject, "map": lists.mapped}
    arithmetic: dict[str, Filter] = {"times": numbers.times, "minus": numbers.minus, "plus": numbers.plus}
    arithmetic |= {"modulo": numbers.modulo, "divided_by": numbers.divided_by}
    of_numbers: dict[str, Filter] = {"abs": numbers.absolute, "ceil": numbers.ceil, "floor": numbers.floor}
    of_numbers |= {"at_least": numbers.at_least, "at_most": numbers.at_most}
    of_lists: dict[str, Filter] = {"first": lists.first, "last": lists.last, "size": lists.size}
    of_lists |= {"compact": lists.compact, "concat": lists.concat, "reverse": lists.reverse}
    return {
        **{name: Spec(function, factor=3) for name, function in by_property.items()},
        **{name: Spec(function) for name, function in {**of_numbers, **of_lists}.items()},
        # A number counts as one character, and costs more.
        **{name: Spec(function, factor=4) for name, function in arithmetic.items()},
        "round": Spec(numbers.rounded, factor=80),
        "sum": Spec(lists.total_of, factor=6),
        "uniq": Spec(lists.uniq, factor=4),
        "sort": Spec(lists.sort, before=_before_sort),
        "sort_natural": Spec(lists.sort_natural, before=_before_sort),
        "join": Spec(lists.join, frozenset({1}), factor=2, before=_before_join),
        "append": Spec(strings.append, _ALL),
        "prepend": Spec(strings.prepend, _ALL),
        "remove_last": Spec(strings.remove_last, _ALL),
        "replace_last": Spec(strings.replace_last, _ALL),
        "escape": Spec(strings.escape, _SUBJECT),
        "escape_once": Spec(strings.escape_once, _SUBJECT, factor=5),
        "split": Spec(strings.split, _ALL, factor=4),
        "strip_html": Spec(strings.strip_html, _SUBJECT, factor=10),
        "truncate": Spec(strings.truncate, frozenset({0, 2})),
        "truncatewords": Spec(strings.truncatewords, frozenset({0, 2}), factor=4),
        "slice": Spec(strings.cut),
        "date": Spec(_date, with_context=True),
    }


#: The library's that are fine as they are, all of them of text.
_LIBRARY = frozenset(
    {"capitalize", "downcase", "upcase", "lstrip", "rstrip", "strip", "squish", "strip_newlines", "newline_to_br"}
    | {"remove", "remove_first", "replace", "replace_first", "safe", "url_decode", "url_encode"}
    | {"base64_decode", "base64_encode", "base64_url_safe_decode", "base64_url_safe_encode"}
)
_FACTORS = {"url_encode": 6, "url_decode": 4, "squish": 4}


def _specs(library: Mapping[str, Filter]) -> dict[str, Spec]:
    """`escapejs` and what an upgrade may bring are left out (no script runs in a message)."""
    specs = {name: Spec(library[name], _ALL, _FACTORS.get(name, 1), ours=False) for name in _LIBRARY}
    specs["replace"] = specs["replace"]._replace(before=_before_replace)
    specs["default"] = Spec(library["default"], ours=False, lenient=True)
    return specs | _ours()


FILTER_NAMES = _LIBRARY | {"default"} | frozenset(_ours())


def install(environment: Environment) -> None:
    """Replaces the filters of `environment` by the allow-list."""
    environment.filters = {name: metered(spec) for name, spec in _specs(environment.filters).items()}
