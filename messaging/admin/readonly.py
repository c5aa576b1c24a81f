"""What the lists of the ledger have in common: to be looked at, and cheap however long they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from django.contrib import admin
from django.contrib.admin.options import ShowFacets
from django.contrib.admin.views.main import ChangeList
from django.db.models import Model, QuerySet
from django.http import HttpRequest

from messaging.admin.keyset import KeysetChangeList, Page, newest, sifted

M = TypeVar("M", bound=Model)

if TYPE_CHECKING:  # generic for the type checker only

    class _Base(admin.ModelAdmin[M]): ...

else:

    class _Base(admin.ModelAdmin):
        def __class_getitem__(cls, item: object) -> type:
            return cls


class ReadOnlyAdmin(_Base[M]):
    """`columns` are all that is ever read of a row: of a list or a row's page. What is sealed is not among them."""

    columns: ClassVar[tuple[str, ...]]

    actions = None
    change_list_template = "admin/messaging/keyset_list.html"
    list_per_page = 50
    show_facets = ShowFacets.NEVER  # each would be a COUNT
    show_full_result_count = False
    sortable_by = ()

    class Media:
        css: ClassVar = {"all": ["messaging/admin.css"]}

    # ------------------------------------------------------------------------------------------------ what is shown

    def page(self, request: HttpRequest, changelist: KeysetChangeList, before: object) -> Page[M]:
        """The next page behind the key `before`."""
        chosen = changelist.chosen()
        rows: QuerySet[M] = changelist.queryset
        if self.indexed({name: spec.value() for name, spec in chosen.items()}):
            return newest(rows, before, self.list_per_page)
        walked = changelist.root_queryset
        for name, spec in chosen.items():
            if self.indexed({name: spec.value()}):
                walked = spec.queryset(request, walked)
                break
        return sifted(rows, walked, before, self.list_per_page)

    def indexed(self, chosen: Mapping[str, str]) -> bool:
        """Whether an index holds just the rows that fit these filters, in the order of the list."""
        return not chosen

    def get_queryset(self, request: HttpRequest) -> QuerySet[M]:
        related = self.list_select_related
        rows = super().get_queryset(request).only(*self.columns)
        return rows.select_related(*related) if isinstance(related, tuple) else rows

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return KeysetChangeList

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[M], search_term: str
    ) -> tuple[QuerySet[M], bool]:
        return queryset, False  # `page` looks for it

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        """Only the filters that are offered: Django would take any field in the address, with an index or without."""
        return lookup in {getattr(spec, "parameter_name", None) for spec in self.get_list_filter(request)}

    # ------------------------------------------------------------------------------------------------ nothing is changed

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: M | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: M | None = None) -> bool:
        return False
