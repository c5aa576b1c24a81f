"""The body of an upload, whatever server it comes through; and how many are read at once."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest
from django.test import RequestFactory

from messaging.api import slots
from messaging.api.blasts.body import STALL_SECONDS, UploadBody, kind_of
from messaging.api.blasts.views import RecipientsView
from messaging.api.parsers import BodyStalled, LengthRequired
from messaging.api.slots import slot_of
from messaging.domain.errors import InvalidInput, MessagingError, Throttled, Unavailable
from tests.messaging.api.blasts.rig import URL, Blasts, csv_of, refused

KIND = kind_of({"CONTENT_TYPE": "text/csv"})


class Connection(io.RawIOBase):
    """A body that comes in pieces, and then whatever `end` raises; nothing if it is None."""

    def __init__(self, *pieces: bytes, end: Exception | None = None) -> None:
        self.pieces, self.end = list(pieces), end
        self.timeouts: list[float | None] = [None]

    def read(self, size: int = -1) -> bytes:
        if self.pieces:
            piece, rest = self.pieces[0][:size], self.pieces[0][size:]
            self.pieces[:1] = [rest] if rest else []
            return piece
        if self.end is not None:
            raise self.end
        return b""

    def gettimeout(self) -> float | None:
        return self.timeouts[-1]

    def settimeout(self, seconds: float | None) -> None:
        self.timeouts.append(seconds)


def request(body: Connection, **meta: Any) -> HttpRequest:
    made = RequestFactory().post(URL, b"", content_type="text/csv")
    made.META.pop("CONTENT_LENGTH", None)
    made.META |= {"wsgi.input": body, "gunicorn.socket": body, **meta}
    return made


def addresses(made: HttpRequest) -> list[object]:
    with UploadBody(made).source(KIND) as source:
        return [getattr(row, "to", row) for row in source.rows(frozenset())]


def test_pieces_of_any_size() -> None:
    data = b"to,name\na@x.org,A\nb@x.org,B\n"
    for size in (1, 3, 100):
        body = Connection(*(data[i : i + size] for i in range(0, len(data), size)))
        assert addresses(request(body, CONTENT_LENGTH=str(len(data)))) == ["a@x.org", "b@x.org"]
        body = Connection(*(data[i : i + size] for i in range(0, len(data), size)))
        assert addresses(request(body, **{"wsgi.input_terminated": True})) == ["a@x.org", "b@x.org"]


def test_what_follows_the_body_is_not_read() -> None:
    body = Connection(b"to\na@x.org\nGET / HTTP/1.1")
    assert addresses(request(body, CONTENT_LENGTH="11")) == ["a@x.org"]
    assert body.pieces == [b"GET / HTTP/1.1"]


@pytest.mark.parametrize("end", [None, ConnectionResetError(), ConnectionError("no chunk")])
def test_a_connection_that_ends_first(end: Exception | None) -> None:
    made = request(Connection(b"to\na@x.org\nb@x", end=end), CONTENT_LENGTH="50")
    with pytest.raises(InvalidInput) as caught:
        addresses(made)
    assert caught.value.code == "body_incomplete"


def test_a_bug_is_not_the_clients_fault() -> None:
    """Only what a connection may raise is: anything else is answered 500, and logged."""
    with pytest.raises(ZeroDivisionError):
        addresses(request(Connection(b"to\n", end=ZeroDivisionError()), CONTENT_LENGTH="50"))


def test_a_silent_client_is_given_up_and_the_connection_is_as_it_was() -> None:
    body = Connection(b"to\na@x.org\n", end=TimeoutError())
    with pytest.raises(BodyStalled) as caught:
        addresses(request(body, CONTENT_LENGTH="50"))
    assert (caught.value.status, caught.value.code) == (408, "body_stalled")
    assert body.timeouts == [None, STALL_SECONDS, None]


def test_a_body_whose_end_nobody_can_see() -> None:
    with pytest.raises(LengthRequired):
        addresses(request(Connection(b"to\n"), HTTP_TRANSFER_ENCODING="chunked"))
    with pytest.raises(InvalidInput) as caught:  # without any header there is no body
        addresses(request(Connection(b"to\na@x.org\n")))
    assert caught.value.code == "csv_empty"


@pytest.mark.parametrize("length", [True, False])
def test_over_asgi(blasts: Blasts, length: bool) -> None:
    body = csv_of(250)
    headers = [(b"host", b"localhost"), (b"content-type", b"text/csv")]
    headers.append((b"authorization", f"Bearer {blasts.speaker.key}".encode()))
    headers.append((b"content-length", str(len(body)).encode()) if length else (b"transfer-encoding", b"chunked"))
    blast = blasts.made()
    scope = {
        "type": "http",
        "method": "POST",
        "path": f"{URL}/{blast}/recipients",
        "query_string": b"",
        "headers": headers,
    }
    response = RecipientsView.as_view()(ASGIRequest(scope, io.BytesIO(body)), blast_id=blast).render()
    assert (response.status_code, json.loads(response.content)["added"]) == (200, 250)


@pytest.fixture
def _no_slots() -> Iterator[None]:
    assert not slots._reading
    yield
    assert not slots._reading


@pytest.mark.usefixtures("_no_slots")
def test_two_tenants_do_not_keep_a_third_from_uploading() -> None:
    with ExitStack() as stack:
        for tenant in (1, 1, 2):
            stack.enter_context(slot_of(tenant))
        with pytest.raises(Unavailable):
            stack.enter_context(slot_of(2))
        stack.enter_context(slot_of(3))


@pytest.mark.usefixtures("_no_slots")
def test_so_many_at_once_and_no_more() -> None:
    with ExitStack() as stack:
        for tenant in (1, 1, 2):
            stack.enter_context(slot_of(tenant))
        with pytest.raises(Throttled) as throttled:
            stack.enter_context(slot_of(1))
        assert (throttled.value.code, throttled.value.retry_after) == ("too_many_uploads", 5)
        stack.enter_context(slot_of(3))
        for tenant in (2, 4):
            with pytest.raises(Unavailable) as busy:
                stack.enter_context(slot_of(tenant))
            assert (busy.value.code, busy.value.retry_after) == ("uploads_busy", 5)
    with slot_of(4):
        pass


@pytest.mark.usefixtures("_no_slots")
def test_a_slot_is_given_back_whatever_happens(blasts: Blasts) -> None:
    blast = blasts.made()
    for _ in range(2 * slots.AT_ONCE):
        refused(blasts.upload(blast, b"x"), 400, "csv_no_to_column", "csv")
    with pytest.raises(MessagingError), slot_of(1):
        raise MessagingError("x", "x")
    tenant = blasts.speaker.tenant.pk
    with slot_of(tenant), slot_of(tenant):
        answer = blasts.upload(blast, csv_of(1))
        refused(answer, 429, "too_many_uploads")
        assert answer["Retry-After"] == "5"
