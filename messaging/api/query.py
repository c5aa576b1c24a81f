"""The query parameters of lists."""

from __future__ import annotations

import re
from collections.abc import Mapping

from django.http import QueryDict

from messaging.domain.errors import InvalidInput

DEFAULT_LIMIT, MAX_LIMIT = 50, 100

#: An id as it is answered. Python's own parser takes braces, prefixes and no hyphens too.
UUID_FORM = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def parameters(query: QueryDict, known: tuple[str, ...]) -> dict[str, str]:
    """The query's parameters. One that is not known is a typing error, and better told than passed over."""
    given: dict[str, str] = {}
    for name, values in query.lists():
        if name not in known:
            named = re.sub(r"[^A-Za-z0-9_.-]", "?", name[:60]) or "(empty)"
            raise InvalidInput(
                "unknown_parameter", f"There is no parameter {named}. Known: {', '.join(known)}.", field=named
            )
        if len(values) != 1:
            raise InvalidInput("repeated_parameter", f"Give {name} once.", field=name)
        given[name] = str(values[0])
    return given


def page_limit(given: Mapping[str, str]) -> int:
    """The page's size that `given` asks for, or the usual one."""
    raw = given.get("limit", str(DEFAULT_LIMIT))
    if re.fullmatch(r"[0-9]{1,3}", raw, re.ASCII) and 1 <= int(raw) <= MAX_LIMIT:
        return int(raw)
    raise InvalidInput("invalid_limit", f"limit must be a whole number from 1 to {MAX_LIMIT}.", field="limit")
