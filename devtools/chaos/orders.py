"""What is to be submitted, by whom, when: a pure function of the seed. Seconds from the begin of the load.

Every recipient is written to once in a whole run, so that what the provider took can be counted by address, whatever the
system itself believes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from random import Random

#: The first one blasts at the begin; all of them do everything.
TENANTS = ("acme", "bistro", "cinema", "dentist")

CODES_PER_SECOND = 4
PRODUCT_SHARE = 0.12
PRODUCT_EACH_SECONDS = 0.5
FIRST_BLAST_SHARE = 0.2
BLAST_EACH_SECONDS = 2.0
#: Every so many blasts, the recipients come as an uploaded list and not in the body.
UPLOAD_EACH = 5


class What(Enum):
    CODE = "code"  # POST sends
    PRODUCT = "product"  # submit_many
    BLAST = "blast"  # POST blasts, launched at once
    UPLOAD = "upload"  # POST blasts, then POST recipients, which launches


class Mischief(Enum):
    """What the client does beside repeating a submit that was not answered."""

    NONE = "none"
    REPEAT = "repeat"  # again, after it was answered
    TWIN = "twin"  # twice at the same moment
    HANG_UP = "hang up"  # does not wait for its first answer


@dataclass(frozen=True, slots=True)
class Order:
    """`key`: its idempotency key, and the name of its recipients."""

    at: float
    what: What
    tenant: str
    key: str
    size: int
    mischief: Mischief

    @property
    def recipients(self) -> list[str]:
        return [f"{self.key}-{number}@inbox.example" for number in range(self.size)]


def orders(seed: int, sends: int, seconds: float) -> list[Order]:
    """`sends` of them, spread over `seconds`, in the order of time."""
    random = Random(seed + 1)
    codes = round(CODES_PER_SECOND * seconds)
    product = round(PRODUCT_SHARE * sends)
    first = round(FIRST_BLAST_SHARE * (sends - codes - product))
    blasts = sends - codes - product - first
    found = [Order(0.0, What.UPLOAD, TENANTS[0], "first", first, Mischief.NONE)]
    found += [
        _order(random, What.CODE, f"code-{number}", seconds * (number + random.random()) / codes, 1)
        for number in range(codes)
    ]
    found += [
        _order(random, What.PRODUCT, f"product-{number}", at, size)
        for number, (at, size) in enumerate(_parts(product, seconds, PRODUCT_EACH_SECONDS))
    ]
    found += [
        _order(random, What.BLAST if number % UPLOAD_EACH else What.UPLOAD, f"blast-{number}", at, size)
        for number, (at, size) in enumerate(_parts(blasts, seconds, BLAST_EACH_SECONDS))
    ]
    return sorted(found, key=lambda order: order.at)


def rate(found: list[Order], seconds: float) -> int:
    """The provider's limit, in requests/s, with which they take half of the time: the other half is for the faults."""
    least = sum(math.ceil(order.size / 100) for order in found)
    return math.ceil(2 * least / seconds)


def _parts(total: int, seconds: float, each: float) -> Iterator[tuple[float, int]]:
    """`total` in parts as even as can be, one every `each` seconds: (when, how many)."""
    count = max(1, round(seconds / each))
    for number in range(count):
        size = total * (number + 1) // count - total * number // count
        if size:
            yield number * each, size


def _order(random: Random, what: What, key: str, at: float, size: int) -> Order:
    mischief = random.choices(list(Mischief), weights=(70, 10, 10, 10))[0]
    return Order(at, what, random.choice(TENANTS), key, size, mischief)
