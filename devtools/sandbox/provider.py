"""The routes of Resend that the sandbox answers: `POST /emails/batch` and `GET /emails/{id}`.

Everything happens synchronously in `handle`, so a request is processed at one instant; latency is a property of the
answer. Resend documents no order of its checks; here it is route, User-Agent, key, rate limit, body, idempotency key,
items, domain, quota.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import orjson

from devtools.sandbox import errors
from devtools.sandbox.accepted import AcceptedLog, Batch, ItemErrors
from devtools.sandbox.errors import Refusal
from devtools.sandbox.fault_kinds import Phase
from devtools.sandbox.faults import Fault, Faults
from devtools.sandbox.idempotency import MAX_KEY, IdempotencyKeys
from devtools.sandbox.limits import Clock, DailyQuota, make_limiter
from devtools.sandbox.messages import Answer, Ending, Request, json_answer
from devtools.sandbox.options import Options
from devtools.sandbox.stats import Stats
from devtools.sandbox.validation import check_batch, check_item, domain_of, recipients

BATCH_ROUTE = "POST /emails/batch"
EMAIL_ROUTE = "GET /emails/{id}"


class Provider:
    """One team at the provider: its keys, limits, accepted e-mails and active faults."""

    def __init__(self, options: Options, clock: Clock = time.monotonic, wall: Clock = time.time) -> None:
        self.options, self._clock, self._wall = options, clock, wall
        self._keys = frozenset(f"bearer {key}" for key in options.api_keys)
        self.reset()

    def reset(self) -> None:
        """Forgets everything that happened, every fault too."""
        options = self.options
        self._limiter = make_limiter(options, self._clock)
        self._quota = DailyQuota(options.daily_quota, self._clock)
        self._idempotency = IdempotencyKeys(self._clock)
        self.faults = Faults(self._clock)
        self.log = AcceptedLog(options.send_id_tag, keep_bodies=options.keep_bodies)
        self.stats = Stats(self._wall())

    def handle(self, request: Request) -> Answer:
        route, refusal = _route(request)
        number = self.stats.receive(route, request.method, request.path)
        slow = self.faults.pick(Phase.DELAY)
        answer = self._at_the_edge() or (refusal.answer() if refusal else None) or self._authorised(request, number)
        if answer.ending not in (Ending.DROPPED, Ending.RESET):
            answer.delay += self.options.latency_ms / 1000 + (slow.params["extra_ms"] / 1000 if slow else 0)
        self.stats.answer(answer.outcome, self._wall())
        return answer

    def _at_the_edge(self) -> Answer | None:
        fault = self.faults.pick(Phase.EDGE)
        if fault is None:
            return None
        if fault.kind == "drop_before":
            return Answer(0, ending=_dropped(fault))
        if fault.kind == "429":
            retry_after = fault.params.get("retry_after", 1)
            headers = () if retry_after is None else (("retry-after", f"{retry_after:g}"),)
            return fault.refusal(errors.too_many_requests(self.options.rate)).answer(headers)
        return fault.refusal(errors.REVOKED_API_KEY if fault.kind == "401" else errors.INVALID_API_KEY).answer()

    def _authorised(self, request: Request, number: int) -> Answer:
        if not request.headers.get("user-agent"):
            return errors.MISSING_USER_AGENT.answer()
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            return errors.MISSING_API_KEY.answer()
        if f"bearer {key.strip()}" not in self._keys:
            return errors.INVALID_API_KEY.answer()
        verdict = self._limiter.take()
        if not verdict.allowed:
            return errors.too_many_requests(self.options.rate).answer(verdict.headers)
        self.stats.count(self._wall())
        answer = self._counted(request, number)
        answer.headers = (*answer.headers, *verdict.headers, *self._quota.headers())
        return answer

    def _counted(self, request: Request, number: int) -> Answer:
        fault = self.faults.pick(Phase.REQUEST)
        if fault is None:
            return self._respond(request, number)
        accepting = self._respond(request, number) if fault.params.get("accept") else None
        if fault.kind == "hang":
            answer = Answer(0, ending=Ending.HUNG)
        else:
            answer = fault.refusal(errors.APPLICATION_ERROR if fault.kind == "500" else errors.UNAVAILABLE).answer()
        answer.done = accepting.done if accepting else None
        return answer

    def _respond(self, request: Request, number: int) -> Answer:
        if request.method == "GET":
            found = self.log.find(request.path.removeprefix("/emails/"))
            return json_answer(200, found) if found else errors.NO_SUCH_EMAIL.answer()
        answer = self._batch(request, number)
        return self._spoil(answer) if answer.status == 200 else answer

    def _batch(self, request: Request, number: int) -> Answer:
        key = request.headers.get("idempotency-key")
        if key is not None and not 1 <= len(key) <= MAX_KEY:
            return errors.BAD_IDEMPOTENCY_KEY.answer()
        permissive = request.headers.get("x-batch-validation", "strict").lower() == "permissive"
        try:
            items = orjson.loads(request.body)
        except orjson.JSONDecodeError:
            return errors.NOT_JSON.answer()
        if not isinstance(items, list):
            return errors.NOT_A_LIST.answer()
        refusal = self._struck(items)
        if refusal is not None:
            return refusal.answer()
        if key is not None:
            known = self._idempotency.look_up(key, request.body)
            if isinstance(known, Refusal):
                return known.answer()
            if known is not None:
                self.stats.replay()
                return self._accepting(known)
        good, errors_or_refusal = self._sort(items, permissive=permissive)
        if isinstance(errors_or_refusal, Refusal):
            return errors_or_refusal.answer()
        if not self._quota.take(len(good)):
            return errors.DAILY_QUOTA.answer()
        now = self._wall()
        batch = self.log.add(good, at=now, request=number, key=key, errors=errors_or_refusal)
        self.stats.accept(len(good), now)
        answer = self._accepting(batch)
        if key is not None:
            answer.done = self._idempotency.remember(key, request.body, batch).finish
        return answer

    def _sort(self, items: list[Any], *, permissive: bool) -> tuple[list[dict[str, Any]], ItemErrors | Refusal | None]:
        """The items to accept, and the errors of the others or why there are none to accept."""
        refusal = check_batch(items)
        if refusal is not None:
            return [], refusal
        good: list[dict[str, Any]] = []
        bad: ItemErrors = []
        for index, problem in enumerate(self._problems(items)):
            if problem is None:
                good.append(items[index])
            elif permissive:
                bad.append({"index": index, "message": problem.message})
            else:
                return [], problem
        if self.options.verified_domains:
            for item in good:
                domain = domain_of(item["from"])
                if domain not in self.options.verified_domains:
                    return [], errors.unverified_domain(domain or "")
        return good, bad or None

    def _problems(self, items: list[Any]) -> list[Refusal | None]:
        problems = [check_item(item) for item in items]

        def hits(fault: Fault) -> list[int]:
            text = fault.params["recipient"]
            return [i for i, p in enumerate(problems) if p is None and any(text in to for to in recipients(items[i]))]

        fault = self.faults.pick(Phase.ITEM, lambda fault: bool(hits(fault)))
        if fault is not None:
            for index in hits(fault):
                problems[index] = fault.refusal(errors.field_error("Invalid `to` field."))
        return problems

    def _struck(self, items: list[Any]) -> Refusal | None:
        """The refusal of a fault that looks at the batch."""
        fault = self.faults.pick(Phase.BATCH, lambda fault: _concerns(fault, items))
        if fault is None:
            return None
        if fault.kind == "403_domain":
            return errors.unverified_domain(fault.params["domain"])
        if fault.kind == "500_contains":
            return fault.refusal(errors.APPLICATION_ERROR)
        if fault.kind == "403_account":
            return fault.refusal(errors.ACCOUNT_REFUSED)
        if fault.kind == "concurrent_409":
            return fault.refusal(errors.IN_PROGRESS)
        return fault.refusal(errors.field_error("An error was found with one or more fields in the request."))

    def _accepting(self, batch: Batch) -> Answer:
        answer: dict[str, Any] = {"data": [{"id": email_id} for email_id in self.log.ids(batch)]}
        if batch.errors:
            answer["errors"] = batch.errors
        return json_answer(200, answer)

    def _spoil(self, answer: Answer) -> Answer:
        fault = self.faults.pick(Phase.ANSWER)
        if fault is None:
            return answer
        if fault.kind == "cut_body":
            return replace(answer, ending=Ending.CUT)
        if fault.kind == "drop_after_accept":
            return replace(answer, ending=_dropped(fault))
        body = orjson.loads(answer.body)
        body["data"] = body["data"][: -fault.params.get("missing", 1)]
        return replace(answer, body=orjson.dumps(body))


def _route(request: Request) -> tuple[str | None, Refusal | None]:
    method, path = request.method, request.path
    if path == "/emails/batch":
        return (BATCH_ROUTE, None) if method == "POST" else (None, errors.METHOD_NOT_ALLOWED)
    if path.startswith("/emails/") and path.count("/") == 2 and path != "/emails/":
        return (EMAIL_ROUTE, None) if method == "GET" else (None, errors.METHOD_NOT_ALLOWED)
    return None, errors.NOT_FOUND


def _dropped(fault: Fault) -> Ending:
    return Ending.RESET if fault.params.get("reset") else Ending.DROPPED


def _concerns(fault: Fault, items: list[Any]) -> bool:
    """Whether a batch contains what the fault waits for. A fault that waits for nothing concerns all."""
    domain = fault.params.get("domain") or fault.params.get("from_domain")
    text = fault.params.get("contains")
    objects = [item for item in items if isinstance(item, dict)]
    if domain is not None and all(domain_of(str(item.get("from"))) != domain.lower() for item in objects):
        return False
    fields = ("subject", "html", "text")
    return text is None or any(text in str(item.get(field) or "") for item in objects for field in fields)
