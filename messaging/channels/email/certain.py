"""What of a template cannot fail, whatever the values are: so that a million rows need not be rendered to be sure of it.

Judged by its tree. Text, `{{ name }}` with filters that take any value, and conditions that only compare are certain, as
long as the values are small enough for what they may grow to; all else is not judged. The limits of size and work are
linear in the length of each value, so that they give one number: the length up to which nothing can exceed them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from liquid.ast import BlockNode, ConditionalBlockNode, Node
from liquid.builtin.content import ContentNode
from liquid.builtin.expressions import FilteredExpression, Nil, Path
from liquid.builtin.expressions.filtered import Filter
from liquid.builtin.expressions.logical import (
    BooleanExpression,
    EqExpression,
    LogicalAndExpression,
    LogicalOrExpression,
    NeExpression,
)
from liquid.builtin.expressions.primitive import Blank, Empty, Literal
from liquid.builtin.output import OutputNode
from liquid.builtin.tags.comment_tag import CommentNode
from liquid.builtin.tags.if_tag import IfNode
from liquid.builtin.tags.unless_tag import UnlessNode
from liquid.context import RenderContext
from liquid.expression import Expression

from messaging.channels.email.document import MAX_BODY_BYTES, MAX_HEADER_VALUE, MAX_HEADERS, MAX_SUBJECT
from messaging.channels.email.template import Template
from messaging.channels.templates.filters import FILTER, MAX_VALUE, WRITTEN
from messaging.channels.templates.runtime import BUDGET, Part

#: How many characters one can become: `"` is `&quot;`, an emoji %F0%9F%98%80, and some capitals are three letters.
_GROWTH = {
    "strip": 1,
    "lstrip": 1,
    "rstrip": 1,
    "strip_html": 1,
    "squish": 1,
    "safe": 1,
    "first": 1,
    "last": 1,
    "size": 1,
}
_GROWTH |= {"upcase": 3, "downcase": 3, "capitalize": 3, "escape": 6, "escape_once": 6, "strip_newlines": 6}
_GROWTH |= {"base64_encode": 6, "url_encode": 12, "newline_to_br": 13, "default": 1, "append": 6, "prepend": 6}
_WITH_TEXT = frozenset({"default", "append", "prepend"})  # these take one argument, all others none
_ESCAPED = 6
_AS_IT_IS = frozenset({"default", "first", "last"})  # all others make text of what they are given
_FACTORS = {"strip_html": 10, "url_encode": 6, "escape_once": 5, "squish": 4}  # as in `channels.templates.filters`
#: A value with n characters of JSON is written with at most 2n of them, and measures at most 17n.
_TEXT, _UNITS, _SMALL = 2, 17, 32
_BYTES = 4  # of a character, at most


class Linear(NamedTuple):
    """`fixed` and, for each character of the value of a name, `per[name]`."""

    fixed: int
    per: Counter[str]

    def plus(self, other: Linear) -> Linear:
        return Linear(self.fixed + other.fixed, self.per + other.per)

    def times(self, factor: int) -> Linear:
        return Linear(self.fixed * factor, Counter({name: n * factor for name, n in self.per.items()}))

    def room(self, limit: int) -> float:
        """The length of all values together up to which it stays within `limit`; negative: not even with empty ones."""
        left = limit - self.fixed
        steepest = max(self.per.values(), default=0)
        return left // steepest if steepest and left >= 0 else math.inf if left >= 0 else -1


ZERO = Linear(0, Counter())


class Certain(NamedTuple):
    """A part that cannot fail: the most that it writes and costs. `shown`: it writes something visible in any case."""

    text: Linear  # characters per character, and fixed bytes
    units: Linear
    room: float  # length of all values up to which no single one becomes too large
    shown: bool


#: Units of a render's budget that subject and headers may use together.
_FOR_LINES = BUDGET // 4


class Certainty(NamedTuple):
    """Of a template, for values that are all there: the lengths up to which it cannot fail, negative if it may anyway.

    `lines`: of the values in subject and headers together. `bodies`: of all values together.
    """

    lines: float
    bodies: float
    units: Linear  # of the bodies, if they are certain

    def units_of_bodies(self, length: int) -> int:
        """The most that rendering them costs with values of this length."""
        return self.units.fixed + max(self.units.per.values(), default=0) * length


def certainty_of(template: Template) -> Certainty:
    document = template.document
    lines = [_line(template.subject, MAX_SUBJECT, shown=True)]
    lines += [_line(part, MAX_HEADER_VALUE, shown=False) for part in template.headers.values()]
    bodies = [
        _literal(source) if part is None else certain(part)
        for part, source in ((template.html, document.html), (template.text, document.text))
        if source is not None
    ]
    sure = [body for body in bodies if body is not None]
    text, units = _sum(body.text for body in sure), _sum(body.units for body in sure)
    size = Linear(text.fixed, text.times(_BYTES).per)
    room = min(size.room(MAX_BODY_BYTES), units.room(BUDGET - _FOR_LINES), *(body.room for body in sure), math.inf)
    if len(sure) < len(bodies) or not any(body.shown for body in sure):
        room = -1
    return Certainty(min(lines), room, units)


def _line(part: Part | None, limit: int, *, shown: bool) -> float:
    if part is None:
        return math.inf
    found = certain(part)
    if found is None or (shown and not found.shown):
        return -1
    return min(found.text.room(limit), found.units.room(_FOR_LINES // (MAX_HEADERS + 1)), found.room)


def _literal(source: str) -> Certain:
    return Certain(Linear(len(source.encode()), Counter()), ZERO, math.inf, bool(source.strip()))


def certain(part: Part) -> Certain | None:
    context = RenderContext(part.template)
    try:
        bounds = _together([_node(node, context, part.template.env.autoescape) for node in part.nodes])
    except _UnsureError:
        return None
    shown = any(isinstance(node, ContentNode) and node.text.strip() for node in part.nodes)
    return Certain(*bounds, shown)


class _UnsureError(Exception):
    pass


def _sum(parts: Iterable[Linear]) -> Linear:
    fixed, per = 0, Counter[str]()
    for part in parts:
        fixed += part.fixed
        per.update(part.per)
    return Linear(fixed, per)


class _Bounds(NamedTuple):
    """The most that is written, in characters; what it may cost; and the room of the largest value on the way."""

    text: Linear
    units: Linear
    room: float


def _together(bounds: Sequence[_Bounds], more_units: Sequence[Linear] = ()) -> _Bounds:
    return _Bounds(
        _sum(one.text for one in bounds),
        _sum([*(one.units for one in bounds), *more_units]),
        min((one.room for one in bounds), default=math.inf),
    )


def _node(node: Node, context: RenderContext, autoescape: bool) -> _Bounds:
    """All branches count."""
    if isinstance(node, ContentNode):
        size = Linear(len(node.text.encode()), Counter())
        return _Bounds(size, size, math.inf)
    if isinstance(node, OutputNode):
        text, units, room = _filtered(node.expression)
        written = text.times(_ESCAPED if autoescape else 1)
        return _Bounds(written, units.plus(written.times(2)), room)
    if isinstance(node, CommentNode):
        return _Bounds(ZERO, ZERO, math.inf)
    if not isinstance(node, IfNode | UnlessNode | BlockNode | ConditionalBlockNode):
        raise _UnsureError
    inner = [_node(child, context, autoescape) for child in node.children(context, include_partials=False)]
    conditions = [_condition(expression) for expression in node.expressions()]
    return _together(inner, conditions)


def _condition(expression: Expression) -> Linear:
    if isinstance(
        expression, BooleanExpression | LogicalAndExpression | LogicalOrExpression | EqExpression | NeExpression
    ):
        return _sum(map(_condition, expression.children()))
    return _value(expression)[1]


def _filtered(expression: Expression) -> tuple[Linear, Linear, float]:
    """Characters of the result, units, and the room of the largest value on the way."""
    if type(expression) is not FilteredExpression:
        raise _UnsureError
    text, measured = _value(expression.left)
    units, is_text, room = measured, False, measured.room(MAX_VALUE)
    for one in expression.filters or ():
        more, more_units = _arguments(one)
        text = text.plus(more).times(_GROWTH[one.name]).plus(Linear(_SMALL, Counter()))
        factor = _FACTORS.get(one.name, 1) + (0 if is_text or one.name in _AS_IT_IS else WRITTEN + _TEXT)
        units = _sum([units, measured.times(factor), more_units.times(1 + WRITTEN + _TEXT), Linear(FILTER, Counter())])
        is_text = is_text or one.name not in _AS_IT_IS
        measured = text if is_text else measured.plus(more_units)
        units = units.plus(measured)
        room = min(room, measured.room(MAX_VALUE))
    return text, units if is_text else units.plus(measured.times(WRITTEN)), room


def _arguments(one: Filter) -> tuple[Linear, Linear]:
    arguments = [argument.value for argument in one.args]
    positional = not any(getattr(argument, "name", None) for argument in one.args)
    if one.name not in _GROWTH or not positional or len(arguments) != (one.name in _WITH_TEXT):
        raise _UnsureError
    return _value(arguments[0]) if arguments else (ZERO, ZERO)


def _value(expression: Expression) -> tuple[Linear, Linear]:
    """The length of its text, and its units."""
    if isinstance(expression, Path):
        name = expression.path[0]
        if len(expression.path) != 1 or not isinstance(name, str):
            raise _UnsureError  # it may be missing in a value
        return Linear(_SMALL, Counter({name: _TEXT})), Linear(_SMALL, Counter({name: _UNITS}))
    if isinstance(expression, Literal):
        size = Linear(len(str(expression.value).encode()) + _SMALL, Counter())
        return size, size
    if isinstance(expression, Nil | Empty | Blank):
        return ZERO, ZERO
    raise _UnsureError
