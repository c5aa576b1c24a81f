"""Uploads over a real connection: memory, chunked bodies, gzip, connections that end in the middle, two at once.

gunicorn as in the Procfile, with production settings, on the test database.
"""

from __future__ import annotations

import gzip
import http.client
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from messaging.models import Blast, BlastUpload, Send
from messaging.planner.gunzip import FREE
from tests.messaging.api.blasts.rig import BLAST, CSV, NDJSON, URL, assert_adds_up, csv_of
from tests.messaging.api.test_http import Answer, Web, serving
from tests.messaging.tenant_rig import Speaker, ensure_bucket, make_tenant

pytestmark = [pytest.mark.process, pytest.mark.django_db(transaction=True)]

ROWS = 200_000
#: What 200,000 rows may add to the web process, in MiB; they are 6 MB of CSV and would be 100 MB as Python objects.
MEMORY = 48
#: Seconds for them, on two cores with everything else on the same machine.
SECONDS = 25.0


def ask(web: Web, method: str, path: str, body: Any = None, **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    given = {"Authorization": f"Bearer {web.key}", "Content-Type": "application/json", **named}
    chunked = body is not None and not isinstance(body, bytes)
    with closing(http.client.HTTPConnection("127.0.0.1", web.port, timeout=60)) as link:
        start = time.perf_counter()
        link.request(method, f"{URL}{path}", body, given, encode_chunked=chunked)
        response = link.getresponse()
        raw = response.read()
    seconds = time.perf_counter() - start
    return Answer(response.status, {k.lower(): v for k, v in response.headers.items()}, raw, seconds)


def make(web: Web) -> str:
    answer = ask(web, "POST", "", json.dumps(BLAST).encode())
    assert answer.status == 201, answer.raw
    return str(answer.body["id"])


def upload(web: Web, blast: str, body: Any, query: str = "", kind: str = CSV, **headers: str) -> Answer:
    return ask(web, "POST", f"/{blast}/recipients{query}", body, Content_Type=kind, **headers)


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    return (data[i : i + size] for i in range(0, len(data), size))


def peak_mib() -> float:
    """Of the largest process of this test's web server: the peak it ever had."""
    peaks = []
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            command = (status.parent / "cmdline").read_bytes()
            text = status.read_text()
        except OSError:
            continue
        if b"gunicorn" in command and f"127.0.0.1:{_port[0]}".encode() in command:
            peaks.append(int(re.search(r"VmHWM:\s+(\d+) kB", text)[1]) / 1024)  # type: ignore[index]
    return max(peaks)


_port = [0]


def test_uploads_over_http(tmp_path: Path) -> None:
    """One server, many questions: a start costs more than most of them."""
    ensure_bucket()
    key = Speaker.of(make_tenant()).key
    with serving(tmp_path, key) as web:
        _port[0] = web.port
        _flat_memory(web)
        _chunked_and_packed(web)
        _a_bomb(web)
        _cut_with_a_length(web)
        _cut_in_chunks(web)
        _two_at_once(web)
        _others_are_served(web)
        _refused_before_it_is_read(web)
        _twins(web)


def _flat_memory(web: Web) -> None:
    """200,000 rows, with a row of 1 MB and a bad one among them; the process grows by a few chunks."""
    small = make(web)
    assert upload(web, small, csv_of(20_000)).body["added"] == 20_000
    before = peak_mib()
    body = csv_of(ROWS) + b"x@example.org," + b"x" * 1_000_000 + b"\n" + b"nobody,N\n"
    blast = make(web)
    answer = upload(web, blast, body, "?launch=true")
    assert answer.status == 200, answer.raw
    assert answer.body["added"] == ROWS
    assert (answer.body["rejected"], answer.body["state"]) == (2, "running")
    assert peak_mib() - before <= MEMORY
    assert answer.seconds <= SECONDS
    shown = ask(web, "GET", f"/{blast}").body
    assert (shown["planned"], shown["counts"]["queued"]) == (ROWS, ROWS)
    rejected = ask(web, "GET", f"/{blast}/rejected")
    assert rejected.headers["content-type"] == "text/csv; charset=utf-8"
    assert rejected.raw.count(b"\r\n") == 3


def _chunked_and_packed(web: Web) -> None:
    blast = make(web)
    assert upload(web, blast, pieces(csv_of(10_000), 1000)).body["added"] == 10_000
    packed = gzip.compress(csv_of(12_000))
    assert upload(web, blast, packed, Content_Encoding="gzip").body["added"] == 2_000
    assert upload(web, blast, pieces(packed, 999), Content_Encoding="gzip").body["duplicates"] == 12_000
    line = b'{"to": "new@example.org", "variables": {"name": "N"}}'
    assert upload(web, blast, iter([line]), kind=NDJSON).body["added"] == 1
    empty = upload(web, blast, iter([]))
    assert (empty.status, empty.code) == (400, "csv_empty")
    assert_adds_up(blast)


def _a_bomb(web: Web) -> None:
    """A gigabyte in a megabyte: refused after the first megabytes, and they cost no memory."""
    before = peak_mib()
    blast = make(web)
    bomb = gzip.compress(b"to,name\n" + b"x" * (1024 * FREE), compresslevel=1)
    answer = upload(web, blast, bomb, "?launch=true", Content_Encoding="gzip")
    assert (answer.status, answer.code) == (413, "gzip_ratio")
    assert peak_mib() - before <= 8
    assert assert_adds_up(blast).rows_read == 0


def _open(web: Web, blast: str, head: str, query: str = "") -> socket.socket:
    link = socket.create_connection(("127.0.0.1", web.port), timeout=30)
    link.sendall(
        f"POST {URL}/{blast}/recipients{query} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {web.key}\r\n"
        f"Content-Type: text/csv\r\n{head}\r\n\r\n".encode()
    )
    return link


def heard(link: socket.socket) -> tuple[int, str | None]:
    """Status and code of the answer."""
    response = http.client.HTTPResponse(link)
    response.begin()
    return response.status, json.loads(response.read()).get("error", {}).get("code")


#: What is cut: this many rows of twice as many come whole, and the beginning of another.
WHOLE = 8_000


def _begun(body: bytes) -> bytes:
    return body[: sum(len(line) + 1 for line in body.split(b"\n")[: WHOLE + 1]) + 10]


def _cut_with_a_length(web: Web) -> None:
    body = csv_of(2 * WHOLE)
    for name in (None, "cut"):
        blast = make(web)
        keyed = f"\r\nIdempotency-Key: {name}" if name else ""
        with closing(_open(web, blast, f"Content-Length: {len(body)}{keyed}", "?launch=true")) as link:
            link.sendall(_begun(body))
            link.shutdown(socket.SHUT_WR)
            assert heard(link) == (400, "body_incomplete")
        assert _kept_in_part_and_completed(web, blast, body, name) == WHOLE


def _cut_in_chunks(web: Web) -> None:
    body = csv_of(2 * WHOLE)
    for end in (b"", b"1000\r\nhalf of it", b"xyz\r\n"):
        blast = make(web)
        with closing(_open(web, blast, "Transfer-Encoding: chunked", "?launch=true")) as link:
            begun = _begun(body)
            link.sendall(f"{len(begun):x}\r\n".encode() + begun + b"\r\n" + end)
            link.shutdown(socket.SHUT_WR)
            assert heard(link) == (400, "body_incomplete")
        assert WHOLE - LAST_LOOK < _kept_in_part_and_completed(web, blast, body, None) <= WHOLE
    # Gone without a word: nobody is there to be answered, and the blast is not left locked.
    blast = make(web)
    link = _open(web, blast, f"Content-Length: {len(body)}", "?launch=true")
    link.sendall(_begun(body))
    link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # close by a reset
    time.sleep(1)
    link.close()
    _wait_until_left(blast)
    assert WHOLE - LAST_LOOK < _kept_in_part_and_completed(web, blast, body, None) <= WHOLE


#: Rows that a server which is told of a broken connection, and not of its end, had in hand: one look of 16 KiB.
LAST_LOOK = 16 * 1024 // len("person1234@example.org,P1234")


def _kept_in_part_and_completed(web: Web, blast: str, body: bytes, name: str | None) -> int:
    _wait_until_left(blast)
    shown = ask(web, "GET", f"/{blast}").body
    assert shown["state"] == "planning"
    assert not shown["uploading"]
    kept = int(shown["rows"])
    assert kept == shown["planned"]
    assert_adds_up(blast)
    again = upload(web, blast, body, "?launch=true", **({"Idempotency_Key": name} if name else {}))
    assert (again.status, again.body["state"]) == (200, "running")
    told = [again.body[name] for name in ("upload", "rows", "added", "duplicates")]
    rows = 2 * WHOLE
    assert told == ([1, rows, rows, 0] if name else [2, rows, rows - kept, kept])
    assert assert_adds_up(blast).planned == rows
    return kept


def _wait_until_left(blast: str) -> None:
    end = time.monotonic() + 10
    while BlastUpload.objects.filter(blast_id=blast, lease_until__isnull=False).exists():
        assert time.monotonic() < end
        time.sleep(0.02)


def _two_at_once(web: Web) -> None:
    """The first is held in the middle of its body; the second is told, at once and with nothing half-counted."""
    blast, body = make(web), csv_of(20_000)
    with closing(_open(web, blast, f"Content-Length: {len(body)}")) as link:
        link.sendall(body[: len(body) // 2])
        end = time.monotonic() + 10
        while not Blast.objects.get(pk=blast).rows_read:
            assert time.monotonic() < end
            time.sleep(0.02)
        second = upload(web, blast, csv_of(100))
        assert (second.status, second.code) == (409, "upload_in_progress")
        assert 0 < int(second.headers["retry-after"]) <= 60
        launch = ask(web, "POST", f"/{blast}/launch")
        assert (launch.status, launch.code) == (409, "upload_in_progress")
        assert ask(web, "GET", f"/{blast}").body["uploading"]
        link.sendall(body[len(body) // 2 :])
        assert heard(link) == (200, None)
    assert assert_adds_up(blast).planned == 20_000
    assert ask(web, "POST", f"/{blast}/launch").body["state"] == "running"

    # And really at the same moment: one of them is read whole, or both one after the other.
    blast = make(web)
    barrier = threading.Barrier(4)

    def one(_: int) -> Answer:
        barrier.wait(10)
        return upload(web, blast, body)

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(one, range(4)))
    good = [answer for answer in answers if answer.status == 200]
    assert {answer.code for answer in answers if answer.status != 200} <= {"upload_in_progress", "too_many_uploads"}
    assert sum(answer.body["added"] for answer in good) == 20_000
    found = assert_adds_up(blast)
    assert (found.planned, found.rows_read) == (20_000, 20_000 * len(good))


def _others_are_served(web: Web) -> None:
    """Long lists do not take all threads of the process: a send gets through, a third list is told to wait."""
    body, blasts = csv_of(20_000), [make(web) for _ in range(3)]
    with ExitStack() as stack:
        for blast in blasts[:2]:
            link = stack.enter_context(closing(_open(web, blast, f"Content-Length: {len(body)}")))
            link.sendall(body[:1000])
        time.sleep(0.3)
        third = upload(web, blasts[2], body)
        assert (third.status, third.code, third.headers["retry-after"]) == (429, "too_many_uploads", "5")
        assert [web.post().status for _ in range(10)] == [202] * 10


def _refused_before_it_is_read(web: Web) -> None:
    """A client that sends 40 MB before it listens hears the answer all the same."""
    blast = make(web)
    assert upload(web, blast, csv_of(10), "?launch=true").status == 200
    large = csv_of(1) + b"a@example.org,A\n" * 2_500_000
    for body in (large, pieces(large, 100_000)):
        answer = upload(web, blast, body)
        assert (answer.status, answer.code) == (409, "blast_launched")
        assert answer.seconds < 5


def _twins(web: Web) -> None:
    """Two requests with one key at the same moment make one blast, and get one answer."""
    body = json.dumps(
        BLAST | {"recipients": [{"to": f"t{i}@example.org", "variables": {"name": "T"}} for i in range(50)]}
    )
    for n in range(3):
        before = Blast.objects.count()
        barrier = threading.Barrier(4)

        def one(_: int, n: int = n, barrier: threading.Barrier = barrier) -> Answer:
            barrier.wait(10)
            return ask(web, "POST", "", body.encode(), Idempotency_Key=f"twin-{n}")

        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(one, range(4)))
        assert {answer.status for answer in answers} == {201}
        assert len({answer.raw for answer in answers}) == 1
        assert sum(answer.headers.get("idempotent-replayed") == "true" for answer in answers) == 3
        assert Blast.objects.count() == before + 1
        assert Send.objects.filter(blast_id=answers[0].body["id"]).count() == 50
