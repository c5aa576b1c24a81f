"""What can be set when the sandbox starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Window = Literal["fixed", "bucket"]


@dataclass(frozen=True, slots=True)
class Options:
    """The whole configuration of one sandbox. The defaults are those of a fresh Resend team."""

    host: str = "127.0.0.1"
    port: int = 8025  # 0: any free port
    rate: int = 10  # requests per second over all keys; 0: unlimited
    window: Window = "fixed"
    burst: int | None = None  # capacity of the bucket in requests; None: the rate, i.e. one second's worth
    daily_quota: int | None = None  # e-mails in any 24 h; None: no quota
    latency_ms: float = 50.0
    api_keys: tuple[str, ...] = ("re_sandbox",)
    verified_domains: tuple[str, ...] = ()  # empty: every domain is verified
    send_id_tag: str = "send_id"
    keep_bodies: bool = False
