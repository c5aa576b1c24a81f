"""What an operator sets: in whose name a tenant may send, and the rate limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest

from core.admin import TenantAdmin as CoreTenantAdmin
from core.models import Tenant
from messaging import buckets
from messaging.models import RateLimitBucket, SenderDomain
from messaging.providers.registry import adapters

if TYPE_CHECKING:  # generic for the type checker only
    _DomainForm = forms.ModelForm[SenderDomain]
    _DomainInline = admin.TabularInline[SenderDomain, Tenant]
    _BucketForm = forms.ModelForm[RateLimitBucket]
    _BucketAdmin = admin.ModelAdmin[RateLimitBucket]
else:
    _DomainForm = _BucketForm = forms.ModelForm
    _DomainInline, _BucketAdmin = admin.TabularInline, admin.ModelAdmin


class SenderDomainForm(_DomainForm):
    class Meta:
        model = SenderDomain
        fields = ["domain"]
        help_texts = {"domain": "Exactly this domain, without its subdomains. The provider must have verified it."}

    def clean_domain(self) -> str:
        return str(self.cleaned_data["domain"]).lower()

    def validate_unique(self) -> None:
        """Also the constraint on tenant and domain: an inline form leaves out constraints on its foreign key."""
        super().validate_unique()
        if not self.errors:
            try:
                self.instance.validate_constraints()
            except ValidationError as error:
                self.add_error(None, error)


class SenderDomainInline(_DomainInline):
    model = SenderDomain
    form = SenderDomainForm
    extra = 1


admin.site.unregister(Tenant)


@admin.register(Tenant)
class TenantAdmin(CoreTenantAdmin):
    """The tenant of `core`, with what `messaging` knows of it."""

    inlines = [SenderDomainInline]
    search_fields = [*CoreTenantAdmin.search_fields, "sender_domains__domain"]


class RateLimitBucketForm(_BucketForm):
    """The model's constraints say which combinations are impossible; here, which providers there are."""

    provider = forms.ChoiceField(help_text="The adapter whose requests the bucket limits.")

    class Meta:
        model = RateLimitBucket
        fields = ["provider", "scope", "tenant", "unit", "capacity", "refill_per_second", "reserve"]
        help_texts = {
            "scope": "Global: the limit that the provider sets for all tenants together."
            " Tenant: what one tenant may use of it.",
            "unit": "A global bucket counts requests (a second one may count sends: the provider's daily quota)."
            " A tenant's bucket counts sends.",
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
    list_display = ["provider", "scope", "tenant", "unit", "capacity", "refill_per_second", "reserve", "updated_at"]
    list_filter = ["provider", "scope", "unit"]
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
