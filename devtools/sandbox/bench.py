"""How much the sandbox can take, and what an e-mail costs it in memory: `python -m devtools.sandbox.bench`.

The client shares the machine, so the honest figure is the server's own CPU time: requests ÷ CPU seconds is what one
whole core would serve. Linux only (`/proc`).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

from devtools.sandbox.process import Sandbox

_TICKS = os.sysconf("SC_CLK_TCK")
_FILLER = "<p>Hello, and thank you for reading this far down.</p>" * 14  # about 1 KB per e-mail with the rest


def bodies(items: int) -> Iterator[bytes]:
    """Batches of `items` e-mails, no send id ever used twice."""
    send_ids = count()
    while True:
        yield b"[%b]" % b",".join(_email(next(send_ids)) for _ in range(items))


def _email(number: int) -> bytes:
    return (
        f'{{"from":"Acme <news@acme.dev>","to":["reader{number:08d}@mail.dev"],'
        f'"subject":"News for reader {number:08d}",'
        f'"html":"{_FILLER}","headers":{{"List-Unsubscribe":"<https://acme.dev/u/{number:032x}>"}},'
        f'"tags":[{{"name":"send_id","value":"{number:08x}-0000-7000-8000-000000000000"}}]}}'
    ).encode()


async def _client(host: str, port: int, work: Iterator[bytes], left: Iterator[int], times: list[float]) -> None:
    reader, writer = await asyncio.open_connection(host, port)
    for number in left:
        body = next(work)
        writer.write(
            b"POST /emails/batch HTTP/1.1\r\nhost: sandbox\r\nuser-agent: bench\r\n"
            b"authorization: Bearer re_sandbox\r\nidempotency-key: bench-%d\r\ncontent-length: %d\r\n\r\n"
            % (number, len(body))
        )
        writer.write(body)
        began = time.perf_counter()
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        answer = await reader.readexactly(length)
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(answer.decode())
        times.append(time.perf_counter() - began)
    writer.close()
    await writer.wait_closed()


async def _drive(url: str, requests: int, items: int, connections: int) -> list[float]:
    parts = urlsplit(url)
    assert parts.hostname
    assert parts.port
    times: list[float] = []
    work, left = bodies(items), iter(range(requests))
    await asyncio.gather(*(_client(parts.hostname, parts.port, work, left, times) for _ in range(connections)))
    return times


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m devtools.sandbox.bench", description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000, help="default %(default)s: a million e-mails")
    parser.add_argument("--items", type=int, default=100, help="e-mails per request (default %(default)s)")
    parser.add_argument("--connections", type=int, default=4)
    args = parser.parse_args()
    with Sandbox("--rate", "0", "--latency-ms", "0") as sandbox:
        cpu, memory, began = _cpu_seconds(sandbox.pid), _resident_mb(sandbox.pid), time.perf_counter()
        times = sorted(asyncio.run(_drive(sandbox.url, args.requests, args.items, args.connections)))
        took, cpu = time.perf_counter() - began, _cpu_seconds(sandbox.pid) - cpu
        grown = _resident_mb(sandbox.pid) - memory
        stats = sandbox.stats()
        began = time.perf_counter()
        lines = sum(1 for _ in sandbox.log())
        log_took = time.perf_counter() - began
    emails = args.requests * args.items
    if not stats["emails_accepted"] == stats["send_ids"] == lines == emails:
        raise RuntimeError(f"Bug: sent {emails} e-mails, {stats['emails_accepted']} accepted, {lines} in the log.")
    half, late = (times[len(times) * share // 100] * 1e3 for share in (50, 99))
    per_email = grown / emails * 1e6
    print(f"body of a request        {len(next(bodies(args.items))):>10,} bytes, {args.items} e-mails")
    print(f"served, client beside it {args.requests / took:>10,.0f} requests/s, {emails / took:,.0f} e-mails/s")
    print(f"one core of its own      {args.requests / cpu:>10,.0f} requests/s ({cpu / args.requests * 1e3:.2f} ms CPU)")
    print(f"answered within          {half:>10,.2f} ms p50, {late:.2f} ms p99")
    print(f"memory                   {memory + grown:>10,.0f} MB after {emails:,} e-mails ({per_email:.0f} B each)")
    print(f"log read back            {lines / log_took:>10,.0f} lines/s")


if __name__ == "__main__":
    main()
