"""What is written of a recipient: recognised by a fingerprint, sealed for one send, in PostgreSQL's binary format."""

from __future__ import annotations

import struct
from datetime import UTC, datetime
from uuid import UUID

import pytest

from core.security.crypto import SealError, fingerprint, keyring
from core.security.ids import new_id
from messaging.channels.email import Document, compile_document
from messaging.channels.sealing import open_recipient, seal_recipient
from messaging.ledger.planning import Chunk, Reject
from messaging.planner.encode import Encoder
from messaging.planner.rows import Recipient


def encoder(**values: str) -> Encoder:
    document = Document.parse(**({"from_": "a@x.org", "subject": "s", "text": "{{ name }}"} | values))
    return Encoder(compile_document(document), datetime.now(UTC))


def staged(chunk: Chunk) -> list[tuple[UUID, bytes, bytes]]:
    """Reads COPY … (FORMAT binary) as the manual describes it."""
    data, rows = chunk.staged, []
    assert data[:11] == b"PGCOPY\n\xff\r\n\0"
    at = 19
    while (count := struct.unpack_from("!h", data, at)[0]) != -1:
        at += 2
        fields = []
        for _ in range(count):
            (length,) = struct.unpack_from("!i", data, at)
            fields.append(data[at + 4 : at + 4 + length])
            at += 4 + length
        rows.append((UUID(bytes=fields[0]), fields[1], fields[2]))
    assert at + 2 == len(data)
    return rows


def test_rows_in_order_with_rising_ids() -> None:
    rows = [Recipient(i, f"P{i} <P{i}@X.org>", {"name": f"é{i}"}, 20) for i in range(50)]
    chunk = encoder().encode([*rows[:25], Reject(99, "csv_columns", "…"), *rows[25:]])
    written = staged(chunk)
    assert [open_recipient(pk, sealed) for pk, _, sealed in written] == [
        (f"P{i} <P{i}@x.org>", {"name": f"é{i}"}) for i in range(50)
    ]
    ids = [pk for pk, _, _ in written]
    assert ids == sorted(ids)
    assert (
        [mark for _, mark, _ in written] == list(chunk.fingerprints) == [fingerprint(f"p{i}@x.org") for i in range(50)]
    )
    assert (chunk.rows, len(chunk.rejects)) == (51, 1)


def test_nothing_readable_is_staged() -> None:
    chunk = encoder().encode([Recipient(2, "secret@secret.org", {"name": "secret"}, 20)])
    assert b"secret" not in chunk.staged


@pytest.mark.parametrize("characters", ["x", '"', "\x01", "é"])
def test_small_rows_need_no_measuring(characters: str) -> None:
    """The shortcut by length never lets through what the exact rule refuses."""
    one = encoder()
    for size in (one._surely_fits, one._surely_fits + 1, 16_384):
        value = characters * size
        chunk = one.encode([Recipient(2, "a@x.org", {"name": value}, size)])
        fits = len(f'{{"name":{_json(value)}}}'.encode()) <= 16_384
        assert [reject.code for reject in chunk.rejects] == ([] if fits else ["variables_too_large"])


def _json(value: str) -> str:
    return '"' + value.replace('"', '\\"').replace("\x01", "\\u0001") + '"'


def test_a_sealed_recipient_opens_only_for_its_send() -> None:
    mine, other = new_id(), new_id()
    sealed = seal_recipient(mine, "a@x.org", {"n": 1})
    assert open_recipient(mine, memoryview(sealed)) == ("a@x.org", {"n": 1})  # type: ignore[arg-type]
    with pytest.raises(SealError):
        open_recipient(other, sealed)
    with pytest.raises(SealError):
        open_recipient(mine, keyring().seal(b'{"to":"a@x.org"}', b"send:" + mine.bytes))
