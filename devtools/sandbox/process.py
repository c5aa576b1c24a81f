"""The sandbox as a process of its own, for tests, the demo and the benches."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orjson
import requests

_LISTENING = "sandbox listening on "
_CHECKOUT = Path(__file__).resolve().parents[2]
_STOP_S = 10.0
_CALL_S = 75.0  # above the longest wait there is


class Sandbox:
    """Starts `python -m devtools.sandbox --port 0` with more flags, and speaks to its `/_sandbox/` endpoints.

        with Sandbox("--rate", "0", "--latency-ms", "0") as sandbox:
            ...                               # RESEND_BASE_URL = sandbox.url
            sandbox.wait(emails=100)
            assert sandbox.stats()["doubles"] == 0

    Leaving the block stops the process and waits for it. Raises RuntimeError if it does not start.
    """

    def __init__(self, *flags: str) -> None:
        self._session = requests.Session()
        self._session.trust_env = False  # a proxy has no business between a test and this machine
        self._process = subprocess.Popen(
            [sys.executable, "-m", "devtools.sandbox", "--port", "0", *flags],
            cwd=_CHECKOUT,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.startswith(_LISTENING):
            self.stop()
            raise RuntimeError(f"The sandbox did not start; exit code {self._process.returncode}.")
        self.url = line.removeprefix(_LISTENING).strip()

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, err: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> int:
        """SIGTERM; returns the exit code. Calling it again is harmless."""
        self._session.close()
        self._process.terminate()
        try:
            code = self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        return code

    def stats(self) -> dict[str, Any]:
        return self._call("GET", "stats")

    def log(self, after: int = 0) -> Iterator[dict[str, Any]]:
        """Every accepted e-mail with a sequence number above `after`, streamed."""
        with self._session.get(
            f"{self.url}/_sandbox/log", params={"after": after}, stream=True, timeout=_CALL_S
        ) as got:
            for line in got.iter_lines(chunk_size=65_536):
                yield orjson.loads(line)

    def fault(self, kind: str, **fields: Any) -> int:
        """Sets a fault; returns its id. Raises ValueError with the sandbox's message if there is no such thing."""
        ids: list[int] = self._call("POST", "faults", json={"fault": kind, **fields})["ids"]
        return ids[0]

    def faults(self) -> list[dict[str, Any]]:
        active: list[dict[str, Any]] = self._call("GET", "faults")["active"]
        return active

    def clear_faults(self) -> None:
        self._call("DELETE", "faults")

    def clear_fault(self, fault_id: int) -> None:
        self._call("DELETE", "faults", params={"id": fault_id})

    def away(self, seconds: float) -> None:
        """Nothing listens for so long; these calls raise requests.ConnectionError meanwhile. It forgets nothing."""
        self._call("POST", "away", params={"seconds": seconds})

    def reset(self) -> None:
        self._call("POST", "reset")

    def wait(self, *, emails: int = 0, requests: int = 0, timeout: float = 10.0) -> dict[str, Any]:
        """Returns once so many e-mails are accepted and requests received. Raises TimeoutError."""
        answer = self._call("GET", "wait", params={"emails": emails, "requests": requests, "timeout": timeout})
        if not answer["reached"]:
            raise TimeoutError(f"Waited {timeout:g} s for {emails} e-mails and {requests} requests: {answer}")
        return answer

    def _call(self, method: str, name: str, **kwargs: Any) -> dict[str, Any]:
        got = self._session.request(method, f"{self.url}/_sandbox/{name}", timeout=_CALL_S, **kwargs)
        answer: dict[str, Any] = got.json()
        if got.status_code >= 400:
            raise ValueError(answer["message"])
        return answer
