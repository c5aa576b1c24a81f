"""Tenants and their API keys in the admin. Neither is ever deleted here: the ledger refers to tenants, and a revoked key
tells who could send until when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.forms import ModelForm
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django_dramatiq.models import Task

from core.models import ApiKey, Tenant
from core.security.logins import LoginForm

if TYPE_CHECKING:  # generic for the type checker only
    _TenantBase = admin.ModelAdmin[Tenant]
    _ApiKeyBase = admin.ModelAdmin[ApiKey]
else:
    _TenantBase = _ApiKeyBase = admin.ModelAdmin


admin.site.site_header = admin.site.site_title = "dualrail"
admin.site.index_title = "Overview"
admin.site.site_url = None  # there is no other site to view
admin.site.login_form = LoginForm
admin.site.enable_nav_sidebar = False  # lists are wide, and the overview is one click away
admin.site.unregister(Task)  # nobody writes that table: its middleware costs nine statements a message


@admin.register(Tenant)
class TenantAdmin(_TenantBase):
    list_display = ["slug", "name", "active", "created_at"]
    list_filter = ["active"]
    search_fields = ["slug", "name"]
    fields = ["slug", "name", "active", "created_at"]
    readonly_fields = ["created_at"]

    def get_readonly_fields(self, request: HttpRequest, obj: Tenant | None = None) -> list[str]:
        # The slug stands in logs and scripts: it does not change under them.
        return ["created_at", "slug"] if obj else ["created_at"]

    def has_delete_permission(self, request: HttpRequest, obj: Tenant | None = None) -> bool:
        return False  # the ledger refers to it: switch it off instead


@admin.register(ApiKey)
class ApiKeyAdmin(_ApiKeyBase):
    """Issue and revoke; nothing else. The key is on the page that answers "Save", and nowhere afterwards."""

    list_display = ["prefix", "tenant", "name", "created_at", "revoked_at"]
    list_filter = [("revoked_at", admin.EmptyFieldListFilter), "tenant"]
    list_select_related = ["tenant"]
    search_fields = ["prefix", "name", "tenant__slug"]
    autocomplete_fields = ["tenant"]
    actions = ["revoke"]

    def get_fields(self, request: HttpRequest, obj: ApiKey | None = None) -> list[Any]:
        return ["tenant", "name", "prefix", "created_at", "revoked_at"] if obj else ["tenant", "name"]

    def has_change_permission(self, request: HttpRequest, obj: ApiKey | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: ApiKey | None = None) -> bool:
        return False

    def has_revoke_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("core.change_apikey")

    def save_model(self, request: HttpRequest, obj: ApiKey, form: ModelForm[ApiKey], change: bool) -> None:
        row, key = ApiKey.issue(obj.tenant, obj.name)
        obj.pk, obj.prefix, obj.digest = row.pk, row.prefix, row.digest
        obj._state.adding = False
        request._issued_key = key  # type: ignore[attr-defined]  # for `response_add`, in this very request

    def response_add(self, request: HttpRequest, obj: ApiKey, post_url_continue: str | None = None) -> HttpResponse:
        # Answered, not redirected: a redirect would have to keep the key somewhere (session, cookie, message).
        context: dict[str, Any] = {
            **self.admin_site.each_context(request),
            "title": "API key issued",
            "opts": self.opts,
            "api_key": obj,
            "clear_key": request._issued_key,  # type: ignore[attr-defined]
        }
        return TemplateResponse(
            request, "admin/core/apikey/issued.html", context, headers={"Cache-Control": "no-store"}
        )

    @admin.action(description="Revoke selected API keys (at once, for good)", permissions=["revoke"])
    def revoke(self, request: HttpRequest, queryset: QuerySet[ApiKey]) -> None:
        keys = list(queryset.filter(revoked_at=None))
        for key in keys:
            key.revoke()
            self.log_change(request, key, "Revoked.")
        self.message_user(request, f"Revoked: {len(keys)}.", messages.SUCCESS)
