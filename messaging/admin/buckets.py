"""Rate limits: the provider's, and what a tenant may use of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest

from messaging.ledger import buckets
from messaging.models import RateLimitBucket
from messaging.providers.registry import adapters

if TYPE_CHECKING:  # generic for the type checker only
    _BucketForm = forms.ModelForm[RateLimitBucket]
    _BucketAdmin = admin.ModelAdmin[RateLimitBucket]
else:
    _BucketForm, _BucketAdmin = forms.ModelForm, admin.ModelAdmin


class RateLimitBucketForm(_BucketForm):
    """The model's constraints say which combinations are impossible; here, which providers there are."""

    provider = forms.ChoiceField(help_text="The adapter whose requests the bucket limits.")

    class Meta:
        model = RateLimitBucket
        fields = ["provider", "scope", "tenant", "rail", "unit", "capacity", "refill_per_second", "reserve"]
        help_texts = {
            "scope": "Global: the limit that the provider sets for all tenants together."
            " Tenant: what one tenant may use of it.",
            "unit": "A global bucket counts requests (a second one may count sends: the provider's daily quota)."
            " A tenant's bucket counts sends.",
            "rail": "Of a tenant's bucket: the rail that it is for. Empty: for both, together."
            " Without any row, a tenant may use all that is free on the marketing rail, and half of what the provider takes on"
            " the transactional rail.",
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "provider" in self.fields:  # absent for who may only look
            # A row outlives its adapter: it stays readable, and can be corrected or deleted.
            names = {adapter.name for adapter in adapters().values()} | {self.instance.provider} - {""}
            field = self.fields["provider"]
            assert isinstance(field, forms.ChoiceField)
            field.choices = [(name, name) for name in sorted(names)]


@admin.register(RateLimitBucket)
class RateLimitBucketAdmin(_BucketAdmin):
    """Acts within seconds, in all processes. How full a bucket is at the moment is not here but in the metrics."""

    form = RateLimitBucketForm
    list_display = [
        "provider",
        "scope",
        "tenant",
        "rail",
        "unit",
        "capacity",
        "refill_per_second",
        "reserve",
        "updated_at",
    ]
    list_filter = ["provider", "scope", "rail", "unit"]
    list_select_related = ["tenant"]
    search_fields = ["provider", "tenant__slug", "tenant__name"]
    autocomplete_fields = ["tenant"]
    readonly_fields = ["updated_at"]

    def save_model(self, request: HttpRequest, obj: RateLimitBucket, form: Any, change: bool) -> None:
        super().save_model(request, obj, form, change)
        self._changed(request)

    def delete_model(self, request: HttpRequest, obj: RateLimitBucket) -> None:
        super().delete_model(request, obj)
        self._changed(request)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[RateLimitBucket]) -> None:
        super().delete_queryset(request, queryset)
        self._changed(request)

    def _changed(self, request: HttpRequest) -> None:
        buckets.forget()
        for name in sorted({adapter.name for adapter in adapters().values()}):
            if buckets.limits_of(name) is None:
                self.message_user(
                    request,
                    f"{name} has no global bucket that counts requests: nothing is sent through it, and submits are"
                    " refused until there is one.",
                    messages.WARNING,
                )
        buckets.forget()  # read within this transaction: whether it commits is not known yet
