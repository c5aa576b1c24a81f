"""Pages of a list that may have millions of rows: newest first, by key, each at a bounded cost.

A page begins behind a key, not after a number of rows, and nothing is counted. Where a filter has an index whose order is
that of the list, the page is read from it. Where it has none, the page is sifted from the next `SCAN` rows: it may hold
fewer rows than fit, or none, and then says how far it looked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import PAGE_VAR, ChangeList
from django.core.exceptions import ValidationError
from django.db.models import Model, QuerySet
from django.http import HttpRequest

#: Rows that one page is sifted from. In the order of their keys they lie side by side: some 500 pages of the table.
SCAN = 10_000

M = TypeVar("M", bound=Model)


@dataclass(frozen=True, slots=True)
class Page(Generic[M]):
    """`older`: the next page begins behind this key; None: there is none. `cut`: the page ends where `SCAN` did."""

    rows: list[M]
    older: object = None
    cut: bool = False


def newest(rows: QuerySet[M], before: object, limit: int) -> Page[M]:
    """The next `limit` of `rows`, which an index narrows down (or nothing does)."""
    found = list(_behind(rows, before)[: limit + 1])
    return Page(found[:limit], found[limit - 1].pk if len(found) > limit else None)


def sifted(rows: QuerySet[M], walked: QuerySet[M], before: object, limit: int) -> Page[M]:
    """The next `limit` of `rows` among the next `SCAN` of `walked`, which an index narrows down (or nothing does)."""
    (edge,) = list(_behind(walked, before).values_list("pk", flat=True)[SCAN - 1 : SCAN]) or (None,)
    page = newest(rows if edge is None else rows.filter(pk__gte=edge), before, limit)
    return page if page.older is not None or edge is None else Page(page.rows, edge, cut=True)


def _behind(rows: QuerySet[M], before: object) -> QuerySet[M]:
    return (rows if before is None else rows.filter(pk__lt=before)).order_by("-pk")


class Paged(Protocol):
    """An admin that reads its own pages."""

    list_per_page: int

    def page(self, request: HttpRequest, changelist: KeysetChangeList, before: object) -> Page[Any]: ...


class KeysetChangeList(ChangeList):
    """Django's list of a model, with `Paged.page` in place of its paginator. The page parameter holds a key."""

    model_admin: Paged  # type: ignore[assignment]  # generic for the type checker only

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.title = str(self.opts.verbose_name_plural).capitalize()

    def get_results(self, request: HttpRequest) -> None:
        page = self.model_admin.page(request, self, self._before(request))
        self.result_list = page.rows
        self.result_count = self.full_result_count = len(page.rows)
        self.show_full_result_count = self.show_admin_actions = self.can_show_all = self.multi_page = False
        # For the template:
        self.cut = page.cut
        self.older_url = None if page.older is None else self.get_query_string({PAGE_VAR: page.older})
        self.newest_url = self.get_query_string() if PAGE_VAR in request.GET else None

    def chosen(self) -> dict[str, Any]:
        """The filters that are set, by parameter."""
        specs: Any = self.filter_specs  # each a SimpleListFilter
        return {spec.parameter_name: spec for spec in specs if spec.value() is not None}

    def _before(self, request: HttpRequest) -> object:
        text = request.GET.get(PAGE_VAR)
        if text is None:
            return None
        try:
            return self.model._meta.pk.to_python(text)
        except ValidationError as error:
            raise IncorrectLookupParameters(error) from error
