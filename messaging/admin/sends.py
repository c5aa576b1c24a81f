"""The ledger, as far as it is not sealed: what became of which send, never to whom it went."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, cast
from uuid import UUID

from django.contrib import admin, messages
from django.http import HttpRequest
from django.utils.safestring import SafeString

from core.models import DeadLetter, Tenant
from messaging.admin.cells import NONE, at, badge, duration, row_link, short
from messaging.admin.filters import BlastFilter, TenantFilter, choice
from messaging.admin.keyset import KeysetChangeList, Page
from messaging.admin.readonly import ReadOnlyAdmin
from messaging.admin.search import Sought, parse_search
from messaging.domain.lifecycle import SendStatus
from messaging.domain.rails import Category
from messaging.ledger.listing import SendFilter, page_of
from messaging.models import Batch, Blast, Send


@admin.register(Send)
class SendAdmin(ReadOnlyAdmin[Send]):
    """Found by id, by tenant, blast and status, or by the exact address of the recipient within a tenant. An address is
    never shown: whoever looks for it knows it."""

    columns = (
        *("id", "tenant__slug", "blast__name", "channel", "category", "rail", "status", "attempts"),
        *("not_before", "expires_at", "batch_id", "provider_id", "error_code", "error_detail"),
        *("created_at", "accepted_at"),
    )
    list_display = (
        *("key", "state", "created", "whose", "category"),
        *("of_blast", "in_batch", "attempts", "error", "after"),
    )
    list_display_links = None  # the key is one
    list_filter = (
        choice("status", SendStatus),
        choice("category", Category),
        TenantFilter,
        BlastFilter,
    )
    list_select_related = ("tenant", "blast")
    search_fields = ("id",)
    search_help_text = (
        "The id of a send or a batch; or a tenant and a recipient's exact address, as in: acme ada@example.org"
    )
    fieldsets = (
        (None, {"fields": ("id", "whose", "of_blast", "channel", "category", "rail")}),
        (
            "What became of it",
            {"fields": ("state", "attempts", "in_batch", "provider_id", "error", "error_detail", "letter")},
        ),
        ("When", {"fields": ("created", "waits_until", "expires", "accepted")}),
    )
    readonly_fields = (
        "whose",
        "of_blast",
        "state",
        "in_batch",
        "error",
        "letter",
        "created",
        "waits_until",
        "expires",
        "accepted",
    )

    # ------------------------------------------------------------------------------------------------ which ones

    def page(self, request: HttpRequest, changelist: KeysetChangeList, before: object) -> Page[Send]:
        sought = parse_search(changelist.query)
        if sought.problem:
            self.message_user(request, sought.problem, messages.WARNING)
            return Page([])
        if sought.id is not None:
            return Page(self._by_id(changelist, sought.id))
        chosen = changelist.chosen()
        if (tenant := self._tenant(request, chosen, sought)) is None:
            return Page([]) if sought.slug or sought.fingerprint else super().page(request, changelist, before)
        values = {name: spec.value() for name, spec in chosen.items()}
        found = page_of(
            SendFilter(
                tenant=tenant,
                status=SendStatus(values["status"]) if "status" in values else None,
                category=Category(values["category"]) if "category" in values else None,
                blast=UUID(values["blast"]) if "blast" in values else None,
                fingerprint=sought.fingerprint,
            ),
            before=cast("UUID | None", before),
            limit=self.list_per_page,
        )
        if found is None:  # the tenant's, but not this blast
            return Page([])
        rows = self._in_order(changelist, [row["id"] for row in found.rows])
        return Page(rows, found.position, cut=found.position is not None and len(rows) < self.list_per_page)

    def _tenant(self, request: HttpRequest, chosen: dict[str, Any], sought: Sought) -> int | None:
        """Within whose sends to look; None: within all, or there is nothing to look for, and that is said."""
        if sought.slug:
            found = Tenant.objects.filter(slug=sought.slug).values_list("pk", flat=True).first()
            if found is None:
                self.message_user(request, f"There is no tenant “{sought.slug}”.", messages.WARNING)
            return found
        if "tenant" in chosen:
            return cast("int | None", chosen["tenant"].tenant_id)
        if "blast" in chosen:
            pk = UUID(chosen["blast"].value())
            return Blast.objects.filter(pk=pk).values_list("tenant_id", flat=True).first()
        if sought.fingerprint:
            self.message_user(
                request,
                "An address is looked for within a tenant: choose one, or write its short name before the address.",
                messages.WARNING,
            )
        return None

    def _by_id(self, changelist: KeysetChangeList, pk: UUID) -> list[Send]:
        """The send, or those of the batch with this id."""
        if found := self._in_order(changelist, [pk]):
            return found
        batch = Batch.objects.filter(pk=pk).values_list("send_ids", flat=True).first()
        return self._in_order(changelist, batch or [])

    def _in_order(self, changelist: KeysetChangeList, ids: Collection[UUID]) -> list[Send]:
        rows = changelist.root_queryset.filter(pk__in=ids) if ids else []
        found = {row.pk: row for row in rows}
        return [found[pk] for pk in ids if pk in found]

    # ------------------------------------------------------------------------------------------------ cells

    created = at("created_at", "created")
    waits_until = at("not_before", "not before")
    expires = at("expires_at", "expires")
    accepted = at("accepted_at", "accepted")

    @admin.display(description="accepted after")
    def after(self, send: Send) -> str:
        return duration(send.accepted_at - send.created_at if send.accepted_at else None)

    @admin.display(description="id")
    def key(self, send: Send) -> SafeString:
        return row_link(Send, send.pk)

    @admin.display(description="tenant")
    def whose(self, send: Send) -> SafeString:
        return row_link(Tenant, send.tenant_id, send.tenant.slug)

    @admin.display(description="status")
    def state(self, send: Send) -> SafeString:
        return badge(send.status)

    @admin.display(description="blast")
    def of_blast(self, send: Send) -> SafeString | str:
        return row_link(Blast, send.blast_id, send.blast.name or short(send.blast_id)) if send.blast else NONE

    @admin.display(description="batch")
    def in_batch(self, send: Send) -> SafeString | str:
        return row_link(Batch, send.batch_id) if send.batch_id else NONE

    @admin.display(description="error")
    def error(self, send: Send) -> str:
        return send.error_code or NONE

    @admin.display(description="dead letter")
    def letter(self, send: Send) -> SafeString | str:
        found = DeadLetter.objects.filter(send_id=send.pk).values_list("pk", "reason").first()
        return row_link(DeadLetter, *found) if found else NONE
