"""What stands in the cells: links between the tables, states in colour, times, keys cut short."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.contrib import admin
from django.db.models import Model
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

NONE = "–"


def badge(value: str, note: str = "") -> SafeString:
    """A state: its colour by the style sheet, its name as text."""
    return format_html('<span class="state state-{}" title="{}">{}</span>', value, note, value.replace("_", " "))


def row_link(model: type[Model], pk: object, text: object = None) -> SafeString:
    """To a row's page."""
    meta = model._meta
    url = reverse(f"admin:{meta.app_label}_{meta.model_name}_change", args=[pk])
    return format_html('<a href="{}" title="{}">{}</a>', url, pk, short(pk) if text is None else text)


def list_link(model: type[Model], text: str, **chosen: object) -> SafeString:
    """To a list, narrowed down."""
    meta = model._meta
    url = reverse(f"admin:{meta.app_label}_{meta.model_name}_changelist")
    return format_html('<a href="{}?{}">{}</a>', url, urlencode(chosen), text)


def short(pk: object) -> SafeString:
    """The end of an id: its beginning is the time, which neighbours share."""
    text = f"…{pk.hex[-8:]}" if isinstance(pk, UUID) else str(pk)
    return format_html('<code title="{}">{}</code>', pk, text)


def moment(at: datetime | None) -> SafeString | str:
    """To the second in a list; to the microsecond where the pointer rests."""
    if at is None:
        return NONE
    return format_html(
        '<time datetime="{}" title="{}">{}</time>',
        at.isoformat(),
        at.strftime("%Y-%m-%d %H:%M:%S.%f %Z"),
        timezone.localtime(at).strftime("%Y-%m-%d %H:%M:%S"),
    )


def at(field: str, description: str) -> Callable[[Any, Any], SafeString | str]:
    """A column for a moment of the row."""

    @admin.display(description=description)
    def column(self: Any, row: Any) -> SafeString | str:
        return moment(getattr(row, field))

    return column


def duration(took: timedelta | None) -> str:
    if took is None:
        return NONE
    seconds = took.total_seconds()
    if seconds < 10:
        return f"{seconds * 1000:,.0f} ms"
    return f"{seconds:,.0f} s" if seconds < 600 else f"{seconds / 60:,.0f} min"
