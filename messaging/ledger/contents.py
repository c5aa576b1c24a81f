"""Stored contents: an equal document of a tenant is stored once, and never changes."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from core.security.crypto import SealError, UnknownKey, keyed_digest, keyring
from messaging.channels.email import Document, Template, compile_document
from messaging.domain.errors import MessagingError, Unavailable
from messaging.models import Content

log = logging.getLogger(__name__)

#: What a process keeps of compiled contents, in bytes of memory: one blast's template is read thousands of times, a
#: literal login code once. 18 kB of Liquid take some 800 kB, and 25 to 70 ms to compile again.
KEPT_BYTES = 64_000_000


class Cost:
    """Seconds that a render of one content takes here: a running mean, in which the last ones count most."""

    __slots__ = ("seconds",)

    def __init__(self) -> None:
        self.seconds = 0.0

    def learn(self, seconds: float) -> None:
        """From any thread; a lost update costs nothing."""
        self.seconds += (seconds - self.seconds) * (0.25 if self.seconds else 1.0)


@dataclass(frozen=True, slots=True)
class Compiled:
    document: Document
    template: Template
    size: int  # bytes of memory
    cost: Cost = field(default_factory=Cost)


UNKNOWN_KEY = "unknown_encryption_key"
MISSING = "content_missing"


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A stored content that cannot be used here: sealed with a key that this process lacks, damaged, or refused by today's
    rules. Its sends wait; nothing is wrong with them."""

    code: str


class _Kept:
    """The contents used last, up to `KEPT_BYTES`. Threads share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_id: OrderedDict[int, Compiled] = OrderedDict()
        self._bytes = 0

    def get(self, wanted: Iterable[int]) -> dict[int, Compiled]:
        with self._lock:
            found = {pk: self._by_id[pk] for pk in wanted if pk in self._by_id}
            for pk in found:
                self._by_id.move_to_end(pk)
            return found

    def put(self, found: Mapping[int, Compiled]) -> None:
        with self._lock:
            for pk, compiled in found.items():
                if pk not in self._by_id:
                    self._bytes += compiled.size
                self._by_id[pk] = compiled
            while self._bytes > KEPT_BYTES and len(self._by_id) > 1:
                self._bytes -= self._by_id.popitem(last=False)[1].size

    def clear(self) -> None:
        with self._lock:
            self._by_id.clear()
            self._bytes = 0


kept = _Kept()


def _binding(tenant_id: int) -> bytes:
    return b"content:%d" % tenant_id


def store_contents(tenant_id: int, documents: Sequence[Document]) -> list[int]:
    """Ids of the rows that hold `documents`, in their order. Joins the caller's transaction; safe against twins."""
    plain = [document.to_bytes() for document in documents]
    digests = [
        keyed_digest(b"%d:%d:" % (tenant_id, document.liquid) + data)
        for document, data in zip(documents, plain, strict=True)
    ]
    ids = _find(tenant_id, digests)
    new: dict[bytes, Content] = {}
    for document, data, digest in zip(documents, plain, digests, strict=True):
        if digest not in ids and digest not in new:
            new[digest] = Content(
                tenant_id=tenant_id,
                digest=digest,
                liquid=document.liquid,
                from_domain=document.sender_domain,
                sealed=keyring().seal(data, _binding(tenant_id)),
            )
    if new:
        # In one order everywhere, so that two transactions with the same contents wait for each other and not in a ring.
        Content.objects.bulk_create([new[digest] for digest in sorted(new)], ignore_conflicts=True)
        ids |= _find(tenant_id, list(new))
    return [ids[digest] for digest in digests]


def _find(tenant_id: int, digests: Iterable[bytes]) -> dict[bytes, int]:
    rows = Content.objects.filter(tenant_id=tenant_id, digest__in=set(digests)).values_list("digest", "id")
    return {bytes(digest): pk for digest, pk in rows}


class Contents:
    """Documents and templates of some contents, from this process' memory or the database; each is compiled when it is
    asked for. One that cannot be used is `Unreadable`, and no trouble for the others."""

    def __init__(self, content_ids: Iterable[int]) -> None:
        wanted = set(content_ids)
        self._ready: dict[int, Compiled | Unreadable] = {**kept.get(wanted)}
        missing = wanted - self._ready.keys()
        self._rows = {row.pk: row for row in Content.objects.filter(pk__in=missing)} if missing else {}

    def is_cold(self, pk: int) -> bool:
        """It has to be compiled yet."""
        return pk in self._rows and pk not in self._ready

    def __getitem__(self, pk: int) -> Compiled | Unreadable:
        if pk not in self._ready:
            row = self._rows.get(pk)
            if row is None:
                log.error("content_unreadable", extra={"content": pk, "code": MISSING})
            found = self._ready[pk] = _compile(row) if row is not None else Unreadable(MISSING)
            if isinstance(found, Compiled):
                kept.put({pk: found})
        return self._ready[pk]


def compiled_content(content: Content) -> Compiled:
    """Raises Unavailable if it cannot be used here (see `Unreadable`)."""
    found = _compile(content)
    if isinstance(found, Unreadable):
        raise Unavailable(
            found.code, "The stored content cannot be read now. The operator must look at it.", retry_after=60
        )
    return found


def _compile(content: Content) -> Compiled | Unreadable:
    try:
        data = keyring().open(bytes(content.sealed), _binding(content.tenant_id))
        document = Document.from_bytes(data)
        template = compile_document(document)
        return Compiled(document, template, template.held())
    except UnknownKey:
        code = UNKNOWN_KEY
    except SealError:
        code = "content_damaged"
    except (ValueError, MessagingError):
        code = "content_not_acceptable"
    log.error("content_unreadable", extra={"content": content.pk, "tenant": content.tenant_id, "code": code})
    return Unreadable(code)
