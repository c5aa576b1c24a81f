"""Notifications of many tenants through providers whose limits they share.

    messaging.submit(tenant, to=…, from_=…, subject=…, text=…, category="transactional")
    messaging.submit_many(tenant, [{…}, …])
    messaging.plan_blast(tenant, from_=…, subject=…, html=…, recipients=[…])
    messaging.redrive(reason="attempts_exhausted", by="ops")

Inside `atomic()` they join the caller's transaction. What they take and raise is said at each.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from messaging.planner import plan_blast
    from messaging.services.redrive import redrive
    from messaging.services.submit import SendRequest, Submitted, submit, submit_many

__all__ = ["SendRequest", "Submitted", "plan_blast", "redrive", "submit", "submit_many"]

_HOME = {"plan_blast": "messaging.planner", "redrive": "messaging.services.redrive"}


def __getattr__(name: str) -> Any:
    # Found when asked for: Django imports this package before models may be loaded.
    if name in __all__:
        return getattr(import_module(_HOME.get(name, "messaging.services.submit")), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
