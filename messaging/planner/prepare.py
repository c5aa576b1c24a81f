"""Do a template and a list of recipients belong together? Answered from its first rows, before anything is stored."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import datetime

from messaging.channels.email import Template
from messaging.domain.errors import InvalidInput
from messaging.planner.encode import Encoder
from messaging.planner.rows import Row
from messaging.planner.sources import Source

#: Rows looked at: enough to see that the list and the template belong together.
_SAMPLE_ROWS = 100


def prepare(template: Template, source: Source, now: datetime) -> tuple[Encoder, Iterator[Row]]:
    """What `fill` needs. Raises InvalidInput if the list is empty, or lacks a variable, or the template works with none
    of its first rows."""
    if source.names is not None and (missing := sorted(template.names() - source.names)):
        names = ", ".join(missing[:5]) + (" …" if len(missing) > 5 else "")
        raise InvalidInput(
            "undefined_variable",
            f"The template uses {names}, which the list of recipients does not have. Add it to the list (in a CSV file a"
            " column of that name, in the same case), or correct the template.",
            field="variables",
        )
    encoder = Encoder(template, now)
    rows = source.rows(template.names())
    sample = list(itertools.islice(rows, _SAMPLE_ROWS))
    if not sample:
        raise source.nothing()
    encoder.check_sample(sample)
    return encoder, itertools.chain(sample, rows)
