"""Arbitrary blasts and lists: never a 5xx, and the counts add up whatever came."""

from __future__ import annotations

import gzip
import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from messaging.models import Blast, BlastUpload
from tests.messaging.api.blasts.rig import BLAST, CSV, NDJSON, Blasts, assert_adds_up, people
from tests.messaging.api.test_fuzz import values
from tests.messaging.tenant_rig import error_of

QUIET = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]

rows = st.lists(st.sampled_from(people(3)) | values, max_size=4)
fields = st.sampled_from(
    [*BLAST, "channel", "reply_to", "html", "headers", "name", "not_before", "expires_at", "recipients", "launch", "to"]
)
bodies = st.dictionaries(fields, values, max_size=2).map(lambda change: BLAST | change) | st.fixed_dictionaries(
    {"recipients": rows, "launch": st.booleans() | values}
).map(lambda change: BLAST | change)

cells = st.sampled_from(["a@x.org", "b@x.org", "bad", "", '"', '"a@x.org', "P", "\0", "ä", "\r", "a,b", "x" * 70_000])
lines = st.lists(st.tuples(cells, cells).map(",".join) | cells, max_size=6).map(
    lambda found: ("to,name\n" + "\n".join(found)).encode()
)
objects = st.lists(
    (st.sampled_from(people(2)) | values).map(lambda value: json.dumps(value).encode()) | st.binary(max_size=20),
    max_size=5,
).map(b"\n".join)


@settings(max_examples=150, deadline=None, suppress_health_check=QUIET)
@given(body=bodies)
def test_blasts(blasts: Blasts, body: Any) -> None:
    before = Blast.objects.count()
    answer = blasts.post(body=body)
    assert answer.status_code in (201, 400, 403, 413), answer.content
    if answer.status_code == 201:
        assert_adds_up(answer.json()["id"])
    else:
        error_of(answer)
    assert Blast.objects.count() == before + (answer.status_code == 201)


@settings(max_examples=200, deadline=None, suppress_health_check=QUIET)
@given(
    body=st.binary(max_size=200) | lines | objects,
    kind=st.sampled_from([CSV, NDJSON]),
    packed=st.sampled_from(["no", "yes", "cut", "said"]),
    launch=st.booleans(),
)
def test_lists(blasts: Blasts, body: bytes, kind: str, packed: str, launch: bool) -> None:
    blast = blasts.made()
    if packed in ("yes", "cut"):
        body = gzip.compress(body)[: None if packed == "yes" else -3]
    headers = {} if packed == "no" else {"Content_Encoding": "gzip"}
    answer = blasts.upload(blast, body, kind, "?launch=true" if launch else "", **headers)
    assert answer.status_code in (200, 400), answer.content
    found = assert_adds_up(blast)
    good = answer.status_code == 200
    assert found.state == ("running" if good and launch else "planning")
    if good:
        assert found.planned > 0
        assert answer.json()["rows"] == found.rows_read
    elif error_of(answer)["code"] != "no_valid_recipients":
        assert found.rows_read == 0
        assert not BlastUpload.objects.filter(blast=found).exists()
