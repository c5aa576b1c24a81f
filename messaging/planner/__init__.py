"""Planning blasts: a content and a list of recipients become rows of the ledger.

source (CSV, NDJSON, mappings) ─▶ rows ─▶ chunks ─▶ encode: check, fingerprint, seal ─▶ store: one transaction a chunk
"""

from messaging.planner.plan import plan_blast, resume_planning
from messaging.planner.results import PlanResult, Progress
from messaging.services.launch import launch_blast

__all__ = ["PlanResult", "Progress", "launch_blast", "plan_blast", "resume_planning"]
