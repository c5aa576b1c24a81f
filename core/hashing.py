"""Stable hashes: the same value gives the same digest in every process, on every host, in every release."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def canonical_json(value: Any) -> bytes:
    """JSON bytes that depend on the value alone: sorted keys, no spaces, UTF-8. Raises TypeError for non-JSON values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def stable_hash(value: Any) -> bytes:
    """SHA-256 (32 bytes) of the canonical JSON of `value`."""
    return hashlib.sha256(canonical_json(value)).digest()
