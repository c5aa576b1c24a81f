"""Blasts: how far each is, what holds it up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.contrib import admin
from django.db.models import Sum
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from core.models import Tenant
from messaging.admin.cells import NONE, at, badge, list_link, moment, row_link
from messaging.admin.filters import TenantFilter, choice
from messaging.admin.keyset import KeysetChangeList, Page
from messaging.admin.readonly import ReadOnlyAdmin
from messaging.domain.lifecycle import OPEN, BlastState, SendStatus
from messaging.domain.rails import Category
from messaging.ledger.counts import BlastFacts, blast_facts
from messaging.models import Blast, BlastCount, Send


@admin.register(Blast)
class BlastAdmin(ReadOnlyAdmin[Blast]):
    columns = (
        *("id", "tenant__slug", "name", "channel", "category", "rail", "state", "reason", "isolated"),
        *("hold_code", "hold_detail", "held_until", "rows_read", "planned", "duplicates", "rejected"),
        *("not_before", "expires_at", "created_at", "launched_at", "finished_at"),
    )
    list_display = ("called", "standing", "progress", "recipients", "whose", "category", "created", "finished")
    list_display_links = None
    list_filter = (choice("state", BlastState), choice("category", Category), TenantFilter)
    list_select_related = ("tenant",)
    fieldsets = (
        (None, {"fields": ("id", "name", "whose", "channel", "category", "rail")}),
        ("How it stands", {"fields": ("standing", "held", "alone", "counts", "pace", "its_sends")}),
        ("Recipients", {"fields": ("rows_read", "planned", "duplicates", "rejected")}),
        ("When", {"fields": ("created", "waits_until", "launched", "finished", "expires")}),
    )
    readonly_fields = (
        *("whose", "standing", "held", "alone", "counts", "pace", "its_sends"),
        *("created", "waits_until", "launched", "finished", "expires"),
    )

    def indexed(self, chosen: Mapping[str, str]) -> bool:
        return chosen.keys() <= {"tenant"}

    def page(self, request: HttpRequest, changelist: KeysetChangeList, before: object) -> Page[Blast]:
        """With the counts of the page's blasts, by one statement; they lag behind by half a second."""
        page = super().page(request, changelist, before)
        ids = [blast.pk for blast in page.rows]
        counts: dict[Any, dict[str, int]] = {pk: {} for pk in ids}
        for pk, status, n in (
            BlastCount.objects.filter(blast_id__in=ids).values_list("blast_id", "status").annotate(Sum("n"))
        ):
            counts[pk][status] = n
        for blast in page.rows:
            blast.found_counts = counts[blast.pk]  # type: ignore[attr-defined]  # for `progress`, of this very page
        return page

    # ------------------------------------------------------------------------------------------------ cells

    created = at("created_at", "created")
    waits_until = at("not_before", "not before")
    launched = at("launched_at", "launched")
    finished = at("finished_at", "finished")
    expires = at("expires_at", "expires")

    @admin.display(description="blast")
    def called(self, blast: Blast) -> SafeString:
        return row_link(Blast, blast.pk, blast.name or None)

    @admin.display(description="tenant")
    def whose(self, blast: Blast) -> SafeString:
        return row_link(Tenant, blast.tenant_id, blast.tenant.slug)

    @admin.display(description="state")
    def standing(self, blast: Blast) -> SafeString:
        if blast.reason:
            return format_html("{} {}", badge(blast.state), blast.reason)
        if not blast.hold_code:
            return badge(blast.state)
        return format_html("{} {}", badge(blast.state), badge("held", blast.hold_code))

    @admin.display(description="held because of")
    def held(self, blast: Blast) -> SafeString | str:
        if not blast.hold_code:
            return NONE
        detail = f"{blast.hold_code}: {blast.hold_detail}" if blast.hold_detail else blast.hold_code
        return format_html("{}; tried again at {}", detail, moment(blast.held_until))

    @admin.display(description="in batches of its own")
    def alone(self, blast: Blast) -> str:
        return "yes, so that a refusal names it" if blast.isolated else NONE

    @admin.display(description="done")
    def progress(self, blast: Blast) -> SafeString | str:
        counts: dict[str, int] = blast.found_counts  # type: ignore[attr-defined]
        done = blast.planned - sum(max(0, counts.get(status, 0)) for status in OPEN)
        return _bar(done, blast.planned) if counts else NONE

    @admin.display(description="recipients")
    def recipients(self, blast: Blast) -> str:
        return f"{blast.planned:,}" + (f", {blast.rejected:,} rejected" if blast.rejected else "")

    @admin.display(description="sends by status")
    def counts(self, blast: Blast) -> SafeString | str:
        facts = self._facts(blast)
        rows = [
            (badge(status), list_link(Send, f"{n:,}", blast=blast.pk, status=status))
            for status, n in facts.counts.items()
            if n or status is SendStatus.SENT
        ]
        table = format_html_join("", '<tr><td>{}</td><td class="number">{}</td></tr>', rows)
        return format_html('<table class="ledger">{}</table>', table)

    @admin.display(description="pace")
    def pace(self, blast: Blast) -> str:
        facts = self._facts(blast)
        if not facts.rate or not facts.open:
            return f"{facts.rate:,.1f} accepted a second" if facts.rate else NONE
        return f"{facts.rate:,.1f} accepted a second; at this pace another {facts.open / facts.rate / 60:,.0f} minutes"

    @admin.display(description="its sends")
    def its_sends(self, blast: Blast) -> SafeString:
        return list_link(Send, "Sends of this blast", blast=blast.pk)

    def _facts(self, blast: Blast) -> BlastFacts:
        """Read once a page."""
        if not hasattr(blast, "found_facts"):
            facts = blast_facts(blast.tenant_id, blast.pk)
            assert facts is not None, "its row was read a moment ago, and blasts are never deleted"
            blast.found_facts = facts  # type: ignore[attr-defined]
        return blast.found_facts  # type: ignore[no-any-return,attr-defined]


def _bar(done: int, total: int) -> SafeString:
    share = f"{done / total:.0%}" if total else NONE
    return format_html('<progress value="{}" max="{}">{}</progress>{}', done, max(1, total), share, share)
