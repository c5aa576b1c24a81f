"""Batches: each one request to a provider, what was in it, what came back."""

from __future__ import annotations

from collections.abc import Mapping

from django.contrib import admin
from django.db.models import F, Func, IntegerField, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from core.models import ProcessedJob
from messaging.admin.cells import NONE, at, badge, duration, moment, row_link
from messaging.admin.filters import choice
from messaging.admin.keyset import KeysetChangeList, Page
from messaging.admin.readonly import ReadOnlyAdmin
from messaging.admin.search import parse_search
from messaging.domain.lifecycle import OPEN_BATCH, BatchState
from messaging.domain.rails import Rail
from messaging.models import Batch, Send


@admin.register(Batch)
class BatchAdmin(ReadOnlyAdmin[Batch]):
    columns = (
        *("id", "provider", "channel", "rail", "state", "idempotency_key", "attempts", "http_status"),
        *("error_code", "error_detail", "rendered_at", "created_at", "finished_at"),
    )
    list_display = (
        *("key", "standing", "created", "rail", "size"),
        *("took", "attempts", "http_status", "error", "provider"),
    )
    list_display_links = None
    list_filter = (choice("state", BatchState), choice("rail", Rail))
    search_fields = ("id",)
    search_help_text = "The id of a batch or of a send"
    fieldsets = (
        (None, {"fields": ("id", "provider", "channel", "rail", "idempotency_key")}),
        ("What came back", {"fields": ("standing", "attempts", "http_status", "error", "error_detail", "lease")}),
        ("When", {"fields": ("created", "rendered", "finished", "took")}),
        ("What was in it", {"fields": ("its_sends",)}),
    )
    readonly_fields = ("standing", "error", "lease", "created", "rendered", "finished", "took", "its_sends")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Batch]:
        """Their number in place of a hundred ids for each row."""
        size = Func(F("send_ids"), function="cardinality", output_field=IntegerField())
        return super().get_queryset(request).annotate(size_found=size)

    def indexed(self, chosen: Mapping[str, str]) -> bool:
        """Those that are not through, and those that wait for a decision, have an index of their own."""
        return not chosen or (chosen.keys() == {"state"} and chosen["state"] in {*OPEN_BATCH, BatchState.AMBIGUOUS})

    def page(self, request: HttpRequest, changelist: KeysetChangeList, before: object) -> Page[Batch]:
        if changelist.query:
            return Page(self._by_id(changelist, changelist.query))
        return super().page(request, changelist, before)

    def _by_id(self, changelist: KeysetChangeList, text: str) -> list[Batch]:
        """The batch, or the one that holds the send with this id, or held it last."""
        pk = parse_search(text).id
        if pk is None:
            return []
        rows: QuerySet[Batch] = changelist.root_queryset
        of_send = Send.objects.filter(pk=pk).values("batch_id")
        return list(rows.filter(pk=pk)) or list(rows.filter(pk__in=of_send))

    # ------------------------------------------------------------------------------------------------ cells

    created = at("created_at", "created")
    rendered = at("rendered_at", "rendered")
    finished = at("finished_at", "finished")

    @admin.display(description="id")
    def key(self, batch: Batch) -> SafeString:
        return row_link(Batch, batch.pk)

    @admin.display(description="state")
    def standing(self, batch: Batch) -> SafeString:
        return badge(batch.state)

    @admin.display(description="sends")
    def size(self, batch: Batch) -> int:
        return batch.size_found  # type: ignore[attr-defined,no-any-return]

    @admin.display(description="error")
    def error(self, batch: Batch) -> str:
        return batch.error_code or NONE

    @admin.display(description="took")
    def took(self, batch: Batch) -> str:
        return duration(batch.finished_at - batch.created_at if batch.finished_at else None)

    @admin.display(description="lease")
    def lease(self, batch: Batch) -> SafeString | str:
        job = ProcessedJob.objects.filter(pk=f"batch:{batch.pk}").first()
        if job is None:
            return NONE
        ends = "done" if job.done_at else format_html("until {}", moment(job.lease_until))
        return format_html("{}, fence {}", ends, job.fence)

    @admin.display(description="sends")
    def its_sends(self, batch: Batch) -> SafeString:
        """In the order of the request; at most as many as a provider takes at once."""
        ids = Batch.objects.values_list("send_ids", flat=True).get(pk=batch.pk)
        columns = ("pk", "tenant__slug", "category", "status", "error_code")
        found = {pk: rest for pk, *rest in Send.objects.filter(pk__in=ids).values_list(*columns)}
        rows = (
            (row_link(Send, pk), slug, category, badge(status), code or "")
            for pk in ids
            if pk in found
            for slug, category, status, code in [found[pk]]
        )
        line = "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>"
        return format_html('<table class="ledger">{}</table>', format_html_join("", line, rows))
