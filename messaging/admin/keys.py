"""API keys: the mechanism's, with the categories that each may be used for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin
from django.http import HttpRequest

from core.admin import ApiKeyAdmin as CoreApiKeyAdmin
from core.models import ApiKey
from messaging.admin.categories import CategoriesField, listed
from messaging.models import KeyAllowance
from messaging.services.allowances import ALLOWANCES, allowance_of_key

if TYPE_CHECKING:  # generic for the type checker only
    _KeyForm = forms.ModelForm[ApiKey]
else:
    _KeyForm = forms.ModelForm


class ApiKeyForm(_KeyForm):
    categories = CategoriesField(
        "What may be sent with it, of what the tenant may send. None ticked: all of that. To change it, issue another key."
    )


admin.site.unregister(ApiKey)


@admin.register(ApiKey)
class ApiKeyAdmin(CoreApiKeyAdmin):
    form = ApiKeyForm
    list_display = [*CoreApiKeyAdmin.list_display, "may_send"]
    list_select_related = [*CoreApiKeyAdmin.list_select_related, *ALLOWANCES]

    def get_fields(self, request: HttpRequest, obj: ApiKey | None = None) -> list[Any]:
        return [*super().get_fields(request, obj), "may_send" if obj else "categories"]

    def get_readonly_fields(self, request: HttpRequest, obj: ApiKey | None = None) -> list[str]:
        return ["may_send"]

    def save_model(self, request: HttpRequest, obj: ApiKey, form: Any, change: bool) -> None:
        super().save_model(request, obj, form, change)
        KeyAllowance.objects.create(api_key=obj, categories=form.cleaned_data["categories"])

    @admin.display(description="categories")
    def may_send(self, key: ApiKey) -> str:
        return listed(allowance_of_key(key).categories)
