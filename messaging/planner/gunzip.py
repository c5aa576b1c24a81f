"""A gzip stream, unpacked as it is read: flat memory, bounded expansion."""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable

from messaging.domain.errors import InvalidInput, TooLarge

#: Bytes that may come out for each that went in. Lists of people give 3 to 30, the worst that gzip can do is 1,032.
MAX_RATIO = 200
#: Bytes that are unpacked before the ratio is looked at: short and very regular lists are not meant.
FREE = 1024 * 1024
#: Bytes that come out at most.
MAX_BYTES = 4 * 1024**3

_IN = 16 * 1024
_GZIP = zlib.MAX_WBITS | 16


class Gunzip(io.RawIOBase):
    """The plain bytes of the gzip stream that `read(size)` gives; several members one after the other count as one.

    Reading raises InvalidInput (`gzip_invalid`, `gzip_incomplete`), TooLarge (`gzip_ratio`, `gzip_too_large`).
    """

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read
        self._packed = b""  # read and not unpacked yet
        self._in = self._out = 0
        self._member = zlib.decompressobj(_GZIP)
        self._may_end = False  # a member has just ended, and nothing of another has been read

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # io.BufferedReader hands over a memoryview
        data = self._next(len(buffer))
        buffer[: len(data)] = data
        self._out += len(data)
        if self._out > MAX_BYTES:
            raise TooLarge(
                "gzip_too_large", f"A gzip body may expand to at most {MAX_BYTES:,} bytes. Send it in parts."
            )
        if self._out > FREE and self._out > self._in * MAX_RATIO:
            raise TooLarge("gzip_ratio", f"The gzip body expands to more than {MAX_RATIO} times its size: refused.")
        return len(data)

    def _next(self, size: int) -> bytes:
        """At least one byte, at most `size`; none at the end."""
        while True:
            if not self._packed:
                self._packed = self._read(_IN)
                self._in += len(self._packed)
                if not self._packed:
                    if self._may_end:
                        return b""
                    raise InvalidInput("gzip_incomplete", "The gzip body ends before its end: it was cut.")
            try:
                data = self._member.decompress(self._packed, size)
            except zlib.error:
                raise InvalidInput("gzip_invalid", "The body is not gzip, or is damaged.") from None
            self._may_end = self._member.eof
            self._packed = self._member.unconsumed_tail
            if self._member.eof:
                self._packed = self._member.unused_data
                self._member = zlib.decompressobj(_GZIP)
            if data:
                return data
