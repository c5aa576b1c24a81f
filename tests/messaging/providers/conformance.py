"""What `messaging.providers.base` promises, as tests that every adapter passes.

A provider's test module subclasses `AdapterConformance` and teaches the stage that provider's words: how it accepts,
how it refuses. What every network does (refusing, dropping, cutting, trickling, hanging) is staged here.
"""

from __future__ import annotations

import contextlib
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from messaging.providers.base import Adapter, Answer, Confirmation, Item, Verdict
from messaging.providers.http.client import ForbiddenEndpointError, HttpAdapter
from tests.messaging.providers import stage as staged
from tests.messaging.providers.stage import Act, Response, Seen, Stage, open_stage

#: Seconds. Long enough for any answer that comes at all, on any machine.
PATIENT = 20.0
#: Seconds, where the answer does not come in time; and how late giving up may be (scheduling, not waiting).
SHORT, GRACE = 0.3, 0.5

SECRET = "re_ConformanceKey_123456"  # what adapters under test are given as their key

#: What can happen to any request, besides answers. The promise for all of them: one attempt, and UNKNOWN.
ACCIDENTS: Mapping[str, Act] = {
    "dropped": staged.drop,
    "reset": staged.reset,
    "500": staged.reply(Response(500, b"oops")),
    "502": staged.reply(Response(502, b"<html>Bad gateway</html>", {"content-type": "text/html"})),
    "503": staged.reply(Response(503, b"", {"retry-after": "1"})),
    "504": staged.reply(Response(504)),
    "408": staged.reply(Response(408)),
    "redirect": staged.reply(Response(307, b"", {"location": "/elsewhere"})),
    "early hints": staged.reply(Response(103)),
    "2xx without a body": staged.reply(Response(204)),
    "2xx in HTML": staged.reply(Response(200, b"<html>Welcome</html>", {"content-type": "text/html"})),
    "2xx in bad UTF-8": staged.reply(Response(200, b'{"data": "\xff"}')),
    "2xx nested deeply": staged.reply(Response(200, b"[" * 100_000)),
    "2xx endless": staged.raw(b"HTTP/1.1 200 OK\r\n\r\n" + b" " * (5 * 1024 * 1024)),
    "headers cut": staged.raw(b"HTTP/1.1 200 OK\r\ncontent-le"),
    "not HTTP": staged.raw(b"\x15\x03\x01\x00\x02\x02\x16"),
    "bad chunks": staged.raw(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n{}"),
    "two lengths": staged.raw(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}"),
}

_HEADER_NAMES = st.sampled_from(
    b"content-length transfer-encoding content-type content-encoding set-cookie location connection retry-after "
    b"ratelimit-limit ratelimit-reset x-odd bad,name".split()
)
_headers = st.lists(st.builds(b"%b: %b\r\n".__mod__, st.tuples(_HEADER_NAMES, st.binary(max_size=20))), max_size=5)
_bodies = st.binary(max_size=60) | st.sampled_from([b"{}", b"[]", b"null", b'{"data":[]}', b"1" * 5000])
#: Bytes in place of an answer: any, and some that look like one.
anything = st.binary(max_size=200) | st.builds(
    lambda status, headers, body: b"HTTP/1.1 %d X\r\n%b\r\n%b" % (status, b"".join(headers), body),
    st.integers(0, 1100),
    _headers,
    _bodies,
)


class AdapterConformance(ABC):
    # -- what a provider's test says ---------------------------------------------------------------------------------

    @abstractmethod
    def make_adapter(self, base_url: str) -> HttpAdapter:
        """An adapter whose key is SECRET."""

    @abstractmethod
    def make_item(self, n: int) -> Item:
        """Item `n`, with an address of its own."""

    @abstractmethod
    def provider_id(self, send_id: UUID) -> str:
        """The id that the staged provider gives to this send."""

    @abstractmethod
    def accepting(self, seen: Seen) -> Response:
        """The provider takes everything in this request."""

    @abstractmethod
    def refusals(self) -> Sequence[tuple[Verdict, Response]]:
        """How it refuses, at least once for each verdict that this provider can give."""

    def rejecting(self, seen: Seen, index: int) -> Response | None:
        """It takes all but the item at `index`. None: this provider cannot say so."""
        return None

    def forgetting(self, seen: Seen) -> Response | None:
        """It accepts, and leaves out one id. None: this provider cannot."""
        return None

    def error(self, status: int, message: str) -> Response:
        """An error of this provider that quotes `message`."""
        return Response.of(status, {"message": message})

    # -- the stage ---------------------------------------------------------------------------------------------------

    @pytest.fixture
    def stage(self) -> Iterator[Stage]:
        with open_stage() as stage:
            stage.default = lambda link, seen: link.write(self.accepting(seen).wire())
            yield stage

    @pytest.fixture
    def adapter(self, stage: Stage) -> Iterator[HttpAdapter]:
        adapter = self.make_adapter(stage.url)
        with contextlib.closing(adapter.http):
            yield adapter

    def batch(self, adapter: Adapter, *, start: int = 0) -> list[Item]:
        return [self.make_item(start + n) for n in range(min(adapter.max_batch, 3))]

    def send(
        self, adapter: Adapter, items: Sequence[Item], *, timeout: float = PATIENT, key: str = "batch-1"
    ) -> Answer:
        return adapter.send(adapter.encode(items), items=len(items), idempotency_key=key, timeout=timeout)

    # -- encode ------------------------------------------------------------------------------------------------------

    def test_encode_is_a_pure_function_of_the_items(self, adapter: HttpAdapter) -> None:
        other = self.make_adapter("http://another.invalid")
        items = [replace(item, headers={"X-A": "1", "X-B": "2"}) for item in self.batch(adapter)]
        twins = [replace(item, headers={"X-B": "2", "X-A": "1"}) for item in self.batch(adapter)]
        assert items == twins
        assert adapter.encode(items) == adapter.encode(items) == adapter.encode(twins) == other.encode(items)

    def test_encode_tells_every_send_apart(self, adapter: HttpAdapter) -> None:
        bodies = {adapter.encode([self.make_item(n)]) for n in range(20)}
        assert len(bodies) == 20

    def test_encode_keeps_the_order_of_the_items(self, adapter: HttpAdapter) -> None:
        items = self.batch(adapter)
        if len(items) > 1:
            assert adapter.encode(items) != adapter.encode(items[::-1])

    def test_encode_carries_the_send_id(self, adapter: HttpAdapter) -> None:
        item = self.make_item(7)
        assert str(item.send_id).encode() in adapter.encode([item])

    def test_encode_refuses_an_empty_and_an_overfull_batch(self, adapter: HttpAdapter) -> None:
        for count in (0, adapter.max_batch + 1):
            with pytest.raises(ValueError):
                adapter.encode([self.make_item(n) for n in range(count)])

    def test_encode_takes_a_full_batch(self, adapter: HttpAdapter) -> None:
        body = adapter.encode([self.make_item(n) for n in range(adapter.max_batch)])
        assert len(body) <= adapter.max_body_bytes

    # -- accepted ----------------------------------------------------------------------------------------------------

    def test_accepted_with_every_id_at_its_item(self, adapter: HttpAdapter, stage: Stage) -> None:
        items = [self.make_item(n) for n in range(adapter.max_batch)]
        answer = self.send(adapter, items)
        assert answer.verdict is Verdict.ACCEPTED
        assert answer.provider_ids == tuple(self.provider_id(item.send_id) for item in items)
        assert not answer.item_errors
        assert len(stage.requests) == 1

    def test_a_rejected_item_is_named_and_the_others_keep_their_ids(self, adapter: HttpAdapter, stage: Stage) -> None:
        items = self.batch(adapter)
        self.send(adapter, items)
        for index in range(len(items)):
            response = self.rejecting(stage.requests[0], index)
            if response is None:
                return  # this provider names no items
            stage.script.append(staged.reply(response))
            answer = self.send(adapter, items)
            assert answer.verdict is Verdict.ACCEPTED
            assert set(answer.item_errors) == {index}
            expected = [None if n == index else self.provider_id(item.send_id) for n, item in enumerate(items)]
            assert list(answer.provider_ids) == expected

    def test_too_few_ids_are_never_accepted(self, adapter: HttpAdapter, stage: Stage) -> None:
        self.send(adapter, self.batch(adapter))
        response = self.forgetting(stage.requests[0])
        if response is None:
            return  # this provider cannot
        stage.script.append(staged.reply(response))
        answer = self.send(adapter, self.batch(adapter))
        assert answer.verdict in (Verdict.MISCOUNTED, Verdict.UNKNOWN)
        assert not answer.provider_ids

    def test_the_body_goes_out_as_encoded_and_the_key_with_it(self, adapter: HttpAdapter, stage: Stage) -> None:
        body = adapter.encode(self.batch(adapter))
        adapter.send(body, items=len(self.batch(adapter)), idempotency_key="key-of-the-batch", timeout=PATIENT)
        assert stage.requests[0].body == body
        assert stage.requests[0].headers["user-agent"].startswith("dualrail/")
        if adapter.confirmation is Confirmation.IDEMPOTENT:
            assert "key-of-the-batch" in stage.requests[0].headers.values()

    # -- refused -----------------------------------------------------------------------------------------------------

    def test_every_refusal_has_its_verdict(self, adapter: HttpAdapter, stage: Stage) -> None:
        for verdict, response in self.refusals():
            before = len(stage.requests)
            stage.script.append(staged.reply(response))
            answer = self.send(adapter, self.batch(adapter))
            assert (answer.verdict, answer.http_status) == (verdict, response.status)
            assert answer.code
            assert not answer.provider_ids
            assert len(stage.requests) == before + 1, "one request per call"

    # -- what proves nothing -----------------------------------------------------------------------------------------

    @pytest.mark.parametrize("accident", ACCIDENTS)
    def test_an_accident_is_unknown_and_never_repeated(self, adapter: HttpAdapter, stage: Stage, accident: str) -> None:
        stage.script.append(ACCIDENTS[accident])
        answer = self.send(adapter, self.batch(adapter))
        assert answer.verdict is Verdict.UNKNOWN
        assert answer.code
        assert len(stage.requests) == 1
        assert self.send(adapter, self.batch(adapter)).verdict is Verdict.ACCEPTED, "the next call is not affected"
        assert len(stage.requests) == 2

    def test_an_accepting_answer_cut_anywhere_is_unknown(self, adapter: HttpAdapter, stage: Stage) -> None:
        items = self.batch(adapter)
        self.send(adapter, items)
        whole = self.accepting(stage.requests[0])
        for keep in range(0, len(whole.wire()), 7):
            stage.script.append(staged.cut(whole, keep))
            answer = self.send(adapter, items)
            assert answer.verdict is Verdict.UNKNOWN, f"cut after {keep} bytes"
            assert not answer.provider_ids

    # -- the deadline ------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("manner", ["hang", "trickled_headers", "trickled_body"])
    def test_the_deadline_holds_for_everything_together(self, adapter: HttpAdapter, stage: Stage, manner: str) -> None:
        items = self.batch(adapter)
        acts: Mapping[str, Act] = {
            "hang": staged.hang,
            "trickled_headers": lambda link, seen: link.trickle(self.accepting(seen).wire()),
            "trickled_body": lambda link, seen: staged.trickled_body(self.accepting(seen))(link, seen),
        }
        stage.default = acts[manner]
        started = time.monotonic()
        answer = self.send(adapter, items, timeout=SHORT)
        elapsed = time.monotonic() - started
        assert answer.verdict is Verdict.UNKNOWN
        assert SHORT * 0.9 < elapsed < SHORT + GRACE
        assert len(stage.requests) == 1

    # -- not sent ----------------------------------------------------------------------------------------------------

    def test_refused_is_not_sent(self) -> None:
        adapter = self.make_adapter(f"http://127.0.0.1:{staged.refused_port()}")
        answer = self.send(adapter, self.batch(adapter))
        assert (answer.verdict, answer.code) == (Verdict.NOT_SENT, "connect_failed")
        assert answer.http_status is None

    def test_a_connection_that_is_not_taken_is_not_sent(self) -> None:
        with staged.deaf_port() as port:
            adapter = self.make_adapter(f"http://127.0.0.1:{port}")
            started = time.monotonic()
            answer = self.send(adapter, self.batch(adapter), timeout=SHORT)
            assert (answer.verdict, answer.code) == (Verdict.NOT_SENT, "connect_timeout")
            assert time.monotonic() - started < SHORT + GRACE

    def test_no_time_left_is_not_sent(self, adapter: HttpAdapter, stage: Stage) -> None:
        answer = self.send(adapter, self.batch(adapter), timeout=0)
        assert answer.verdict is Verdict.NOT_SENT
        assert stage.connections == 0

    # -- nothing raw -------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 422, 429, 500])
    def test_no_detail_holds_an_address_or_the_key(self, adapter: HttpAdapter, stage: Stage, status: int) -> None:
        items = self.batch(adapter)
        quoted = f"Invalid `to`: {items[0].to} (also <{items[0].to}>, '{items[0].to}'; key {SECRET}) " + "x" * 5000
        stage.script.append(staged.reply(self.error(status, quoted)))
        answer = self.send(adapter, items)
        told = [answer.code, answer.detail, *(e.detail for e in answer.item_errors.values())]
        for text in told:
            assert items[0].to not in text
            assert SECRET not in text
            assert len(text) <= 500

    # -- bounds ------------------------------------------------------------------------------------------------------

    def test_only_named_endpoints_are_called(self, adapter: HttpAdapter, stage: Stage) -> None:
        self.send(adapter, self.batch(adapter))
        assert {(seen.method, seen.path) for seen in stage.requests} <= adapter.endpoints
        for method, path in [("POST", "/contacts"), ("GET", "/"), ("DELETE", next(iter(adapter.endpoints))[1])]:
            with pytest.raises(ForbiddenEndpointError):
                adapter.http.request(method, path, headers={}, timeout=PATIENT)
        assert len(stage.requests) == 1

    def test_threads_share_an_adapter(self, adapter: HttpAdapter, stage: Stage) -> None:
        wrong: list[object] = []
        ready = threading.Barrier(8)

        def work(worker: int) -> None:
            ready.wait()
            for turn in range(15):
                items = self.batch(adapter, start=10_000 * worker + 10 * turn)
                answer = self.send(adapter, items, key=f"{worker}-{turn}")
                if answer.provider_ids != tuple(self.provider_id(item.send_id) for item in items):
                    wrong.append(answer)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
        assert len(stage.requests) == 8 * 15
        assert stage.connections <= 8, "connections are kept"

    @settings(
        max_examples=150,
        deadline=None,
        # One test for many adapters, and one stage for many examples: both are meant.
        suppress_health_check=[HealthCheck.differing_executors, HealthCheck.function_scoped_fixture],
    )
    @example(data=b"HTTP/1.1 200 OK\r\nset-cookie: ;=;expires=\r\ncontent-type: ;charset\r\n\r\n{}")
    @example(data=b"HTTP/1.1 302 OK\r\nlocation: http://[\r\n\r\n")
    @given(data=anything)
    def test_no_bytes_from_the_provider_make_it_raise_or_repeat(
        self, adapter: HttpAdapter, stage: Stage, data: bytes
    ) -> None:
        before = len(stage.requests)
        stage.script.append(staged.raw(data))
        answer = self.send(adapter, self.batch(adapter))
        assert answer.verdict is not Verdict.NOT_SENT, "the server has seen it"
        assert len(stage.requests) == before + 1
