"""What was typed into the search of the sends."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from core.security.crypto import fingerprint
from messaging.channels.email.address import parse_address
from messaging.domain.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Sought:
    """An id; or a tenant's short name, a recipient's fingerprint, or both; or why it is none of it."""

    id: UUID | None = None
    slug: str = ""
    fingerprint: bytes | None = None
    problem: str = ""


def parse_search(text: str) -> Sought:
    """`ID`, `TENANT`, `ADDRESS` or `TENANT ADDRESS`. The address itself goes no further than this."""
    words = text.split()
    if not words:
        return Sought()
    if len(words) == 1 and (pk := _uuid(words[0])) is not None:
        return Sought(id=pk)
    slug, address = (words[0], words[1:]) if "@" not in words[0] else ("", words)
    if len(address) > 1:
        return Sought(problem="Write an id, or a tenant's short name and one address.")
    if not address:
        return Sought(slug=slug)
    try:
        return Sought(slug=slug, fingerprint=fingerprint(parse_address(address[0], "q").canonical))
    except InvalidInput:
        return Sought(problem="What follows the tenant is no e-mail address." if slug else "This is no e-mail address.")


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
