"""What `Adapter.ask` promises, for adapters of providers that can be asked: beside `AdapterConformance`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from uuid import UUID

import pytest

from messaging.providers.base import Adapter, Answer, Confirmation, Verdict
from messaging.providers.http.client import HttpAdapter
from tests.messaging.providers import stage as staged
from tests.messaging.providers.conformance import ACCIDENTS, PATIENT, AdapterConformance
from tests.messaging.providers.stage import Response, Stage


class AskingConformance(AdapterConformance):
    @abstractmethod
    def having(self, send_ids: Sequence[UUID]) -> Response:
        """The provider has these sends, and no others."""

    def ask(self, adapter: Adapter, send_ids: Sequence[UUID]) -> Answer:
        return adapter.ask(send_ids, idempotency_key="batch-1", timeout=PATIENT)

    def asked_for(self, adapter: Adapter) -> list[UUID]:
        return [item.send_id for item in self.batch(adapter)]

    def test_it_says_that_it_can_be_asked(self, adapter: HttpAdapter) -> None:
        assert adapter.confirmation is Confirmation.VERIFIABLE
        assert adapter.settle_seconds > 0

    def test_all_found_are_accepted_in_their_order(self, adapter: HttpAdapter, stage: Stage) -> None:
        ids = self.asked_for(adapter)
        stage.script.append(staged.reply(self.having(ids[::-1])))
        answer = self.ask(adapter, ids)
        assert answer.verdict is Verdict.ACCEPTED
        assert answer.provider_ids == tuple(self.provider_id(send_id) for send_id in ids)
        assert len(stage.requests) == 1, "one request a question"

    def test_what_is_not_found_is_named(self, adapter: HttpAdapter, stage: Stage) -> None:
        ids = self.asked_for(adapter)
        for missing in range(len(ids)):
            stage.script.append(staged.reply(self.having([s for s in ids if s != ids[missing]])))
            answer = self.ask(adapter, ids)
            assert answer.verdict is Verdict.NOT_FOUND
            assert [pid is None for pid in answer.provider_ids] == [n == missing for n in range(len(ids))]

    def test_nothing_found(self, adapter: HttpAdapter, stage: Stage) -> None:
        stage.script.append(staged.reply(self.having([])))
        answer = self.ask(adapter, self.asked_for(adapter))
        assert (answer.verdict, set(answer.provider_ids)) == (Verdict.NOT_FOUND, {None})

    @pytest.mark.parametrize("accident", ACCIDENTS)
    def test_an_accident_is_never_not_found(self, adapter: HttpAdapter, stage: Stage, accident: str) -> None:
        stage.script.append(ACCIDENTS[accident])
        answer = self.ask(adapter, self.asked_for(adapter))
        assert answer.verdict is Verdict.UNKNOWN
        assert len(stage.requests) == 1

    def test_a_list_cut_anywhere_finds_nothing_missing(self, adapter: HttpAdapter, stage: Stage) -> None:
        ids = self.asked_for(adapter)
        whole = self.having(ids)
        for keep in range(0, len(whole.wire()), 7):
            stage.script.append(staged.cut(whole, keep))
            assert self.ask(adapter, ids).verdict is Verdict.UNKNOWN, f"cut after {keep} bytes"
