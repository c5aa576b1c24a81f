"""The HTTP API under /v1/messaging/."""

from typing import Any

urlpatterns: list[Any] = []
