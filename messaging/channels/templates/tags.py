"""The tags of templates: an allow-list, in which what is printed becomes text in the one way there is."""

from __future__ import annotations

from typing import Any

from liquid import Environment, Markup, escape
from liquid.builtin.output import Output, OutputNode
from liquid.builtin.tags.cycle_tag import CycleNode, CycleTag
from liquid.token import TOKEN_CONTENT, TOKEN_ILLEGAL, TOKEN_OUTPUT
from liquid.undefined import is_undefined

from messaging.channels.templates.filters import WRITTEN, Rendering, measure
from messaging.channels.templates.text import printed, to_text

#: The tags there are. Left out: include and render (there is nothing to include), liquid and echo (another spelling of
#: the others), doc. The last three are the engine's names for what is not a tag.
TAGS = frozenset(
    {"if", "unless", "case", "for", "break", "continue", "tablerow", "capture", "assign", "cycle", "increment"}
    | {"decrement", "ifchanged", "comment", "#"}
    | {TOKEN_CONTENT, TOKEN_ILLEGAL, TOKEN_OUTPUT}
)


def install(environment: Environment) -> None:
    """Replaces the tags of `environment` by the allow-list."""
    environment.tags = {name: tag for name, tag in environment.tags.items() if name in TAGS}
    environment.add_tag(_PrintTag)
    environment.add_tag(_CycleTag)


def _print(value: object, context: Rendering, buffer: Any) -> int:
    kind = type(value)
    if kind is str:
        return buffer.write(escape(value) if context.autoescape else value)  # type: ignore[no-any-return]
    if kind is Markup:
        return buffer.write(value)  # type: ignore[no-any-return]
    if value is not None and kind not in (bool, int, float):
        context.budget.spend(WRITTEN * measure(value))
    text = printed(value, context.autoescape)
    context.budget.spend(len(text))
    return buffer.write(text)  # type: ignore[no-any-return]


class _Print(OutputNode):
    __slots__ = ()

    def render_to_output(self, context: Any, buffer: Any) -> int:
        return _print(self.expression.evaluate(context), context, buffer)


class _PrintTag(Output):
    node_class = _Print


#: The group whose name is a variable without a value: `{% cycle rows: 'odd', 'even' %}` is a common way to write it.
_NAMELESS = "\0"


class _Cycle(CycleNode):
    """Values that are written alike are one cycle: the library tells them apart as Python does."""

    __slots__ = ()

    def render_to_output(self, context: Any, buffer: Any) -> int:
        group = self.group.evaluate(context) if self.group else ""
        key = _NAMELESS if is_undefined(group) else to_text(group)
        values = [argument.evaluate(context) for argument in self.args]
        if not key:
            context.budget.spend(WRITTEN * measure(values))
            key = to_text(values)
        index = context.cycle(key, len(values))
        return _print(values[index], context, buffer) if index < len(values) else 0


class _CycleTag(CycleTag):
    node_class = _Cycle
