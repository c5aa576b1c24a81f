"""The inbox: what a person sees of what was accepted, and what hostile content cannot do to it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from html import unescape
from html.parser import HTMLParser
from typing import Any

import pytest
import requests

from devtools.sandbox.accepted import AcceptedLog
from devtools.sandbox.process import Sandbox
from devtools.sandbox.search import BUDGET, Wanted, newest
from tests.devtools.sandbox_client import call, email, ids_of, send, tagged

INBOX = "/_sandbox/inbox"
EVIL = "</td></title><script>alert(1)</script><img src=http://evil.dev/x onerror=alert(1)>'\"&amp;\x1b[0m"


class Seen(HTMLParser):
    """Elements and text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


def look(sandbox: Sandbox, path: str = INBOX, **query: str) -> Seen:
    return Seen(opened(sandbox, path, **query).text)


def opened(sandbox: Sandbox, path: str = INBOX, *, status: int = 200, **query: str) -> requests.Response:
    answer = call(sandbox, "GET", path, params=query)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script" not in policy
    return answer


def link(page: str, words: str) -> str:
    found = re.search(rf"<a href='([^']+)'>{words}</a>", page)
    assert found, page
    return unescape(found[1])


def test_an_empty_inbox_says_so(sandbox: Sandbox) -> None:
    assert "Nothing was accepted yet." in look(sandbox).text
    assert sandbox.stats()["requests_received"] == 0


def test_the_newest_is_first_with_all_there_is_to_know(sandbox: Sandbox) -> None:
    send(sandbox, [email("ann@mail.dev", subject="earlier")])
    send(sandbox, [tagged("s-1", to=["bob@mail.dev", "c@mail.dev", "d@mail.dev"], subject="later")])
    seen = look(sandbox)
    assert seen.text.index("later") < seen.text.index("earlier")
    for words in ("bob@mail.dev, c@mail.dev and 1 more", "Acme <news@acme.dev>", "s-1", "2 e-mails accepted"):
        assert words in seen.text


def test_pages_follow_each_other_without_gap_or_double(sandbox: Sandbox) -> None:
    for number in range(4):
        send(sandbox, [email(subject=f"mail-{number}-{n}") for n in range(30)])
    page, found = opened(sandbox).text, []
    for last in (False, False, True):
        found += re.findall(r"mail-\d-\d+", page)
        if not last:
            page = call(sandbox, "GET", link(page, "Older")).text
    assert found == [f"mail-{number}-{n}" for number in (3, 2, 1, 0) for n in range(29, -1, -1)]
    assert ">Older<" not in page
    assert link(page, "Newest") == INBOX


def test_filters(sandbox: Sandbox) -> None:
    send(sandbox, [tagged(f"s-{n}", to=f"User{n}@Mail.dev", subject=f"mail-{n}") for n in range(20)])
    assert re.findall(r"mail-\d+", look(sandbox, to="user1@").text) == ["mail-1"]
    assert re.findall(r"mail-\d+", look(sandbox, to="USER1").text) == [f"mail-{n}" for n in (*range(19, 9, -1), 1)]
    assert re.findall(r"mail-\d+", look(sandbox, send_id="s-7").text) == ["mail-7"]
    assert re.findall(r"mail-\d+", look(sandbox, send_id="s-7", to="user8").text) == []
    assert "Nothing that fits." in look(sandbox, to="mail-3").text, "a subject is no address"
    assert ("value", "user1@") in look(sandbox, to="user1@").attributes


def test_a_filter_stays_on_the_next_page(sandbox: Sandbox) -> None:
    send(sandbox, [email(f"a+{n % 2}@mail.dev", subject=f"mail-{n}") for n in range(100)])
    send(sandbox, [email(f"a+{n % 2}@mail.dev", subject=f"mail-{n}") for n in range(100, 104)])
    page = opened(sandbox, to="a+1@").text
    assert re.findall(r"mail-(\d+)", page) == [str(n) for n in range(103, 4, -2)]
    assert re.findall(r"mail-(\d+)", call(sandbox, "GET", link(page, "Older")).text) == ["3", "1"]


def test_refreshing_is_asked_for(sandbox: Sandbox) -> None:
    page = opened(sandbox).text
    assert "http-equiv" not in page
    page = call(sandbox, "GET", link(page, "Refresh every 5 seconds")).text
    assert '<meta http-equiv="refresh" content="5">' in page
    assert link(page, "Stop refreshing") == INBOX
    assert "http-equiv" not in opened(sandbox, refresh="1", before="3").text, "an older page does not change"


# ------------------------------------------------------------------------------------------------------------ hostile


def hostile() -> dict[str, Any]:
    """As bad as the provider's own checks let it be."""
    return {
        "from": f"{re.sub('[<>]', '', EVIL)} <news@acme.dev>",
        "to": "'onload='alert(1)'`{{7*7}}&lt@mail.dev",
        "subject": EVIL,
        "html": f"{EVIL}<script>parent.alert(1)</script>",
        "text": EVIL,
        "headers": {EVIL: EVIL},
        "reply_to": EVIL,
        "tags": [{"name": "send_id", "value": "s-1"}],
    }


