"""Liquid, bounded: the same source and values give the same text everywhere, and no source costs more than a budget.

There is no time limit: a limit in time would let a template through on one worker and not on the next. All work is
counted instead, in units of about 10 ns. Before parsing, `_scan` bounds what the engine's lexer may be given; after
parsing, `_weigh` bounds the tree and puts a meter into every block that can run more than once; while rendering
(`runtime`), values that are read, filtered, assigned or written are paid for.
"""

from __future__ import annotations

import math
import re
import threading
from collections import OrderedDict

from liquid import Environment, StrictDefaultUndefined
from liquid.ast import Node
from liquid.builtin.expressions import FilteredExpression, Path, StringLiteral
from liquid.builtin.expressions.logical import ContainsExpression
from liquid.builtin.expressions.primitive import FloatLiteral, RangeLiteral
from liquid.builtin.tags.case_tag import MultiExpressionBlockNode
from liquid.builtin.tags.for_tag import ForNode
from liquid.builtin.tags.tablerow_tag import TablerowNode
from liquid.context import RenderContext
from liquid.exceptions import BlockNestingError, LiquidError
from liquid.expression import Expression

from messaging.channels.templates import filters, tags
from messaging.channels.templates.held import held_by
from messaging.channels.templates.runtime import STEP, BoundedRange, Contains, MeteredBlock, Part, line_at, line_of
from messaging.domain.errors import InvalidInput

MAX_WEIGHT = 1_000_000  # units: every node of a source once
MAX_TAGS = 5_000  # {{ … }} and {% … %} in one source
MAX_TAG_SQUARES = 5_000_000  # sum of their squared lengths: the lexer backtracks within a tag
MAX_DEPTH = 40  # of nested expressions, so that rendering never depends on how much stack the caller has left

_MARKUP = re.compile(r"\{[{%]")
_VERBATIM = re.compile(r"\{%-?\s*(raw|doc)\s*-?%\}")
_END_VERBATIM = re.compile(r"\{%-?\s*endraw\s*-?%\}")
_CLOCK_NAMES = frozenset({"now", "today"})  # given by the engine, not by variables


def has_markup(source: str) -> bool:
    return "{{" in source or "{%" in source


def _environment(autoescape: bool) -> Environment:
    environment = Environment(undefined=StrictDefaultUndefined, autoescape=autoescape)
    filters.install(environment)
    tags.install(environment)
    return environment


_PLAIN = _environment(autoescape=False)
_HTML = _environment(autoescape=True)


def compile_source(source: str, field: str, *, autoescape: bool) -> Part:
    """Raises InvalidInput: `template_syntax`, `unknown_tag`, `unknown_filter`, `template_too_complex`."""
    try:
        return _recent.get(source, autoescape)
    except _RefusedError as refused:
        raise InvalidInput(refused.code, refused.message, field=field) from None


