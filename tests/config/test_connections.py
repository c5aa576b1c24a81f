"""One connection, many requests: whatever is refused, and however much of its body was read, the next request on the same
connection is answered, or the answer before it said that the connection ends. gunicorn as in the Procfile."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import select
import socket
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NamedTuple

import pytest

from config import framing
from core.models import ApiKey, Tenant
from messaging.api.blasts.views import MAX_BODY as MAX_BLAST
from messaging.api.parsers import MAX_BODY
from messaging.models import BlastUpload
from tests.messaging.api.blasts.rig import assert_adds_up, csv_of
from tests.messaging.api.test_http import Web, serving
from tests.messaging.tenant_rig import BODY, Speaker, ensure_bucket, make_tenant

pytestmark = [pytest.mark.process, pytest.mark.django_db(transaction=True)]

SENDS, BLASTS = "/v1/messaging/sends", "/v1/messaging/blasts"
#: More than gunicorn would read by itself.
BIG = 600_000
JSON = "application/json"


class Case(NamedTuple):
    name: str
    status: int
    path: str = SENDS
    method: str = "POST"
    body: bytes = b" " * BIG
    kind: str = JSON
    headers: tuple[str, ...] = ()
    key: str | None = "shop"  # of whom; None: none
    host: str = "127.0.0.1"
    framed: str = "length"  # or "chunked", "bad chunks", "announced", "cut"


@pytest.fixture
def keys() -> dict[str, str]:
    ensure_bucket()
    found = {"shop": Speaker.of(make_tenant()).key}
    for name, active in (("off", False), ("wool", True), ("silk", True), ("felt", True)):
        found[name] = ApiKey.issue(Tenant.objects.create(slug=name, name=name, active=active), "test")[1]
    return found


def test_no_answer_leaves_its_connection_in_disorder(tmp_path: Path, keys: dict[str, str]) -> None:
    with serving(tmp_path, keys["shop"], METRICS_TOKEN="x" * 32) as web:
        blast, launched = _blasts(web)
        cases = [*_cases(), *_of_uploads(blast, launched)]
        assert {c.status for c in cases} == {200, 202, 400, 401, 403, 404, 405, 409, 413, 415}
        assert {c.name: _session(web, keys, c) for c in cases} == {c.name: "answered" for c in cases if _kept(c)} | {
            c.name: "closed" for c in cases if not _kept(c)
        }
        with ExitStack() as held:
            for status, key, holders in ((429, "shop", ("shop", "shop")), (503, "felt", ("wool", "silk"))):
                for holder in holders:
                    _hold_a_slot(web, keys[holder], held)
                case = Case(
                    "busy", status, f"{BLASTS}/{blast}/recipients", body=csv_of(40_000), kind="text/csv", key=key
                )
                end = time.monotonic() + 10
                while (
                    _status(web, keys, case) != status
                ):  # until the slots are taken: there is no other sign from outside
                    assert time.monotonic() < end
                assert _session(web, keys, case) == "answered"


def _kept(case: Case) -> bool:
    """Whether there is an end of the body that can be read to."""
    return case.framed in ("length", "chunked")


def _cases() -> list[Case]:
    valid = json.dumps(BODY).encode()
    return [
        Case("no key", 401, key=None),
        Case("no key, chunked", 401, key=None, framed="chunked"),
        Case("a wrong scheme", 401, key=None, headers=("Authorization: Basic eDp5",)),
        Case("an unknown key", 401, key=None, headers=("Authorization: Bearer drk_" + "x" * 43,)),
        Case("an inactive tenant", 403, key="off"),
        Case("an unknown path", 404, "/v1/messaging/nothing"),
        Case("no path of ours", 404, "/nothing"),
        Case("an unknown send", 404, f"{SENDS}/1/cancel"),
        Case("a method", 405, method="PUT"),
        Case("a method of a blast", 405, f"{BLASTS}/1/launch", method="DELETE"),
        Case("too large", 413, body=b" " * (MAX_BODY + 1)),
        Case("too large, chunked", 413, body=b" " * (MAX_BODY + 70_000), framed="chunked"),
        Case("a blast too large", 413, BLASTS, body=b" " * (MAX_BLAST + 1)),
        Case("too large, and not sent", 413, framed="announced"),
        Case("not JSON", 415, kind="text/plain"),
        Case("packed", 415, headers=("Content-Encoding: gzip",)),
        Case("no object", 400),
        Case("another host", 400, host="elsewhere.example"),
        Case("another host, chunked", 400, host="elsewhere.example", framed="chunked"),
        Case("a NUL in a cookie", 400, headers=('Cookie: sessionid="\\000x"',)),
        Case("the admin without a token", 403, "/admin/login/", kind="application/x-www-form-urlencoded", key=None),
        Case("metrics without a token", 401, "/metrics", method="GET", key=None),
        Case("metrics, a POST", 403, "/metrics", key=None),
        Case("a body that nobody reads", 200, method="GET"),
        Case("chunks that are none", 401, key=None, framed="bad chunks"),
        Case("accepted", 202, body=valid),
        Case("accepted, chunked", 202, body=valid, framed="chunked"),
    ]


def _of_uploads(blast: str, launched: str) -> list[Case]:
    rows, packed = csv_of(40_000), gzip.compress(csv_of(400_000), 1)
    lines = b'{"to": "a@example.org"}\n' * 40_000
    assert min(map(len, (rows, packed, lines))) > BIG
    here, there = f"{BLASTS}/{blast}/recipients", f"{BLASTS}/{launched}/recipients"
    return [
        Case(
            f"{name}{', chunked' if framed == 'chunked' else ''}",
            status,
            path,
            body=body,
            kind=kind,
            framed=framed,
            headers=more,
        )
        for framed in ("length", "chunked")
        for name, status, path, body, kind, more in (
            ("CSV to no blast", 404, f"{BLASTS}/1/recipients", rows, "text/csv", ()),
            ("CSV to a launched blast", 409, there, rows, "text/csv", ()),
            ("CSV without to", 400, here, b"x" + rows, "text/csv", ()),
            ("NDJSON without a variable", 400, here, lines, "application/x-ndjson", ()),
            ("gzip to a launched blast", 409, there, packed, "text/csv", ("Content-Encoding: gzip",)),
            ("gzip that is none", 400, here, rows, "text/csv", ("Content-Encoding: gzip",)),
            ("a list of another kind", 415, here, rows, "text/plain", ()),
        )
    ]


def _blasts(web: Web) -> tuple[str, str]:
    """One that takes recipients, and one that does not any more."""
    made = []
    for more in ({}, {"recipients": [{"to": "a@example.org", "variables": {"name": "A"}}], "launch": True}):
        body = BODY | {"category": "marketing", "text": "{{ name }}"} | more
        del body["to"]
        with closing(http.client.HTTPConnection("127.0.0.1", web.port, timeout=20)) as link:
            given = {"Authorization": f"Bearer {web.key}", "Content-Type": JSON}
            link.request("POST", BLASTS, json.dumps(body), given)
            made.append(json.loads(link.getresponse().read())["id"])
    return made[0], made[1]


def _session(web: Web, keys: dict[str, str], case: Case) -> str:
    """What became of the second request: "answered", or "closed" as announced. Anything else is a failure."""
    with closing(socket.create_connection(("127.0.0.1", web.port), timeout=20)) as link:
        _ask(link, keys, case)
        status, kept = _hear(link)
        assert status == case.status, case.name
        if not kept:
            assert link.recv(1) == b"", case.name
            return "closed"
        _ask(link, keys, Case("the next", 401, method="GET", body=b"", key=None))
        assert _hear(link) == (401, True), case.name
        return "answered"


def _ask(link: socket.socket, keys: dict[str, str], case: Case) -> None:
    head = [f"{case.method} {case.path} HTTP/1.1", f"Host: {case.host}", f"Content-Type: {case.kind}", *case.headers]
    if case.key:
        head.append(f"Authorization: Bearer {keys[case.key]}")
    body = case.body
    match case.framed:
        case "chunked":
            head.append("Transfer-Encoding: chunked")
            body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
        case "bad chunks":
            head.append("Transfer-Encoding: chunked")
            body = b"zz\r\n"
        case "announced":
            head.append(f"Content-Length: {framing.DRAIN_BYTES + 1}")
            body = b"{"
        case "cut":
            head.append("Content-Length: 100")
            body = b"{"
        case _:
            head.append(f"Content-Length: {len(body)}")
    link.sendall("\r\n".join(head).encode() + b"\r\n\r\n" + body)


def _hear(link: socket.socket) -> tuple[int, bool]:
    """Status, and whether the connection is said to go on."""
    response = http.client.HTTPResponse(link)
    response.begin()
    kept = not response.will_close
    response.read()
    return response.status, kept


def _status(web: Web, keys: dict[str, str], case: Case) -> int:
    with closing(socket.create_connection(("127.0.0.1", web.port), timeout=20)) as link:
        _ask(link, keys, case)
        return _hear(link)[0]


def _hold_a_slot(web: Web, key: str, held: ExitStack) -> None:
    """By a large body that does not end."""
    link = held.enter_context(closing(socket.create_connection(("127.0.0.1", web.port), timeout=20)))
    head = f"POST {BLASTS} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {JSON}\r\nContent-Length: 5000000\r\n"
    link.sendall(f'{head}Authorization: Bearer {key}\r\n\r\n{{"a": '.encode())


def test_nobody_waits_for_a_client_that_stays_when_its_connection_ends(tmp_path: Path, keys: dict[str, str]) -> None:
    """A connection that ends is seen off in the thread that served it: the one that accepts all others goes on."""
    with serving(tmp_path, keys["shop"]) as web, ExitStack() as stack:
        head = f"GET {SENDS} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode()
        links = [
            stack.enter_context(closing(socket.create_connection(("127.0.0.1", web.port), timeout=20)))
            for _ in range(5)
        ]
        for link in links:  # never closed by these clients
            link.sendall(head)
            assert _hear(link) == (401, False)
        seconds = max(web.post().seconds for _ in range(3))
        assert seconds < 2.0  # gunicorn itself: up to two for each of the five


def test_a_list_that_trickles_is_ended_and_what_was_complete_stays(tmp_path: Path, keys: dict[str, str]) -> None:
    """Silence would be allowed for half a minute; so a byte now and then must not be better."""
    impatient = ("--worker-class", "tests.config.impatient_worker.Impatient")
    with serving(tmp_path, keys["shop"], *impatient) as web, ExitStack() as stack:
        blast, _ = _blasts(web)
        link = stack.enter_context(closing(socket.create_connection(("127.0.0.1", web.port), timeout=20)))
        head = f"POST {BLASTS}/{blast}/recipients HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: text/csv\r\n"
        link.sendall(f"{head}Authorization: Bearer {web.key}\r\nContent-Length: 1000000\r\n\r\n".encode())
        link.sendall(csv_of(12_000))
        for _ in range(100):
            link.sendall(b"x")
            if select.select([link], [], [], 0.1)[0]:
                break
        response = http.client.HTTPResponse(link)
        response.begin()
        error = json.loads(response.read())["error"]
        assert (response.status, error["code"], response.will_close) == (408, "body_stalled", True)
        found = assert_adds_up(blast)
        assert (found.state, found.planned >= 5_000) == ("planning", True)
        assert not BlastUpload.objects.filter(blast=found, lease_until__isnull=False).exists()

        # A head that does not come is given up without a word, and takes no thread for ever.
        link = stack.enter_context(closing(socket.create_connection(("127.0.0.1", web.port), timeout=20)))
        link.sendall(b"GET /v1/messaging/se")
        assert link.recv(1) == b""
        # A small body that stops is told so.
        link = stack.enter_context(closing(socket.create_connection(("127.0.0.1", web.port), timeout=20)))
        _ask(link, keys, Case("JSON", 408, framed="cut"))
        assert _hear(link) == (408, False)


@pytest.mark.parametrize("framing_of_body", ["Content-Length: 100", "Transfer-Encoding: chunked"])
def test_slow_bodies_of_a_tenant_leave_threads_to_others(
    tmp_path: Path, keys: dict[str, str], framing_of_body: str
) -> None:
    """More of them than there are threads, with a byte now and then: two are waited for, the others are refused at once."""
    with serving(tmp_path, keys["shop"]) as web, ExitStack() as stack:
        head = f"POST {SENDS} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {JSON}\r\n{framing_of_body}\r\n"
        byte = b" " if "Length" in framing_of_body else b"1\r\n \r\n"
        slow = [
            stack.enter_context(closing(socket.create_connection(("127.0.0.1", web.port), timeout=20)))
            for _ in range(12)
        ]
        for link in slow:
            link.sendall(f"{head}Authorization: Bearer {keys['wool']}\r\n\r\n".encode() + byte)
        assert _status(web, keys, Case("a stranger's", 202, body=json.dumps(BODY).encode())) == 202
        refused = []
        while len(refused) < 10:
            for link in slow:
                with contextlib.suppress(OSError):  # ended by the server meanwhile
                    link.sendall(byte)
            refused += (heard := select.select([link for link in slow if link not in refused], [], [], 0.3)[0])
            assert heard or len(refused) < 10
        assert [_hear(link) for link in refused] == [(429, False)] * 10
        waited_for = [link for link in slow if link not in refused]
        assert not select.select(waited_for, [], [], 0)[0]
