"""Rendering a compiled source: the engine's state of one render, its budget, and the errors that may come of it."""

from __future__ import annotations

import functools
import logging
import re
import traceback
from collections.abc import Collection, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from liquid import StrictDefaultUndefined
from liquid.ast import BlockNode
from liquid.builtin.expressions.logical import ContainsExpression, is_truthy
from liquid.builtin.expressions.primitive import RangeLiteral
from liquid.context import RenderContext
from liquid.exceptions import (
    LiquidError,
    LiquidInterrupt,
    LiquidTypeError,
    OutputStreamLimitError,
    ResourceLimitError,
    UndefinedError,
)
from liquid.limits import to_int
from liquid.template import BoundTemplate
from liquid.token import Token
from liquid.undefined import UNDEFINED
from liquid.utils import ReadOnlyChainMap

from messaging.channels.templates.filters import ELEMENT, FILTER_NAMES, Budget, BudgetSpentError, measure
from messaging.channels.templates.lists import same
from messaging.channels.templates.text import to_text

log = logging.getLogger(__name__)

BUDGET = 2_000_000  # units a render may spend: about 5,000 outputs, at worst some 40 ms
STEP = 64  # units: one node or expression
MAX_RANGE = 10_000  # numbers in (a..b)
MAX_OUTPUT = 1_000_000  # characters of a rendered part, or of a capture

#: A path as far as it is spelled out, from where it starts in the source.
_NAME = re.compile(r"[\w-]+\??(?:\.[\w-]+\??)*")


class RenderError(Exception):
    """A template that cannot be rendered with these values. `code` is stable; `detail` holds no value of a variable.

    `part` is where: subject, html, text or headers. The code `render_bug` says that the fault is ours.
    """

    def __init__(self, code: str, detail: str, part: str) -> None:
        super().__init__(f"{part}: {detail}")
        self.code = code
        self.detail = detail
        self.part = part


class Part:
    """One compiled source. Immutable; shared by threads. `held`: the memory it takes, in bytes."""

    __slots__ = ("held", "names", "nodes", "template")

    def __init__(self, template: BoundTemplate, names: frozenset[str], held: int) -> None:
        self.template = template
        self.nodes = template.nodes
        self.names = names
        self.held = held

    def render(self, variables: Mapping[str, object], now: datetime, budget: Budget, part: str) -> str:
        """Raises RenderError, whatever the template does: a fault of ours costs this one rendering, and is logged."""
        context = Context(self.template, variables, now, budget)
        output = Output(budget)
        token: Token | None = None
        try:
            for node in self.nodes:
                token = node.token
                node.render(context, output)  # type: ignore[arg-type]  # only `write` is ever called
        except MemoryError:
            raise
        except (LiquidError, LiquidInterrupt) as error:
            raise _render_error(error, token, part) from None
        except Exception as error:  # noqa: BLE001
            raise _bug(error, token, part) from None
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
    """A range that is never longer than MAX_RANGE: `contains`, `reversed` and filters go through all of it.

    One that runs downwards is empty, and written as it is: 3..1.
    """

    __slots__ = ()

    def _make_range(self, start: Any, stop: Any) -> range:
        return range(_whole(start), _whole(stop) + 1)

    def evaluate(self, context: Any) -> range:
        found: range = super().evaluate(context)
        if found.stop - found.start > MAX_RANGE:
            raise BudgetSpentError
        context.budget.spend(ELEMENT * len(found))
        return found


def _whole(value: Any) -> int:
    try:
        return to_int(value)
    except (ValueError, TypeError):
        return 0


class Contains(ContainsExpression):
    """Text holds what a value is written as; a list holds an equal element; an object holds a key."""

    __slots__ = ()

    def evaluate(self, context: Any) -> bool:
        left, right = self.left.evaluate(context), self.right.evaluate(context)
        if not is_truthy(left) or not is_truthy(right):
            return False
        if isinstance(left, str):
            return to_text(right) in left
        if isinstance(left, Mapping):
            return isinstance(right, str) and right in left
        if isinstance(left, Collection):
            return any(same(item, right) for item in left)
        raise LiquidTypeError("contains needs text or a list", token=self.token)


def _bug(error: Exception, token: Token | None, part: str) -> RenderError:
    """What is logged is where our code stood and what kind of exception it was: its words may quote a value."""
    line, filter_name = line_of(token), _filter_at(token)
    frames = [
        f"{Path(frame.filename).name}:{frame.lineno} {frame.name}"
        for frame in traceback.extract_tb(error.__traceback__)
    ]
    log.error(
        "render_bug",
        extra={
            "type": type(error).__name__,
            "place": " < ".join(frames[:-4:-1]),
            "part": part,
            "line": line,
            "filter": filter_name,
        },
    )
    return RenderError("render_bug", f"line {line}: cannot be rendered, by a fault that is not the template's", part)


def _render_error(error: Exception, token: Token | None, part: str) -> RenderError:
    token = getattr(error, "token", None) or token
    where = f"line {line_of(token)}"
    if isinstance(error, UndefinedError):
        return RenderError("undefined_variable", f"{where}: there is no value for {_name_at(token)}", part)
    if isinstance(error, OutputStreamLimitError):
        return RenderError("rendered_too_large", f"{where}: more than {MAX_OUTPUT} characters", part)
    if isinstance(error, ResourceLimitError):
        return RenderError("template_too_costly", f"{where}: the template does too much work", part)
    if isinstance(error, LiquidInterrupt):
        return RenderError("template_error", f"{where}: break or continue outside of a loop", part)
    # Not the engine's own words: they quote values.
    name = _filter_at(token)
    what = f"the filter {name}" if name else "a value"
    return RenderError("template_error", f"{where}: {what} cannot be used like this ({type(error).__name__})", part)


def _filter_at(token: Token | None) -> str | None:
    return token.value if token is not None and token.value in FILTER_NAMES else None


def _name_at(token: Token | None) -> str:
    """The variable as the template spells it: the engine's message would show the values of nested look-ups."""
    found = _NAME.match(token.source, token.start_index) if token is not None and token.start_index >= 0 else None
    return found[0][:80] if found else "a variable"


def line_of(token: Token | None) -> int:
    return line_at(token.source, token.start_index) if token is not None and token.start_index >= 0 else 1


def line_at(source: str, index: int) -> int:
    return source.count("\n", 0, index) + 1
