"""Stored contents: an equal document of a tenant is stored once, and never changes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from django.db.models import Q

from core.crypto import keyed_digest, keyring
from messaging.content import Document, Template, compile_document
from messaging.models import Content

#: Compiled templates that a process keeps. A tenant's blast is one; literal contents are not worth keeping, but cost
#: little.
_COMPILED = 256


@dataclass(frozen=True, slots=True)
class Compiled:
    document: Document
    template: Template


_compiled: dict[int, Compiled] = {}


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
    rows = Content.objects.filter(Q(tenant_id=tenant_id, digest__in=set(digests))).values_list("digest", "id")
    return {bytes(digest): pk for digest, pk in rows}


def compiled_contents(content_ids: Iterable[int]) -> dict[int, Compiled]:
    """The documents and templates of `content_ids`, from this process' memory or the database."""
    wanted = set(content_ids)
    found = {pk: _compiled[pk] for pk in wanted if pk in _compiled}
    if missing := wanted - found.keys():
        for content in Content.objects.filter(pk__in=missing):
            document = Document.from_bytes(keyring().open(bytes(content.sealed), _binding(content.tenant_id)))
            found[content.pk] = Compiled(document, compile_document(document))
        for pk in missing:
            _compiled[pk] = found[pk]
        while len(_compiled) > _COMPILED:
            _compiled.pop(next(iter(_compiled)), None)
    return found
