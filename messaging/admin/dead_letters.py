"""Dead letters: what failed for good, and why."""

from __future__ import annotations

from collections.abc import Mapping

from django.contrib import admin
from django.http import HttpRequest
from django.utils.safestring import SafeString

from core.broker.dead_letters import WHAT_TO_DO
from core.models import DeadLetter, Tenant
from messaging.admin.cells import NONE, at, row_link
from messaging.admin.filters import ReasonFilter, TenantFilter
from messaging.admin.keyset import KeysetChangeList, Page
from messaging.admin.readonly import ReadOnlyAdmin
from messaging.admin.search import parse_search
from messaging.models import Batch, Send


@admin.register(DeadLetter)
class DeadLetterAdmin(ReadOnlyAdmin[DeadLetter]):
    """The model is the mechanism's, which knows nothing of sends: the links are made here."""

    columns = (
        *("id", "channel", "send_id", "batch_id", "tenant__slug", "reason", "detail", "redriven", "created_at"),
        *("times", "last_at", "traceback"),
    )
    list_display = ("key", "reason", "created", "whose", "send", "in_batch", "redriven", "channel", "times")
    list_display_links = None
    list_filter = (ReasonFilter, TenantFilter)
    list_select_related = ("tenant",)
    search_fields = ("send_id",)
    search_help_text = "The id of a send"
    fields = (
        *("id", "whose", "channel", "reason", "detail", "to_do", "send", "in_batch", "redriven", "created"),
        *("times", "last", "traceback"),
    )
    readonly_fields = ("whose", "to_do", "send", "in_batch", "created", "last")

    def indexed(self, chosen: Mapping[str, str]) -> bool:
        return chosen.keys() <= {"tenant"}

    def page(self, request: HttpRequest, changelist: KeysetChangeList, before: object) -> Page[DeadLetter]:
        if not changelist.query:
            return super().page(request, changelist, before)
        send_id = parse_search(changelist.query).id
        return Page(list(changelist.queryset.filter(send_id=send_id)) if send_id else [])

    created = at("created_at", "created")
    last = at("last_at", "last")

    @admin.display(description="number")
    def key(self, letter: DeadLetter) -> SafeString:
        return row_link(DeadLetter, letter.pk)

    @admin.display(description="tenant")
    def whose(self, letter: DeadLetter) -> SafeString | str:
        return row_link(Tenant, letter.tenant_id, letter.tenant.slug) if letter.tenant else NONE

    @admin.display(description="what to do")
    def to_do(self, letter: DeadLetter) -> str:
        if letter.send_id is None:
            return WHAT_TO_DO
        return f"When the cause is gone: python manage.py redrive {letter.send_id} --yes"

    @admin.display(description="send")
    def send(self, letter: DeadLetter) -> SafeString | str:
        return row_link(Send, letter.send_id) if letter.send_id else NONE

    @admin.display(description="batch")
    def in_batch(self, letter: DeadLetter) -> SafeString | str:
        return row_link(Batch, letter.batch_id) if letter.batch_id else NONE
