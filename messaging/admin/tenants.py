"""Tenants: the mechanism's, with the domains that each may send from and the way to what it has sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin
from django.core.exceptions import ValidationError
from django.http import HttpRequest
from django.utils.html import format_html_join
from django.utils.safestring import SafeString

from core.admin import TenantAdmin as CoreTenantAdmin
from core.models import DeadLetter, Tenant
from messaging.admin.cells import list_link
from messaging.ledger.gate import close_tenants
from messaging.models import Blast, Send, SenderDomain

if TYPE_CHECKING:  # generic for the type checker only
    _DomainForm = forms.ModelForm[SenderDomain]
    _DomainInline = admin.TabularInline[SenderDomain, Tenant]
else:
    _DomainForm, _DomainInline = forms.ModelForm, admin.TabularInline


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

    def get_fields(self, request: HttpRequest, obj: Tenant | None = None) -> list[Any]:
        return [*CoreTenantAdmin.fields, *(["what_it_sent"] if obj else [])]

    def get_readonly_fields(self, request: HttpRequest, obj: Tenant | None = None) -> list[str]:
        return [*super().get_readonly_fields(request, obj), "what_it_sent"]

    def save_model(self, request: HttpRequest, obj: Tenant, form: Any, change: bool) -> None:
        """When it is saved as inactive, no claim takes a send of it any more: claims that are under way are waited for."""
        if change and "active" in form.changed_data:
            close_tenants([obj.pk])
        super().save_model(request, obj, form, change)

    @admin.display(description="what it sent")
    def what_it_sent(self, tenant: Tenant) -> SafeString:
        models = ((Send, "sends"), (Blast, "blasts"), (DeadLetter, "dead letters"))
        return format_html_join(" · ", "{}", ((list_link(model, text, tenant=tenant.slug),) for model, text in models))
