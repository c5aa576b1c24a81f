"""`/metrics`: what it says is what is there, it costs little, and it tells nobody what is not theirs."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.db import OperationalError, connections
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families
from redis import Redis

from core.governor.client import Governor
from core.models import DeadLetter
from core.telemetry import counters
from core.telemetry.redis_client import quick_client
from messaging.backpressure.state import ProcessYield, publish
from messaging.clock import run_once
from messaging.domain.rails import Channel, Rail
from messaging.ledger import backlog
from messaging.metrics import scrape
from messaging.models import Send
from messaging.services.tickets import send_ticket
from tests.factories import insert_raw, make_blast, make_tenant, submit_some
from tests.rig import Rig, seed_buckets

Figures = dict[tuple[str, tuple[str, ...]], float]


@pytest.fixture(autouse=True)
def _opened(settings: Any, rig: Rig) -> None:
    settings.DEBUG = True
    counters.flush()
    rig.redis.flushdb()
    seed_buckets(rate=10.0)
    scrape.scrapes.cache_clear()


def figures() -> Figures:
    """(name, label values in the order of their names) → value."""
    counters.flush()
    return figures_of_a_new_scrape()


def figures_of_a_new_scrape() -> Figures:
    scrape.scrapes.cache_clear()
    answer = Client().get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["Content-Type"].startswith("text/plain")
    assert "no-store" in answer.headers["Cache-Control"]
    return {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.content.decode())
        for sample in family.samples
    }


def test_an_idle_system_has_every_name_of_the_design() -> None:
    found = figures()
    for rail in Rail:
        assert found["notif_rail_depth", ("email", rail)] == 0
        assert found["notif_rail_oldest_seconds", ("email", rail)] == 0
        assert found["notif_rail_jobs", (f"notif.email.{rail}",)] == 0
    assert found["notif_marketing_yielding", ("email",)] == 0
    assert found["notif_bucket_tokens", ("resend", "global")] == 1
    assert found["notif_circuit_open", ("resend", "unreachable")] == 0
    assert found["notif_circuit_open", ("resend", "credential")] == 0
    assert found["notif_circuit_open", ("resend", "refusing")] == 0
    assert found["notif_ambiguous", ("resend",)] == 0
    assert {name for name, _ in found if name == "notif_scrape_failed"}
    assert sum(value for (name, _), value in found.items() if name == "notif_scrape_failed") == 0


def test_after_a_request_it_is_counted(rig: Rig) -> None:
    submit_some(make_tenant(), 3)
    rig.turn()
    found = figures()
    labels = ("email", "accepted", "resend", "transactional")  # channel, outcome, provider, rail
    assert found["notif_sends_total", labels] == 3
    assert found["notif_accept_latency_seconds_count", ("email", "transactional")] == 3
    assert found["notif_accept_latency_seconds_bucket", ("email", "+Inf", "transactional")] == 3
    assert found["notif_batch_size_sum", ("resend", "transactional")] == 3
    assert found["notif_provider_responses_total", ("200", "resend")] == 1
    assert found["notif_bucket_tokens", ("resend", "global")] < 1


def test_depth_and_age_by_rail() -> None:
    tenant = make_tenant()
    insert_raw(tenant, 3, category="transactional")
    insert_raw(tenant, 4, category="product")
    insert_raw(tenant, 2)
    make_blast(tenant, 5)
    make_blast(tenant, 9, state="paused")
    Send.objects.filter(priority=1).update(not_before="2020-01-01T00:00:00Z")
    found = figures()
    assert found["notif_rail_depth", ("email", "transactional")] == 7
    assert found["notif_rail_depth", ("email", "marketing")] == 7
    assert found["notif_rail_oldest_seconds", ("email", "transactional")] > 3e7
    assert 0 < found["notif_rail_oldest_seconds", ("email", "marketing")] < 600


def test_tickets_circuit_and_yield(rig: Rig) -> None:
    send_ticket(Channel.EMAIL, Rail.MARKETING)
    rig.redis.hset(Governor(rig.redis, "resend").keys[0], "circuit", "credential")
    publish(rig.redis, Channel.EMAIL, ProcessYield("a:1", True, 0.0, "depth", 5, 5, 2))
    publish(rig.redis, Channel.EMAIL, ProcessYield("a:2", False, 0.0, "", 5, 5, 2))
    found = figures()
    assert found["notif_rail_jobs", ("notif.email.marketing",)] == 1
    assert found["notif_circuit_open", ("resend", "credential")] == 1
    assert found["notif_circuit_open", ("resend", "unreachable")] == 0
    assert found["notif_marketing_yielding", ("email",)] == 1


def test_dead_letters_by_reason_and_reasons_are_bounded() -> None:
    DeadLetter.objects.bulk_create(
        DeadLetter(channel="email", reason=f"reason_{i:02}")
        for i in range(backlog.REASONS + 5)
        for _ in range(2 if i else 3)
    )
    found = {labels: n for (name, labels), n in figures().items() if name == "notif_dead_letters"}
    assert len(found) == backlog.REASONS + 1
    assert found["email", "reason_00"] == 3
    assert found["email", "other"] == 10


def test_no_tenant_and_nothing_raw_is_in_it(rig: Rig) -> None:
    tenant = make_tenant("nosy-tenant")
    submit_some(tenant, 2, category="marketing")
    rig.turn(Rail.MARKETING)
    figures()
    text = Client().get("/metrics").content.decode()
    assert "nosy" not in text
    assert "@" not in text
    assert not re.search(r"tenant=", text)


def test_a_part_that_cannot_be_read_is_absent_and_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*args: Any) -> None:
        raise OperationalError("away")

    monkeypatch.setattr(backlog, "rail_facts", away)
    monkeypatch.setattr(scrape, "close_old_connections", lambda: None)
    found = figures()
    assert found["notif_scrape_failed", ("ledger",)] == 1
    assert found["notif_scrape_failed", ("redis",)] == 0
    assert ("notif_rail_depth", ("email", "marketing")) not in found
    assert ("notif_rail_jobs", ("notif.email.marketing",)) in found


def test_a_part_that_another_release_has_written_takes_no_other_along(
    redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    redis.hset("notif:yield:email", "later:1", b"%d:%s" % (redis.time()[0] + 60, b'{"process": "later:1", "mood": 1}'))
    redis.hset(counters.KEY, "notif_depth_unreadable_total|email|twice|", "7")  # a label more than there are
    found = figures()
    assert found["notif_scrape_failed", ("redis",)] == 1
    assert found["notif_scrape_failed", ("counters",)] == found["notif_scrape_failed", ("ledger",)] == 0
    assert not [name for name, _ in found if name == "notif_depth_unreadable_total"]
    assert ("notif_rail_depth", ("email", "marketing")) in found
    assert [record.levelname for record in caplog.records if record.message == "scrape_failed"] == ["ERROR"]


def test_it_says_when_the_clock_last_beat() -> None:
    before = figures()
    assert ("notif_clock_timestamp_seconds", ()) not in before
    started = time.time()
    run_once()
    assert started <= figures()["notif_clock_timestamp_seconds", ()] <= time.time()


def test_a_redis_that_hangs_keeps_no_scrape_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every reading gives up after the same seconds, tries once, and is the last one of its part."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        quick_client.cache_clear()
        monkeypatch.setattr(django_settings, "REDIS_URL", f"redis://127.0.0.1:{silent.getsockname()[1]}/0")
        monkeypatch.setattr("core.telemetry.redis_client.TIMEOUT", 0.2)
        started = time.monotonic()
        found = figures_of_a_new_scrape()
        took = time.monotonic() - started
    quick_client.cache_clear()
    failed = {labels for (name, labels), value in found.items() if name == "notif_scrape_failed" and value}
    assert failed == {("counters",), ("redis",), ("buckets",)}
    assert took < 2.0  # three times 0.2 s; with the broker's own client it were above ten


def test_scrapes_that_come_together_or_soon_are_one_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    together = threading.Barrier(4)

    def facts(*args: Any) -> backlog.RailFacts:
        read.append(args)
        time.sleep(0.05)  # the others come meanwhile
        return backlog.RailFacts(0, 0.0)

    def scraped() -> int:
        together.wait(10)
        try:
            return Client().get("/metrics").status_code
        finally:
            connections.close_all()

    monkeypatch.setattr(backlog, "rail_facts", facts)
    with ThreadPoolExecutor(4) as pool:
        assert [each.result(30) for each in [pool.submit(scraped) for _ in range(4)]] == [200] * 4
    assert Client().get("/metrics").status_code == 200
    assert len(read) == len(Rail)


@pytest.mark.parametrize(
    ("token", "header", "status"),
    [
        ("", None, 404),
        ("", "Bearer ", 404),
        ("t" * 20, None, 401),
        ("t" * 20, "Bearer wrong", 401),
        ("t" * 20, "Bearer ", 401),
        ("t" * 20, "Basic " + "t" * 20, 401),
        ("t" * 20, "Bearer " + "t" * 19 + "é", 401),
        ("t" * 20, "Bearer " + "t" * 20, 200),
        ("t" * 20, "bearer " + "t" * 20, 200),
    ],
)
def test_who_may_see_it(settings: Any, token: str, header: str | None, status: int) -> None:
    settings.DEBUG = False
    settings.METRICS_TOKEN = token
    answer = Client(headers={"Authorization": header} if header else {}).get("/metrics")
    assert answer.status_code == status
    assert ("WWW-Authenticate" in answer.headers) is (status == 401)
    assert (b"notif_" in answer.content) is (status == 200)


def test_only_reading() -> None:
    assert Client().post("/metrics").status_code == 405


_WORKER = """
import sys, django
django.setup()
from core.telemetry import counters
from messaging.telemetry.counted import SENDS
SENDS.add("email", sys.argv[1], "resend", "accepted", by=int(sys.argv[2]))
counters.flush()
"""


def test_processes_and_pools_add_up_also_after_their_end() -> None:
    """Two pools, three processes, all of them gone when somebody looks."""
    for rail, n in (("transactional", "3"), ("marketing", "100"), ("marketing", "50")):
        env = {"DJANGO_SETTINGS_MODULE": "config.settings", "DEBUG": "1", "PATH": "", "HOME": "/tmp"}
        env |= {"REDIS_URL": django_settings.REDIS_URL, "DATABASE_URL": "postgresql:///unused"}
        subprocess.run([sys.executable, "-c", _WORKER, rail, n], env=env, cwd=django_settings.BASE_DIR, check=True)
    found = figures()
    assert found["notif_sends_total", ("email", "accepted", "resend", "marketing")] == 150
    assert found["notif_sends_total", ("email", "accepted", "resend", "transactional")] == 3


def test_every_reason_of_the_governor_has_its_figure() -> None:
    script = (django_settings.BASE_DIR / "core" / "governor" / "governor.lua").read_text()
    assert set(re.findall(r"open_circuit\('(\w+)'", script)) == set(scrape.CIRCUIT_REASONS)