def test_hostile_content_is_text(start: Callable[..., Sandbox]) -> None:
    sandbox = start("--rate", "0", "--latency-ms", "0", "--keep-bodies")
    [email_id] = ids_of(send(sandbox, [hostile()]))
    for page in (opened(sandbox), opened(sandbox, to=EVIL), opened(sandbox, f"{INBOX}/{email_id}")):
        seen = Seen(page.text)
        assert set(seen.tags).isdisjoint({"script", "img", "object", "embed", "base", "svg"})
        assert not [name for name, _ in seen.attributes if name.startswith("on")]
        outside = [v for n, v in seen.attributes if n in ("href", "src", "action") and not (v or "").startswith("/_")]
        assert outside == ["data:,"], "nothing leads or loads elsewhere"
    assert EVIL.replace("&amp;", "&amp;") in seen.text
    frame = dict(seen.attributes)
    assert frame["sandbox"] is None, "allows nothing: the frame runs no script"
    assert frame["srcdoc"] == hostile()["html"]
    assert seen.tags.count("iframe") == 1


@pytest.mark.parametrize("email_id", ["x", "%2e%2e/log", "<script>", "00000000-0000-4000-8000-000000000001"])
def test_an_e_mail_that_is_not_there(sandbox: Sandbox, email_id: str) -> None:
    page = opened(sandbox, f"{INBOX}/{email_id}", status=404).text
    assert "No such e-mail" in page
    assert "<script>" not in page


@pytest.mark.parametrize("cursor", ["x", "-1", "1e3", "٣", "9" * 40, ""])
def test_a_cursor_that_is_none_is_explained(sandbox: Sandbox, cursor: str) -> None:
    answer = call(sandbox, "GET", f"{INBOX}?before={cursor}")
    assert answer.status_code == (200 if cursor == "" else 400)  # an empty one is left out by every form


def test_only_reading(sandbox: Sandbox) -> None:
    assert call(sandbox, "POST", INBOX).status_code == 405
    assert call(sandbox, "POST", f"{INBOX}/x").status_code == 404


def test_without_bodies_the_page_says_how_to_get_them(sandbox: Sandbox) -> None:
    [email_id] = ids_of(send(sandbox, [email(html="<b>secret</b>")]))
    seen = look(sandbox, f"{INBOX}/{email_id}")
    assert "--keep-bodies" in seen.text
    assert "iframe" not in seen.tags
    assert "secret" not in seen.text


def test_what_is_long_is_cut(start: Callable[..., Sandbox]) -> None:
    sandbox = start("--rate", "0", "--latency-ms", "0", "--keep-bodies")
    many = [f"{n}@mail.dev" for n in range(50)]
    [email_id, *_] = ids_of(send(sandbox, [email(many, subject="s" * 2_000_000, text="t" * 2_000_000)] * 2))
    assert len(opened(sandbox).content) < 20_000
    page = opened(sandbox, f"{INBOX}/{email_id}")
    assert len(page.content) < 1_100_000
    assert "Cut after 1,000,000 of 2,000,000 characters." in page.text


# ------------------------------------------------------------------------------------------------------------- bounds


def full_log(batches: int, size: int = 100) -> AcceptedLog:
    log = AcceptedLog("send_id", keep_bodies=False)
    for number in range(batches):
        tags = [{"name": "send_id", "value": f"s-{number}"}]
        items = [
            {"from": "Acme <a@acme.dev>", "to": f"user{n}@mail.dev", "subject": "News", "tags": tags}
            for n in range(size)
        ]
        log.add(items, at=1e9, request=number, key=None, errors=None)
    return log


def test_a_search_in_half_a_million_is_bounded_and_goes_on() -> None:
    log = full_log(5_000)
    wanted = Wanted(send_id="s-0")
    before, calls, longest = None, 0, 0.0
    while True:
        began = time.perf_counter()
        found = newest(log, 50, wanted, before)
        longest = max(longest, time.perf_counter() - began)
        calls += 1
        if found.emails:
            break
        assert found.cut
        assert found.older is not None
        before = found.older
    assert calls == pytest.approx(1 + sum(len(b.rows) + 256 for b in log.backwards()) // BUDGET, abs=1)
    assert [line["seq"] for line in found.emails] == list(range(100, 50, -1))
    assert longest < 0.5, "some 20 ms on a quiet machine"
    began = time.perf_counter()
    assert len(newest(log, 50, Wanted()).emails) == 50
    assert time.perf_counter() - began < 0.1, "a page costs what it shows"


def test_a_word_that_is_in_every_batch_but_in_no_address_is_bounded_too() -> None:
    log = full_log(2_000)
    found = newest(log, 50, Wanted(recipient="news"))
    assert (found.emails, found.cut) == ([], True)
    assert found.older is not None
    assert found.older > 100_000, "parsing costs more than looking"


def test_single_e_mails_are_pages_too() -> None:
    log = full_log(130, size=1)
    first = newest(log, 50, Wanted())
    second = newest(log, 50, Wanted(), first.older)
    third = newest(log, 50, Wanted(), second.older)
    assert [line["seq"] for part in (first, second, third) for line in part.emails] == list(range(130, 0, -1))
    assert third.older is None
    assert newest(log, 50, Wanted(), before=0).emails == newest(log, 50, Wanted(), before=1).emails == []
