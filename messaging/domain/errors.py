"""Everything that a caller can be told, as one tree. Each class is an HTTP status; each raise gives a stable `code`.

Messages say what to do, name the field, and never quote an address, a body or a key. None of these changes anything:
where one is raised, nothing was stored.
"""

from __future__ import annotations


class MessagingError(Exception):
    """Base. `code` is for machines and stable; `message` for people; `field` names the input at fault, if one is."""

    status = 500

    def __init__(self, code: str, message: str, *, field: str | None = None, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.field = field
        self.retry_after = retry_after  # seconds


class InvalidInput(MessagingError):
    """The input can never be accepted as it is."""

    status = 400


class Unauthenticated(MessagingError):
    status = 401


class Forbidden(MessagingError):
    """The input is well formed, and this tenant may not do it."""

    status = 403


class NotFound(MessagingError):
    """It does not exist, or it belongs to somebody else: the two look alike."""

    status = 404


class Conflict(MessagingError):
    """It contradicts what is stored already."""

    status = 409


class TooLarge(MessagingError):
    status = 413


class Throttled(MessagingError):
    """This tenant has too much open. Try again after `retry_after`."""

    status = 429


class Unavailable(MessagingError):
    """Nothing is wrong with the input; the platform cannot take it now. Try again after `retry_after`."""

    status = 503
