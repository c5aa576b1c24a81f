"""Requests that cannot be read, or that Django itself refuses, each with an address and a key wherever one fits: neither is in
any line that the web server writes, nor in an answer. gunicorn as in the Procfile, with everything that it can log."""

from __future__ import annotations

import http.client
import re
import socket
from contextlib import closing
from pathlib import Path
from urllib.parse import urlencode

import pytest
from django.contrib.auth.models import User

from tests.messaging.api.test_http import Web, serving
from tests.messaging.tenant_rig import Speaker, ensure_bucket, make_tenant

pytestmark = [pytest.mark.process, pytest.mark.django_db(transaction=True)]

ADDRESS, KEY = "ada@inbox.example", "drk_0123456789abcdefghijklmnop"
#: What would give one of them away, however it is quoted.
RAW = re.compile(rf"ada(?:@|%40|\\x40)inbox|inbox\.example|{KEY[4:16]}", re.IGNORECASE)
BOTH = f"{ADDRESS}-{KEY}"
HOST = "Host: 127.0.0.1\r\n"
AUTH = f"Authorization: Bearer {KEY}\r\nCookie: who={ADDRESS}\r\nReferer: http://127.0.0.1/?q={BOTH}\r\n"
SENDS, LOGIN = f"/v1/messaging/sends?q={BOTH}", f"/admin/login/?q={BOTH}"

MALFORMED: dict[str, tuple[str, int]] = {
    "a request line without a version": (f"GET {SENDS}\r\n{HOST}{AUTH}\r\n", 400),
    "a request line of one word": (f"{BOTH}\r\n{HOST}{AUTH}\r\n", 400),
    "a request line with a space too many": (f"GET /?q={ADDRESS} {KEY} HTTP/1.1\r\n{HOST}{AUTH}\r\n", 400),
    "a version that is none": (f"GET {SENDS} HTTP/{BOTH}\r\n{HOST}{AUTH}\r\n", 400),
    "a method that is none": (f"{BOTH} / HTTP/1.1\r\n{HOST}{AUTH}\r\n", 400),
    "a target beyond ASCII": (f"GET /?q={BOTH}é HTTP/1.1\r\n{HOST}{AUTH}\r\n", 400),
    "a request line too long": (f"GET /?q={BOTH}{'x' * 9000} HTTP/1.1\r\n{HOST}{AUTH}\r\n", 414),
    "a bare line feed": (f"GET {SENDS} HTTP/1.1\n{HOST}{AUTH}\r\n", 400),
    "a header line without a colon": (f"GET {SENDS} HTTP/1.1\r\n{HOST}{AUTH}Authorization Bearer {BOTH}\r\n\r\n", 400),
    "a header name that is none": (f"GET {SENDS} HTTP/1.1\r\n{HOST}{AUTH}{BOTH}: x\r\n\r\n", 400),
    "a folded header": (f"GET {SENDS} HTTP/1.1\r\n{HOST}{AUTH}X-Who: a\r\n {BOTH}\r\n\r\n", 400),
    "a control character": (f"GET {SENDS} HTTP/1.1\r\n{HOST}{AUTH}X-Who: {BOTH}\x01\r\n\r\n", 400),
    "a header too large": (f"GET {SENDS} HTTP/1.1\r\n{HOST}{AUTH}X-Who: {BOTH}{'x' * 9000}\r\n\r\n", 431),
    "two hosts": (f"GET {SENDS} HTTP/1.1\r\n{HOST}Host: {BOTH}\r\n{AUTH}\r\n", 400),
    "an unknown transfer coding": (f"POST {SENDS} HTTP/1.1\r\n{HOST}{AUTH}Transfer-Encoding: {BOTH}\r\n\r\n", 501),
    "an expectation": (f"POST {SENDS} HTTP/1.1\r\n{HOST}{AUTH}Expect: {BOTH}\r\n\r\n", 417),
    "a length that is none": (f"POST {SENDS} HTTP/1.1\r\n{HOST}{AUTH}Content-Length: {BOTH}\r\n\r\n", 400),
    "a chunk that is none": (
        f"POST {SENDS} HTTP/1.1\r\n{HOST}Authorization: Bearer %KEY%\r\nTransfer-Encoding: chunked\r\n\r\n{BOTH}\r\n",
        400,
    ),
    "another host": (f"GET {SENDS} HTTP/1.1\r\nHost: {BOTH}\r\n{AUTH}\r\n", 400),
    "another host of the admin": (f"GET {LOGIN} HTTP/1.1\r\nHost: inbox.example\r\n{AUTH}\r\n", 400),
    "a POST without a token": (f"POST {LOGIN} HTTP/1.1\r\n{HOST}{AUTH}Content-Length: 0\r\n\r\n", 403),
    "a NUL in a cookie": (f'GET {LOGIN} HTTP/1.1\r\n{HOST}Cookie: sessionid="\\000{BOTH}"\r\n\r\n', 400),
    "a NUL in a path": (f"GET /admin/%00{BOTH} HTTP/1.1\r\n{HOST}{AUTH}\r\n", 302),
    "no such page": (f"GET /{BOTH} HTTP/1.1\r\n{HOST}{AUTH}\r\n", 404),
}


