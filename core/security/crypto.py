"""Sealing of personal data at rest, and the fingerprint that finds an address without reading it.

A sealed value is `version byte · length of key id · key id · 12-byte nonce · AES-256-GCM ciphertext and tag`. The
associated data binds it to the row it belongs to: moved to another row, it does not open. Keys come from
`ENCRYPTION_KEYS`: the first one seals, all open, so that a key is rotated by putting a new one in front.
The fingerprint is HMAC-SHA256 under a key of its own, cut to 16 bytes: equal addresses have equal fingerprints, and
nobody without the key can test a guess.
"""

from __future__ import annotations

import functools
import hmac
import os
from collections.abc import Mapping

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from django.conf import settings

_VERSION = 1
_NONCE_BYTES = 12
FINGERPRINT_BYTES = 16


class SealError(ValueError):
    """A sealed value does not open: unknown key id, damaged, or bound to another row. The text names the key id only."""


class UnknownKey(SealError):
    """Sealed with a key that this process does not have: nothing is lost, another process may have it."""


class Keyring:
    def __init__(self, keys: Mapping[str, bytes]) -> None:
        self._ciphers = {key_id: AESGCM(key) for key_id, key in keys.items()}
        first = next(iter(keys))
        self._seal_with = self._ciphers[first]
        encoded = first.encode("ascii")
        self._header = bytes((_VERSION, len(encoded))) + encoded

    def seal(self, plain: bytes, bound_to: bytes) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        return self._header + nonce + self._seal_with.encrypt(nonce, plain, bound_to)

    def open(self, sealed: bytes, bound_to: bytes) -> bytes:
        if len(sealed) < 2 or sealed[0] != _VERSION:
            raise SealError("not a sealed value")
        end = 2 + sealed[1]
        key_id = sealed[2:end].decode("ascii", "replace")
        cipher = self._ciphers.get(key_id)
        if cipher is None:
            raise UnknownKey(f"sealed with key {key_id!r}, which is not in ENCRYPTION_KEYS")
        nonce = sealed[end : end + _NONCE_BYTES]
        try:
            return cipher.decrypt(nonce, sealed[end + _NONCE_BYTES :], bound_to)
        except (InvalidTag, ValueError):
            raise SealError(f"does not open with key {key_id!r}: damaged, or bound to another row") from None


@functools.cache
def keyring() -> Keyring:
    """The keyring of the settings. Cached: tests that change the keys call `keyring.cache_clear()`."""
    return Keyring(settings.ENCRYPTION_KEYS)


def fingerprint(address: str) -> bytes:
    """16 bytes that stand for `address` (already normalised by the caller) in indexes and look-ups."""
    return hmac.digest(settings.FINGERPRINT_KEY, address.encode(), "sha256")[:FINGERPRINT_BYTES]


def keyed_digest(data: bytes) -> bytes:
    """32 bytes that stand for `data`: equal data, equal digests; without the key a guess cannot be tested."""
    return hmac.digest(settings.FINGERPRINT_KEY, data, "sha256")
