"""Liquid, bounded: the same source and values give the same text everywhere, and no source costs more than a budget.

There is no time limit: a limit in time would let a template through on one worker and not on the next. All work is
counted instead, in units of about 10 ns. Before parsing, `_scan` bounds what the engine's lexer may be given; after
parsing, `_weigh` bounds the tree and puts a meter into every block that can run more than once; while rendering, values
that are read, filtered, assigned or written are paid for.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from liquid import Environment, StrictDefaultUndefined
from liquid.ast import BlockNode, Node
from liquid.builtin.expressions import FilteredExpression, Path, StringLiteral
from liquid.builtin.expressions.primitive import RangeLiteral
from liquid.builtin.tags.case_tag import MultiExpressionBlockNode
from liquid.builtin.tags.for_tag import ForNode
from liquid.builtin.tags.tablerow_tag import TablerowNode
from liquid.context import RenderContext
from liquid.exceptions import (
    BlockNestingError,
    LiquidError,
    LiquidInterrupt,
    OutputStreamLimitError,
    ResourceLimitError,
    UndefinedError,
)
from liquid.expression import Expression
from liquid.template import BoundTemplate
from liquid.token import TOKEN_CONTENT, TOKEN_ILLEGAL, TOKEN_OUTPUT, Token
from liquid.undefined import UNDEFINED
from liquid.utils import ReadOnlyChainMap

from messaging.content import filters
from messaging.content.filters import Budget, BudgetSpentError, measure
from messaging.errors import InvalidInput

BUDGET = 2_000_000  # units a render may spend: about 5,000 outputs, at worst some 40 ms
STEP = 64  # units: one node or expression
MAX_WEIGHT = 1_000_000  # units: every node of a source once
MAX_TAGS = 5_000  # {{ … }} and {% … %} in one source
MAX_TAG_SQUARES = 5_000_000  # sum of their squared lengths: the lexer backtracks within a tag
MAX_RANGE = 10_000  # numbers in (a..b)
MAX_OUTPUT = 1_000_000  # characters of a rendered part, or of a capture
MAX_DEPTH = 40  # of nested expressions, so that rendering never depends on how much stack the caller has left

#: The tags there are. Left out: include and render (there is nothing to include), liquid and echo (another spelling of
#: the others), doc. The last three are the engine's names for what is not a tag.
_TAGS = frozenset(
    {"if", "unless", "case", "for", "break", "continue", "tablerow", "capture", "assign", "cycle", "increment"}
    | {"decrement", "ifchanged", "comment", "#"}
    | {TOKEN_CONTENT, TOKEN_ILLEGAL, TOKEN_OUTPUT}
)
_MARKUP = re.compile(r"\{[{%]")
_VERBATIM = re.compile(r"\{%-?\s*(raw|doc)\s*-?%\}")
_END_VERBATIM = re.compile(r"\{%-?\s*endraw\s*-?%\}")
_NAME = re.compile(r"[\w-]+\??(?:\.[\w-]+\??)*")
_CLOCK_NAMES = frozenset({"now", "today"})  # given by the engine, not by variables


class RenderError(Exception):
    """A template that cannot be rendered with these values. `code` is stable; `detail` holds no value of a variable.

    `part` is where: subject, html, text or headers.
    """

    def __init__(self, code: str, detail: str, part: str) -> None:
        super().__init__(f"{part}: {detail}")
        self.code = code
        self.detail = detail
        self.part = part


def has_markup(source: str) -> bool:
    return "{{" in source or "{%" in source


class Part:
    """One compiled source. Immutable; shared by threads."""

    __slots__ = ("_nodes", "_template", "names")

    def __init__(self, template: BoundTemplate, names: frozenset[str]) -> None:
        self._template = template
        self._nodes = template.nodes
        self.names = names

    def render(self, variables: Mapping[str, object], now: datetime, budget: Budget, part: str) -> str:
        """Raises RenderError, whatever the template does."""
        context = Context(self._template, variables, now, budget)
        output = Output(budget)
        token: Token | None = None
        try:
            for node in self._nodes:
                token = node.token
                node.render(context, output)  # type: ignore[arg-type]  # only `write` is ever called
        except (LiquidError, LiquidInterrupt) as error:
            raise _render_error(error, token, part) from None
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001  (decimal, overflow, Unicode …: the engine lets them through)
            raise RenderError("template_error", f"line {_line(token)}: {type(error).__name__}", part) from None
        return "".join(output.parts)


class Output:
    """What the engine writes to. Writing costs little (the text was paid for when it was made), and has an end."""

    __slots__ = ("budget", "parts", "room")

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.parts: list[str] = []
        self.room = MAX_OUTPUT

    def write(self, text: str) -> int:
        size = len(text)
        self.budget.spend(size >> 4)
        self.room -= size
        if self.room < 0:
            raise OutputStreamLimitError("the output is too long", token=None)
        self.parts.append(text)
        return size

    def getvalue(self) -> str:
        return "".join(self.parts)


class Context(RenderContext):
    """The engine's state of one render, with `now` in place of the machine's clock and a budget."""

    __slots__ = ("budget", "now")

    def __init__(self, template: BoundTemplate, variables: Mapping[str, object], now: datetime, budget: Budget) -> None:
        super().__init__(template, globals=variables)
        self.budget = budget
        self.now = now
        clock = {"now": now, "today": now.date()}
        self.scope = ReadOnlyChainMap(self.locals, self.globals, clock, self.counters)

    def get(self, path: list[object], *, token: Token | None, default: object = UNDEFINED) -> object:
        found = super().get(path, token=token, default=default)
        kind = type(found)
        if kind is str:
            self.budget.spend(len(found))  # type: ignore[arg-type]
        elif kind is not int and kind is not StrictDefaultUndefined:
            self.budget.spend(measure(found))
        return found

    def filter(self, name: str, token: Token | None) -> functools.partial[object]:
        return functools.partial(self.env.filters[name], self)

    def assign(self, key: str, val: Any) -> None:
        self.budget.spend(measure(val))
        self.locals[key] = val

    def get_buffer(self, buf: object = None) -> Output:  # type: ignore[override]
        return Output(self.budget)


class MeteredBlock(BlockNode):
    """A block that may run more than once: pays for itself each time."""

    __slots__ = ("weight",)

    def __init__(self, block: BlockNode, weight: int) -> None:
        super().__init__(block.token, block.nodes)
        self.blank = block.blank
        self.weight = weight

    def render_to_output(self, context: Any, buffer: Any) -> int:
        context.budget.spend(self.weight)
        return super().render_to_output(context, buffer)


class BoundedRange(RangeLiteral):
    """A range that is never longer than MAX_RANGE: `contains`, `reversed` and filters go through all of it."""

    __slots__ = ()

    def evaluate(self, context: Any) -> range:
        found: range = super().evaluate(context)
        if found.stop - found.start > MAX_RANGE:
            raise BudgetSpentError
        context.budget.spend(filters.ELEMENT * len(found))
        return found


def _environment(autoescape: bool) -> Environment:
    environment = Environment(undefined=StrictDefaultUndefined, autoescape=autoescape)
    filters.install(environment)
    environment.tags = {name: tag for name, tag in environment.tags.items() if name in _TAGS}
    return environment


_PLAIN = _environment(autoescape=False)
_HTML = _environment(autoescape=True)


def compile_source(source: str, field: str, *, autoescape: bool) -> Part:
    """Raises InvalidInput: `template_syntax`, `unknown_tag`, `unknown_filter`, `template_too_complex`."""
    try:
        return _compile(source, autoescape)
    except _RefusedError as refused:
        raise InvalidInput(refused.code, refused.message, field=field) from None


class _RefusedError(Exception):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@functools.lru_cache(maxsize=64)  # what is validated is compiled right afterwards; long-lived caching is the caller's
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
    return Part(template, frozenset(names) - _CLOCK_NAMES)


def _scan(source: str) -> None:
    """Refuses what would make the engine's regular expressions take more than linear time."""
    at = count = squares = 0
    while opening := _MARKUP.search(source, at):
        start = opening.start()
        close = source.find("}}" if opening[0] == "{{" else "%}", start + 2)
        if close < 0:
            raise _RefusedError("template_syntax", f"line {_line_at(source, start)}: {opening[0]} is never closed")
        at = close + 2
        count += 1
        squares += (at - start) ** 2
        if count > MAX_TAGS or squares > MAX_TAG_SQUARES:
            raise _RefusedError("template_too_complex", "the template has too many or too long tags")
        if verbatim := _VERBATIM.fullmatch(source, start, at):
            if verbatim[1] == "doc":  # the lexer knows it, and looks for its end each time, to the end of the source
                raise _RefusedError("unknown_tag", f"line {_line_at(source, start)}: there is no tag doc here")
            end = _END_VERBATIM.search(source, at)
            if end is None:
                raise _RefusedError("template_syntax", f"line {_line_at(source, start)}: raw is never closed")
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
            raise _RefusedError("template_syntax", f"line {_line(expression.token)}: write the variable's name out")
    elif isinstance(expression, StringLiteral):
        weight += len(expression.value)
    elif isinstance(expression, FilteredExpression):
        for one in expression.filters or ():
            weight += STEP
            if one.name not in _PLAIN.filters:
                raise _RefusedError("unknown_filter", f"line {_line(one.token)}: there is no filter {one.name[:40]}")
    elif type(expression) is RangeLiteral:
        # The parser offers no other way to have its ranges made of another class. Same layout, another `evaluate`.
        expression.__class__ = BoundedRange
    return weight + sum(_weigh_expression(child, depth + 1) for child in expression.children())


