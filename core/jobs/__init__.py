"""Jobs: work that takes effect once (`core.jobs.leases`)."""

from core.jobs.leases import FencedOut, Held, JobDone, JobRunning, hold, job

__all__ = ["FencedOut", "Held", "JobDone", "JobRunning", "hold", "job"]
