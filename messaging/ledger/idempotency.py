"""Idempotency keys: two requests with one key are one request, also when they arrive at the same moment.

A key is claimed by inserting its row inside the transaction that does the work. The twin's insert waits for that
transaction and then finds the row with the answer, or, if the first was rolled back, becomes the first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from psycopg.types.json import Jsonb

from core.db.cursor import ledger_cursor
from core.security.crypto import keyed_digest
from core.security.hashing import canonical_json
from messaging.domain.errors import Conflict, InvalidInput

MAX_KEY = 255


@dataclass(frozen=True, slots=True)
class Claim:
    """A key and what it is used for. `older`: the digest of the same request as releases before 0.2 made it, for the keys that
    they wrote. To be taken out with 1.0: nothing is scheduled for longer than a year."""

    key: str
    digest: bytes
    older: Callable[[], bytes] | None = None

    def fits(self, stored: bytes) -> bool:
        return stored == self.digest or (self.older is not None and stored == self.older())


def digest_of(values: Mapping[str, Any], absent: Mapping[str, Any]) -> bytes:
    """Equal for equal requests, in this release and in those after it: it covers what was given. A field that has the value which
    it has when it is absent (`absent`) is left out, so that a field which is added tomorrow changes no digest of today."""
    return keyed_digest(
        canonical_json({name: v for name, v in values.items() if name not in absent or v != absent[name]})
    )


def parse_key(raw: object) -> str | None:
    """1 to 255 printable ASCII characters; None stays None."""
    if raw is None:
        return None
    if not isinstance(raw, str) or not 1 <= len(raw) <= MAX_KEY or not (raw.isascii() and raw.isprintable()):
        raise InvalidInput(
            "invalid_idempotency_key",
            f"The idempotency key must be 1 to {MAX_KEY} printable ASCII characters.",
            field="idempotency_key",
        )
    return raw


def claim_keys(tenant_id: int, operation: str, claims: Mapping[int, Claim]) -> dict[int, Any]:
    """Claim the keys for this transaction. Returns the earlier answers of those that were used before.

    Raises Conflict if one was used for another request, or twice within `claims`. Keys are taken in one order, so that
    two callers never wait for each other in a ring.
    """
    if not claims:
        return {}
    by_key: dict[str, int] = {}
    for i, claim in claims.items():
        if by_key.setdefault(claim.key, i) != i:
            raise Conflict("idempotency_key_twice", "One idempotency key stands at two sends of this request.")
    ordered = sorted(by_key)
    with ledger_cursor() as cursor:
        mine = {
            row[0]
            for row in cursor.all(
                """
                INSERT INTO messaging_idempotency_keys (tenant_id, operation, key, request_digest, answer)
                SELECT %(tenant)s, %(operation)s, k.key, k.digest, 'null'
                FROM unnest(%(keys)s::text[], %(digests)s::bytea[]) AS k (key, digest)
                ON CONFLICT (tenant_id, operation, key) DO NOTHING
                RETURNING key
                """,
                {
                    "tenant": tenant_id,
                    "operation": operation,
                    "keys": ordered,
                    "digests": [claims[by_key[key]].digest for key in ordered],
                },
            )
        }
        used = [key for key in ordered if key not in mine]
        rows = (
            cursor.all(
                "SELECT key, request_digest, answer FROM messaging_idempotency_keys"
                " WHERE tenant_id = %(tenant)s AND operation = %(operation)s AND key = ANY(%(keys)s::text[])",
                {"tenant": tenant_id, "operation": operation, "keys": used},
            )
            if used
            else []
        )
    earlier = {}
    for key, digest, answer in rows:
        if not claims[by_key[key]].fits(bytes(digest)):
            raise Conflict(
                "idempotency_key_reused",
                "This idempotency key was used for another request. Use a new key for a new request.",
            )
        earlier[by_key[key]] = json.loads(answer)  # Django's connection hands jsonb over as text
    if len(earlier) != len(used):  # pruned between the two statements: its promise had run out
        raise Conflict("idempotency_key_expired", "This idempotency key has just run out. Send the request again.")
    return earlier


def keep_answers(tenant_id: int, operation: str, answers: Mapping[str, Any]) -> None:
    """Write the answers of keys claimed in this transaction."""
    if not answers:
        return
    with ledger_cursor() as cursor:
        cursor.run(
            "UPDATE messaging_idempotency_keys k SET answer = a.answer"
            " FROM unnest(%(keys)s::text[], %(answers)s::jsonb[]) AS a (key, answer)"
            " WHERE k.tenant_id = %(tenant)s AND k.operation = %(operation)s AND k.key = a.key",
            {
                "tenant": tenant_id,
                "operation": operation,
                "keys": list(answers),
                "answers": [Jsonb(answer) for answer in answers.values()],
            },
        )
