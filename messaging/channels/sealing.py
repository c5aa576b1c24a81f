"""The recipient of a send at rest: wire address and variables, sealed, and bound to the send that they belong to.

Sealed together because they are read together (once, when the send is rendered) and because a variable is as personal
as an address. The plain text is the canonical JSON of `[to, variables]`; the binding is the send's id, so that a value
copied to another row does not open there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from core.security.crypto import SealError, keyring
from core.security.hashing import canonical_json

_BINDING = b"send:"


def seal_recipient(send_id: UUID, to: str, variables: Mapping[str, Any]) -> bytes:
    """Seal `to` (the wire form, as `messaging.channels.email.address` gives it) and `variables` (JSON values) for this send.

    Raises TypeError or ValueError for what is not JSON: callers validate variables first.
    """
    return keyring().seal(canonical_json([to, variables]), _BINDING + send_id.bytes)


def open_recipient(send_id: UUID, sealed: bytes) -> tuple[str, dict[str, Any]]:
    """The wire address and the variables. Raises SealError if it was sealed for another send, or is damaged."""
    value = json.loads(keyring().open(bytes(sealed), _BINDING + send_id.bytes))
    match value:
        case [str() as to, dict() as variables]:
            return to, variables
    raise SealError("sealed value is not a recipient")