class _RefusedError(Exception):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class _Recent:
    """What is validated is compiled right afterwards: what was compiled last, up to `_RECENT_BYTES`. Threads share it.

    Keeping it for longer is the caller's.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._parts: OrderedDict[tuple[str, bool], Part] = OrderedDict()
        self._bytes = 0

    def get(self, source: str, autoescape: bool) -> Part:
        key = (source, autoescape)
        with self._lock:
            if (known := self._parts.get(key)) is not None:
                self._parts.move_to_end(key)
                return known
        part = _compile(source, autoescape)
        with self._lock:
            if key not in self._parts:
                self._parts[key] = part
                self._bytes += part.held
            while self._bytes > _RECENT_BYTES and len(self._parts) > 1:
                self._bytes -= self._parts.popitem(last=False)[1].held
        return part


_RECENT_BYTES = 8_000_000
_recent = _Recent()


def _compile(source: str, autoescape: bool) -> Part:
    _scan(source)
    try:
        template = (_HTML if autoescape else _PLAIN).from_string(source)
    except BlockNestingError:
        raise _RefusedError("template_too_complex", "blocks are nested too deeply") from None
    except LiquidError as error:
        raise _syntax_error(error, source) from None
    context = RenderContext(template)
    if sum(_weigh(node, context) for node in template.nodes) > MAX_WEIGHT:
        raise _RefusedError("template_too_complex", "the template has too many parts")
    names = template.analyze(include_partials=False).globals
    return Part(template, frozenset(names) - _CLOCK_NAMES, held_by(source, template.nodes, context))


def _scan(source: str) -> None:
    """Refuses what would make the engine's regular expressions take more than linear time."""
    at = count = squares = 0
    while opening := _MARKUP.search(source, at):
        start = opening.start()
        close = source.find("}}" if opening[0] == "{{" else "%}", start + 2)
        if close < 0:
            raise _RefusedError("template_syntax", f"line {line_at(source, start)}: {opening[0]} is never closed")
        at = close + 2
        count += 1
        squares += (at - start) ** 2
        if count > MAX_TAGS or squares > MAX_TAG_SQUARES:
            raise _RefusedError("template_too_complex", "the template has too many or too long tags")
        if verbatim := _VERBATIM.fullmatch(source, start, at):
            if verbatim[1] == "doc":  # the lexer knows it, and looks for its end each time, to the end of the source
                raise _RefusedError("unknown_tag", f"line {line_at(source, start)}: there is no tag doc here")
            end = _END_VERBATIM.search(source, at)
            if end is None:
                raise _RefusedError("template_syntax", f"line {line_at(source, start)}: raw is never closed")
            at = end.end()


def _weigh(node: Node, context: RenderContext) -> int:
    """The units that running `node` once costs, loops counted once: their blocks pay for each turn."""
    weight = STEP
    for expression in node.expressions():
        weight += _weigh_expression(expression, 1)
    for child in node.children(context, include_partials=False):
        inner = _weigh(child, context)
        weight += inner
        if isinstance(node, ForNode | TablerowNode | MultiExpressionBlockNode) and child is node.block:
            node.block = MeteredBlock(node.block, inner)
    return weight


def _weigh_expression(expression: Expression, depth: int) -> int:
    if depth > MAX_DEPTH:
        raise _RefusedError("template_too_complex", "an expression is nested too deeply")
    weight = STEP
    if isinstance(expression, Path):
        weight += STEP * len(expression.path)
        if not isinstance(expression.path[0], str):
            raise _RefusedError("template_syntax", f"line {line_of(expression.token)}: write the variable's name out")
    elif isinstance(expression, StringLiteral):
        weight += len(expression.value)
    elif isinstance(expression, FilteredExpression):
        for one in expression.filters or ():
            weight += STEP
            if one.name not in filters.FILTER_NAMES:
                raise _RefusedError("unknown_filter", f"line {line_of(one.token)}: there is no filter {one.name[:40]}")
    elif type(expression) is RangeLiteral:
        # The parser offers no other way to have its ranges made of another class. Same layout, another `evaluate`.
        expression.__class__ = BoundedRange
    elif type(expression) is ContainsExpression:
        expression.__class__ = Contains
    elif isinstance(expression, FloatLiteral) and not math.isfinite(expression.value):
        raise _RefusedError("template_syntax", f"line {line_of(expression.token)}: a number is too large")
    return weight + sum(_weigh_expression(child, depth + 1) for child in expression.children())


_UNKNOWN_TAG = re.compile(r"unexpected tag '([\w#]{1,40})'")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")


def _syntax_error(error: LiquidError, source: str) -> _RefusedError:
    message = str(error.message or "").splitlines()[0] if error.message else "cannot be parsed"
    line = line_of(error.token)
    if unknown := _UNKNOWN_TAG.match(message):
        return _RefusedError("unknown_tag", f"line {line}: there is no tag {unknown[1]} here")
    # The engine quotes the source, and a body has no place in an error.
    return _RefusedError("template_syntax", f"line {line}: {_QUOTED.sub('…', message)[:200]}")