def test_no_log_line_and_no_answer_quotes_what_cannot_be_read(tmp_path: Path) -> None:
    ensure_bucket()
    User.objects.create_superuser("operator", password="correct horse battery")
    key = Speaker.of(make_tenant()).key
    every_line = ("--log-level", "debug", "--access-logfile", "-")
    with serving(tmp_path, key, *every_line, LOG_LEVEL="DEBUG") as web:
        start = len(web.process.written())
        for name, (text, status) in MALFORMED.items():
            answer = _raw(web, text.replace("%KEY%", key))
            assert (name, int(answer.split(b" ", 2)[1])) == (name, status)
            assert not RAW.search(answer.decode("latin-1")) or status in (302, 403), name  # its own page
        assert _as_operator(web) == {"lookup": 400, "fields": 400, "large": 400, "referer": 403}
        assert web.post(b"{}").status == 400  # it is alive
        web.process.terminate()
        written = web.process.written()
        assert [line for line in written[start:].splitlines() if RAW.search(line)] == []
        assert len(re.findall(r"\[WARNING\] .*InvalidRequestLine", written)) >= 4  # it is told that, and of which kind


def _raw(web: Web, text: str) -> bytes:
    with closing(socket.create_connection(("127.0.0.1", web.port), timeout=20)) as link:
        link.sendall(text.encode("latin-1"))
        link.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: link.recv(65536), b""))


def _as_operator(web: Web) -> dict[str, int]:
    """What only who is logged in can do wrong."""
    with closing(http.client.HTTPConnection("127.0.0.1", web.port, timeout=20)) as link:
        cookies: dict[str, str] = {}

        def ask(method: str, path: str, form: dict[str, str] | None = None, **headers: str) -> int:
            given = {"Cookie": "; ".join(f"{n}={v}" for n, v in cookies.items()), **headers}
            if form is not None:
                given["Content-Type"] = "application/x-www-form-urlencoded"
            link.request(method, path, None if form is None else urlencode(form), given)
            answer = link.getresponse()
            answer.read()
            for line in answer.headers.get_all("Set-Cookie") or []:
                name, _, value = line.partition(";")[0].partition("=")
                cookies[name] = value
            return answer.status

        ask("GET", "/admin/login/")
        wrong = {"username": ADDRESS, "password": KEY, "csrfmiddlewaretoken": cookies["csrftoken"]}
        assert ask("POST", LOGIN, wrong) == 200
        right = wrong | {"username": "operator", "password": "correct horse battery"}
        assert ask("POST", "/admin/login/", right) == 302
        token = {"csrfmiddlewaretoken": cookies["csrftoken"]}
        return {
            "lookup": ask("GET", f"/admin/core/tenant/?q={BOTH}&api_keys__digest__startswith={BOTH}"),
            "fields": ask("POST", f"/admin/core/tenant/add/?q={BOTH}", token | {f"f{i}": BOTH for i in range(1001)}),
            "large": ask("POST", f"/admin/core/tenant/add/?q={BOTH}", token | {"name": BOTH + "x" * 3_000_000}),
            "referer": ask(
                "POST", f"/admin/core/tenant/add/?q={BOTH}", {"csrfmiddlewaretoken": "x" * 32, "name": BOTH}
            ),
        }
