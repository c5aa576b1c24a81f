"""Cursors of lists: where a page ended, for the caller to hand back as it is.

A cursor is the last position and a MAC over it, the list, the tenant and the filters. So it opens only the list it came
from: another tenant's, one of other filters, or one that was tampered with is refused, not answered with a wrong page.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Mapping
from uuid import UUID

from django.utils.crypto import salted_hmac

from core.security.hashing import canonical_json
from messaging.domain.errors import InvalidInput

_SALT = "messaging.api.cursor"
_MAC_BYTES = 16
_FORM = re.compile(r"[A-Za-z0-9_-]{43}")  # 32 bytes in base64url, without padding


def write_cursor(position: UUID, *, of: str, tenant: int, filters: Mapping[str, str]) -> str:
    """The cursor behind `position` in the list `of` (its name) of the tenant, narrowed by `filters`.

    `filters` are in canonical form: two spellings of one filter give one cursor. The size of a page is none of them.
    """
    raw = position.bytes + _mac(position, of, tenant, filters)
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def read_cursor(cursor: str, *, of: str, tenant: int, filters: Mapping[str, str]) -> UUID:
    """The position that `write_cursor` was given. Raises InvalidInput (`invalid_cursor`)."""
    try:
        raw = base64.urlsafe_b64decode(f"{cursor}=") if _FORM.fullmatch(cursor) else b""
    except binascii.Error:
        raw = b""
    position = UUID(bytes=raw[:-_MAC_BYTES]) if len(raw) == 16 + _MAC_BYTES else UUID(int=0)
    if not hmac.compare_digest(raw[-_MAC_BYTES:], _mac(position, of, tenant, filters)):
        raise InvalidInput(
            "invalid_cursor",
            "This cursor is not one of this list. Take next_cursor as it is, with the filters it was answered for.",
            field="cursor",
        )
    return position


def _mac(position: UUID, of: str, tenant: int, filters: Mapping[str, str]) -> bytes:
    said = canonical_json([of, tenant, filters, position.hex])
    return salted_hmac(_SALT, said, algorithm="sha256").digest()[:_MAC_BYTES]
