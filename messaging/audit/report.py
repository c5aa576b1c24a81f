"""What an audit has found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

#: What each finding says, in words. The order is that of the report.
MEANINGS: dict[str, str] = {
    # of a send
    "sending_outside_open_batch": "the send is being sent, but no open batch holds it: nobody will record an answer",
    "ambiguous_outside_ambiguous_batch": "the send is ambiguous, but the batch that it names is not, or does not hold it",
    "sent_without_acceptance": "the send counts as sent, but no accepted batch holds it, or the provider's id is missing",
    "failed_without_dead_letter": "the send has failed, but there is no dead letter to redrive it from",
    "open_in_finished_blast": "the send is open in a blast that is finished: it would wait for ever",
    "mixed_tenants": "the send, its content and its blast are not of one tenant, or one of them is missing",
    # of a batch
    "open_batch_lost_sends": "the batch is open, but not all of its sends are bound to it",
    "accepted_batch_unsent": "the provider accepted the batch, but not all of its sends are sent (or failed by name)",
    "ended_batch_holds_sends": "the batch has ended without acceptance, but a send of it is in flight, sent or ambiguous",
    "ambiguous_batch_let_go": "the batch is ambiguous, but a send that is bound to it is not",
    "send_twice_in_batch": "a send stands twice in the batch",
    "mixed_rails": "a send of another rail or channel is in the batch",
    "batch_without_open_job": "the batch is open, but its job is done or missing: it will never be taken up again",
    "ended_batch_with_open_job": "the batch has ended, but its job is open",
    # of a job
    "job_without_open_batch": "the job is open, but its batch has ended or is missing",
    "lease_long_past": "the job is open, and nobody has taken it up for a quarter of an hour",
    # of a blast
    "finished_state": "the blast has an end and a state that has none, or the other way round",
    "counts": "the counts of the blast are not what its sends say",
    # of a dead letter
    "dead_letter_without_failure": "the dead letter was never redriven, but its send has not failed, or is another tenant's",
    # of a provider's log
    "accepted_unknown_send": "the provider accepted a send that the ledger does not have",
    "accepted_twice": "the provider accepted the send twice, and nobody had accepted that risk",
    "accepted_not_sent": "the provider accepted the send, but the ledger does not say so",
    "accepted_other_id": "the provider's id of the send is not the one in the ledger",
    "sent_not_in_log": "the ledger says that the send was accepted, the provider's log does not",
    "accepted_unresolved": "the provider accepted the send; in the ledger it is still being sent, or ambiguous",
    "log_without_send": "an entry of the provider's log names no send",
}
#: Worth knowing, and possible while everything is in order: a provider that is away, an answer that is awaited.
NOTICES = frozenset({"lease_long_past", "accepted_unresolved", "log_without_send"})


@dataclass(frozen=True, slots=True, order=True)
class Difference:
    """`what` is a word of `MEANINGS`; `id` that of the send, batch, job, blast or dead letter; `detail` has no addresses."""

    what: str
    id: str
    detail: str = ""


@dataclass(slots=True)
class Report:
    """`checked` counts rows by kind, `found` differences and notices by word; `examples` are the first `limit` of each."""

    limit: int = 20
    checked: dict[str, int] = field(default_factory=dict)
    found: dict[str, int] = field(default_factory=dict)
    examples: list[Difference] = field(default_factory=list)
    seconds: float = 0.0
    slowest_ms: float = 0.0  # the longest look at a page, or at the counts of a blast

    def add(self, difference: Difference) -> None:
        assert difference.what in MEANINGS, difference.what
        n = self.found[difference.what] = self.found.get(difference.what, 0) + 1
        if n <= self.limit:
            self.examples.append(difference)

    @property
    def differences(self) -> int:
        return sum(n for what, n in self.found.items() if what not in NOTICES)

    @property
    def notices(self) -> int:
        return sum(n for what, n in self.found.items() if what in NOTICES)

    def as_json(self) -> dict[str, Any]:
        return {
            "differences": self.differences,
            "notices": self.notices,
            "found": self.found,
            "checked": self.checked,
            "seconds": round(self.seconds, 2),
            "slowest_look_ms": round(self.slowest_ms, 1),
            "examples": [{"what": e.what, "id": e.id, "detail": e.detail} for e in self.examples],
        }
