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
from messaging.admin.categories import CategoriesField, listed
from messaging.admin.cells import list_link
from messaging.ledger.claim_gate import close_tenants
from messaging.models import Blast, Send, SenderDomain, TenantAllowance
from messaging.models.allowance import MAX_PRIORITY_BLAST
from messaging.services.allowances import allowance_of

if TYPE_CHECKING:  # generic for the type checker only
    _DomainForm = forms.ModelForm[SenderDomain]
    _TenantForm = forms.ModelForm[Tenant]
    _DomainInline = admin.TabularInline[SenderDomain, Tenant]
else:
    _DomainForm, _TenantForm, _DomainInline = forms.ModelForm, forms.ModelForm, admin.TabularInline


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


class TenantForm(_TenantForm):
    """The tenant, with its allowance: a row of its own, which the mechanism knows nothing of."""

    ALLOWANCE = ("categories", "blast_categories", "max_priority_blast")

    categories = CategoriesField("What its sends may be. None ticked: any.")
    blast_categories = CategoriesField(
        "What a whole blast of it may be. None ticked: marketing. Anything else goes before the marketing of all tenants."
    )
    max_priority_blast = forms.IntegerField(
        required=False,
        min_value=0,
        max_value=2**31 - 1,
        label="Largest priority blast",
        help_text=f"Recipients that a blast may have which is not marketing. Empty: {MAX_PRIORITY_BLAST:,}.",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        stored = TenantAllowance.objects.filter(tenant=self.instance.pk).first() or TenantAllowance()
        for name in self.ALLOWANCE:
            self.initial.setdefault(name, getattr(stored, name))

    def keep_allowance(self, tenant: Tenant) -> None:
        given = {name: self.cleaned_data[name] for name in self.ALLOWANCE}
        if given["max_priority_blast"] is None:
            given["max_priority_blast"] = MAX_PRIORITY_BLAST
        TenantAllowance.objects.update_or_create(tenant=tenant, defaults=given)


admin.site.unregister(Tenant)


@admin.register(Tenant)
class TenantAdmin(CoreTenantAdmin):
    """The tenant of `core`, with what `messaging` knows of it."""

    form = TenantForm
    inlines = [SenderDomainInline]
    search_fields = [*CoreTenantAdmin.search_fields, "sender_domains__domain"]

    def get_fields(self, request: HttpRequest, obj: Tenant | None = None) -> list[Any]:
        shown = self.has_change_permission(request, obj) or not obj
        allowance = TenantForm.ALLOWANCE if shown else ("may_send", "may_blast")
        return [*CoreTenantAdmin.fields, *allowance, *(["what_it_sent"] if obj else [])]

    def get_readonly_fields(self, request: HttpRequest, obj: Tenant | None = None) -> list[str]:
        return [*super().get_readonly_fields(request, obj), "may_send", "may_blast", "what_it_sent"]

    @admin.display(description="categories")
    def may_send(self, tenant: Tenant) -> str:
        return listed(allowance_of(tenant.pk).categories)

    @admin.display(description="blast categories")
    def may_blast(self, tenant: Tenant) -> str:
        return listed(allowance_of(tenant.pk).blast_categories)

    def save_model(self, request: HttpRequest, obj: Tenant, form: Any, change: bool) -> None:
        """When it is saved as inactive, no claim takes a send of it any more: claims that are under way are waited for."""
        if change and "active" in form.changed_data:
            close_tenants([obj.pk], patient=True)
        super().save_model(request, obj, form, change)
        form.keep_allowance(obj)

    @admin.display(description="what it sent")
    def what_it_sent(self, tenant: Tenant) -> SafeString:
        models = ((Send, "sends"), (Blast, "blasts"), (DeadLetter, "dead letters"))
        return format_html_join(" · ", "{}", ((list_link(model, text, tenant=tenant.slug),) for model, text in models))
