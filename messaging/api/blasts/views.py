"""The views of blasts: authenticate, read, hand on, answer."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from django.http import StreamingHttpResponse
from django.urls import reverse
from rest_framework.request import Request
from rest_framework.response import Response

from messaging.api.blasts.body import UploadBody, kind_of
from messaging.api.blasts.fields import find_blast, launch, list_blasts, make_blast, parse_blast, parse_id
from messaging.api.blasts.rejected import rejected_csv
from messaging.api.parsers import MAX_BODY as MAX_CONTENT
from messaging.api.parsers import BoundedJSONParser
from messaging.api.query import parameters
from messaging.api.views import FRESH, REPLAYED, TenantView
from messaging.domain.errors import InvalidInput
from messaging.planner.append import Appended, append_recipients
from messaging.services.control import cancel_blast, pause_blast, resume_blast

#: Bytes of a blast with its recipients in the body: its content, and some 100,000 of them. More are uploaded.
MAX_BODY = MAX_CONTENT + 8 * 1024 * 1024


class BlastParser(BoundedJSONParser):
    max_body = MAX_BODY


class BlastsView(TenantView):
    """POST blasts: 201 with the blast. GET blasts: the tenant's own, newest first."""

    parser_classes = [BlastParser]
    max_body = MAX_BODY

    def get(self, request: Request) -> Response:
        return Response(list_blasts(self.tenant(request).pk, request.query_params), headers=FRESH)

    def post(self, request: Request) -> Response:
        tenant = self.tenant(request)
        new = parse_blast(self.body(request), request.META.get("HTTP_IDEMPOTENCY_KEY"))
        blast, replayed = make_blast(tenant, new, self.caller(request).allowance)
        headers = {"Location": reverse("messaging-blast", args=[blast["id"]])}
        return Response(blast, status=201, headers=headers | (REPLAYED if replayed else {}))


class BlastView(TenantView):
    """GET blasts/{id}: how it stands."""

    def get(self, request: Request, blast_id: str) -> Response:
        return Response(find_blast(self.tenant(request).pk, parse_id(blast_id)), headers=FRESH)


class BlastStepView(TenantView):
    """POST blasts/{id}/launch, pause, resume, cancel: 200 with the blast after it. A body is not looked at."""

    step = ""  # set by the URL

    def post(self, request: Request, blast_id: str) -> Response:
        tenant, pk = self.tenant(request), parse_id(blast_id)
        if self.step == "launch":
            launch(tenant, pk, self.caller(request).allowance)
        else:
            _STEPS[self.step](pk, tenant_id=tenant.pk)
        return Response(find_blast(tenant.pk, pk), headers=FRESH)


_STEPS: dict[str, Callable[..., object]] = {"pause": pause_blast, "resume": resume_blast, "cancel": cancel_blast}


class RecipientsView(TenantView):
    """POST blasts/{id}/recipients: a list of any length as the body, CSV or NDJSON; 200 with what came of it.

    The body is read as it comes, by the planner; here nobody looks into it.
    """

    def frame(self, request: Request) -> None:
        """Not here: the list is read as it comes."""

    def post(self, request: Request, blast_id: str) -> Response:
        body = UploadBody(request._request)
        self.take_slot(request)
        appended = self._append(request, blast_id, body)
        return Response(appended.as_json(), headers=REPLAYED if appended.replayed else {})

    def _append(self, request: Request, blast_id: str, body: UploadBody) -> Appended:
        kind = kind_of(request.META)
        return append_recipients(
            self.tenant(request),
            parse_id(blast_id),
            source=lambda: body.source(kind),
            launch=_flag(request, "launch"),
            idempotency_key=request.META.get("HTTP_IDEMPOTENCY_KEY"),
            allowance=self.caller(request).allowance,
        )


class RejectedView(TenantView):
    """GET blasts/{id}/rejected: the rows that became no send, as CSV, streamed."""

    def get(self, request: Request, blast_id: str) -> StreamingHttpResponse:
        pk: UUID = parse_id(blast_id)
        find_blast(self.tenant(request).pk, pk)
        headers = FRESH | {"Content-Disposition": f'attachment; filename="rejected-{pk}.csv"'}
        return StreamingHttpResponse(rejected_csv(pk), content_type="text/csv; charset=utf-8", headers=headers)


def _flag(request: Request, name: str) -> bool:
    raw = parameters(request.query_params, (name,)).get(name, "false")
    if raw not in ("true", "false"):
        raise InvalidInput("invalid_flag", f"{name} must be true or false.", field=name)
    return raw == "true"