_UNKNOWN_TAG = re.compile(r"unexpected tag '([\w#]{1,40})'")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")


def _syntax_error(error: LiquidError, source: str) -> _RefusedError:
    message = str(error.message or "").splitlines()[0] if error.message else "cannot be parsed"
    line = _line(error.token)
    if unknown := _UNKNOWN_TAG.match(message):
        return _RefusedError("unknown_tag", f"line {line}: there is no tag {unknown[1]} here")
    # The engine quotes the source, and a body has no place in an error.
    return _RefusedError("template_syntax", f"line {line}: {_QUOTED.sub('…', message)[:200]}")


def _render_error(error: Exception, token: Token | None, part: str) -> RenderError:
    token = getattr(error, "token", None) or token
    where = f"line {_line(token)}"
    if isinstance(error, UndefinedError):
        return RenderError("undefined_variable", f"{where}: there is no value for {_name_at(token)}", part)
    if isinstance(error, OutputStreamLimitError):
        return RenderError("rendered_too_large", f"{where}: more than {MAX_OUTPUT} characters", part)
    if isinstance(error, ResourceLimitError):
        return RenderError("template_too_costly", f"{where}: the template does too much work", part)
    if isinstance(error, LiquidInterrupt):
        return RenderError("template_error", f"{where}: break or continue outside of a loop", part)
    # Not the engine's own words: they quote values.
    what = f"the filter {token.value}" if token is not None and token.value in _PLAIN.filters else "a value"
    return RenderError("template_error", f"{where}: {what} cannot be used like this ({type(error).__name__})", part)


def _name_at(token: Token | None) -> str:
    """The variable as the template spells it: the engine's message would show the values of nested look-ups."""
    found = _NAME.match(token.source, token.start_index) if token is not None and token.start_index >= 0 else None
    return found[0][:80] if found else "a variable"


def _line(token: Token | None) -> int:
    return _line_at(token.source, token.start_index) if token is not None and token.start_index >= 0 else 1


def _line_at(source: str, index: int) -> int:
    return source.count("\n", 0, index) + 1
