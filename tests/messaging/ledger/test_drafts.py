"""Blasts that were made and never launched."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.conf import settings
from django.utils import timezone

from messaging.clock import run_once
from messaging.ledger import sweeps
from messaging.ledger.counts import blast_facts
from messaging.models import Blast, BlastUpload
from tests.factories import make_blast, make_tenant, statuses

pytestmark = pytest.mark.django_db(transaction=True)


def _age(blast: Blast, days: float) -> None:
    Blast.objects.filter(pk=blast.pk).update(created_at=timezone.now() - timedelta(days))


@pytest.mark.usefixtures("redis")
def test_a_draft_that_nobody_touched_for_days_is_cancelled_with_its_sends_and_says_why() -> None:
    draft = make_blast(make_tenant(), 3, state="planning")
    _age(draft, settings.MESSAGING_DRAFT_DAYS - 0.1)
    assert sweeps.expire_drafts() == 0
    _age(draft, settings.MESSAGING_DRAFT_DAYS + 0.1)
    run_once()
    run_once()
    facts = blast_facts(draft.tenant_id, draft.pk)
    assert facts is not None
    assert (facts.state, facts.reason, statuses()) == ("cancelled", "draft_expired", {"cancelled": 3})
    assert (facts.finished_at is not None, sweeps.expire_drafts()) == (True, 0)


@pytest.mark.parametrize("when", ["created_at", "finished_at", "lease_until"])
def test_one_that_was_added_to_lately_is_kept_and_so_is_what_was_launched(when: str) -> None:
    tenant = make_tenant()
    touched = make_blast(tenant, 1, state="planning")
    others = [make_blast(tenant, 1, state=state) for state in ("running", "paused", "finished")]
    for blast in (touched, *others):
        _age(blast, 300)
    long_ago = timezone.now() - timedelta(days=200)
    upload = BlastUpload.objects.create(blast=touched, number=1, finished_at=long_ago, lease_until=long_ago)
    BlastUpload.objects.update(created_at=long_ago)
    BlastUpload.objects.filter(pk=upload.pk).update(**{when: timezone.now()})
    assert sweeps.expire_drafts() == 0
    BlastUpload.objects.filter(pk=upload.pk).update(**{when: long_ago})
    assert sweeps.expire_drafts() == 1


def test_drafts_are_given_up_by_and_by(monkeypatch: pytest.MonkeyPatch) -> None:
    tenant = make_tenant()
    for _ in range(5):
        _age(make_blast(tenant, 0, state="planning"), 300)
    monkeypatch.setattr(sweeps, "LIMIT", 2)
    assert [sweeps.expire_drafts() for _ in range(4)] == [2, 2, 1, 0]
