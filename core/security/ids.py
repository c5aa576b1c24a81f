"""Identifiers of everything that an outsider may see: UUIDv7, time-ordered, so that "oldest first" is "by id" and
new rows land at the right edge of an index. They tell when a thing was made, and nothing about how many there are
(a sequence would let a tenant count its neighbours' sends)."""

from uuid import UUID

from uuid_utils.compat import uuid7

__all__ = ["new_id"]


def new_id() -> UUID:
    """A fresh UUIDv7. Ascending within a thread; between threads and hosts only as good as their clocks."""
    return uuid7()
