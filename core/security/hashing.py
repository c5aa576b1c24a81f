"""Canonical JSON: the same value gives the same bytes in every process, on every host, in every release."""

from __future__ import annotations

import json
from typing import Any


def canonical_json(value: Any) -> bytes:
    """JSON bytes that depend on the value alone: sorted keys, no spaces, UTF-8. Raises TypeError for non-JSON values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
