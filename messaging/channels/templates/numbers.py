"""Filters of numbers. Fractions are computed in decimal, as by the reference implementation: 0.1 plus 0.2 is 0.3."""

from __future__ import annotations

import decimal
import math
import re
from collections.abc import Callable, Iterable
from decimal import Decimal

from liquid.exceptions import FilterArgumentError

Number = int | Decimal

_DECIMAL = re.compile(r"-?[0-9]+\.[0-9]+")
_LEADING_INTEGER = re.compile(r"[+-]?[0-9]+")
_MAX_DIGITS = 100  # of a number given as text
_MAX_PLACES = 400  # to round to: more than a float has on either side of its point
#: One of our own: what else runs in the process may change the thread's.
_CONTEXT = decimal.Context(
    prec=28,
    rounding=decimal.ROUND_HALF_EVEN,
    traps=[decimal.InvalidOperation, decimal.DivisionByZero, decimal.Overflow],
)


def to_number(value: object) -> Number:
    """The number that a value is for a filter: text counts as far as it is one, anything else as 0."""
    if isinstance(value, bool):
        return 0
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return Decimal(repr(value))
    if not isinstance(value, str):
        return 0
    text = value.strip()
    found = _DECIMAL.fullmatch(text) or _LEADING_INTEGER.match(text)
    if found is None:
        return 0
    if len(found[0]) > _MAX_DIGITS:
        raise FilterArgumentError("a number is too long", token=None)
    return Decimal(found[0]) if "." in found[0] else int(found[0])


def to_integer(value: object) -> int:
    """A number of characters, words, elements. Raises FilterArgumentError for what is none."""
    if isinstance(value, int | float):
        return int(value)
    if isinstance(value, str) and len(value) <= _MAX_DIGITS and _LEADING_INTEGER.fullmatch(value.strip()):
        return int(value)
    raise FilterArgumentError("not an integer", token=None)


def _given(value: Number) -> int | float:
    """What a template gets. Raises FilterArgumentError for what no float can hold."""
    if isinstance(value, int):
        return value
    result = float(value)
    if not math.isfinite(result):
        raise FilterArgumentError("a number is too large", token=None)
    return result


def _exact(number: Number) -> Decimal:
    return number if isinstance(number, Decimal) else Decimal(number)


def _computed(
    left: object, right: object, whole: Callable[[int, int], int], broken: Callable[[Decimal, Decimal], Decimal]
) -> int | float:
    a, b = to_number(left), to_number(right)
    if isinstance(a, int) and isinstance(b, int):
        return whole(a, b)
    try:
        return _given(broken(_exact(a), _exact(b)))
    except decimal.DecimalException:
        raise FilterArgumentError("a number is too large", token=None) from None


def plus(left: object, right: object) -> int | float:
    return _computed(left, right, int.__add__, _CONTEXT.add)


def minus(left: object, right: object) -> int | float:
    return _computed(left, right, int.__sub__, _CONTEXT.subtract)


def times(left: object, right: object) -> int | float:
    return _computed(left, right, int.__mul__, _CONTEXT.multiply)


def divided_by(left: object, right: object) -> int | float:
    """Rounded down between integers."""
    return _computed(left, _not_zero(right), int.__floordiv__, _CONTEXT.divide)


def modulo(left: object, right: object) -> int | float:
    return _computed(left, _not_zero(right), int.__mod__, _remainder)


def _not_zero(divisor: object) -> object:
    if not to_number(divisor):
        raise FilterArgumentError("divided by 0", token=None)
    return divisor


def _remainder(a: Decimal, b: Decimal) -> Decimal:
    """With the sign of the divisor; that of Python's decimals follows the dividend."""
    rest = _CONTEXT.remainder(a, b)
    return _CONTEXT.add(rest, b) if rest and (rest < 0) != (b < 0) else rest


def absolute(left: object) -> int | float:
    number = to_number(left)
    return _given(-number if number < 0 else number)


def at_least(left: object, right: object) -> int | float:
    a, b = to_number(left), to_number(right)
    return _given(a if a >= b else b)


def at_most(left: object, right: object) -> int | float:
    a, b = to_number(left), to_number(right)
    return _given(a if a <= b else b)


def ceil(left: object) -> int:
    return math.ceil(to_number(left))


def floor(left: object) -> int:
    return math.floor(to_number(left))


def rounded(left: object, places: object = 0) -> int | float:
    """Half away from zero; an integer unless there are to be places behind the point."""
    number = to_number(left)
    wanted = max(-_MAX_PLACES, min(_MAX_PLACES, int(to_number(places))))
    if isinstance(number, int) and wanted >= 0:
        return number
    exact = _exact(number)
    if isinstance(exponent := exact.as_tuple().exponent, int) and exponent < -wanted:
        exact = exact.quantize(Decimal(1).scaleb(-wanted), rounding=decimal.ROUND_HALF_UP, context=_WIDE)
    return _given(exact) if wanted > 0 else int(exact)


#: For rounding alone, which makes no number longer than it was.
_WIDE = decimal.Context(prec=2 * _MAX_PLACES, traps=[decimal.InvalidOperation])


def total(values: Iterable[object]) -> int | float:
    found: Number = 0
    for value in values:
        number = to_number(value)
        if isinstance(found, int) and isinstance(number, int):
            found += number
        else:
            found = _CONTEXT.add(_exact(found), _exact(number))
    return _given(found)
