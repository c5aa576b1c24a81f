"""How much memory a compiled source holds: counted from what its tree is made of, some 3 % of what compiling it costs.

A `{{ a }}` of seven characters is a node, two expressions, their tokens and lists: some 600 bytes. What each kind takes
was measured (tests/messaging/ledger/test_contents.py measures it again).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from liquid.ast import Node
from liquid.builtin.expressions import FilteredExpression, Path
from liquid.context import RenderContext
from liquid.expression import Expression

_NODE = 230
_EXPRESSION = 160
_SEGMENT = 80  # of a path
_FILTER = 400
_NAME = 500  # that a node gives to a value


def held_by(source: str, nodes: Iterable[Node], context: RenderContext) -> int:
    """Bytes. The source counts twice: the text between its tags is copied."""
    return 2 * sys.getsizeof(source) + sum(_of_node(node, context) for node in nodes)


def _of_node(node: Node, context: RenderContext) -> int:
    size = _NODE + sum(map(_of_expression, node.expressions()))
    size += _NAME * (len([*node.template_scope()]) + len([*node.block_scope()]))
    return size + sum(_of_node(child, context) for child in node.children(context, include_partials=False))


def _of_expression(expression: Expression) -> int:
    size = _EXPRESSION + sum(map(_of_expression, expression.children()))
    if isinstance(expression, Path):
        size += _SEGMENT * len(expression.path)
    elif isinstance(expression, FilteredExpression):
        size += _FILTER * len(expression.filters or ())
    return size
