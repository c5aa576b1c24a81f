"""The clock: a process that every half second writes down what has become true by time alone.

Each step is small, bounded and idempotent, and two clocks at once do no harm: rows are taken with SKIP LOCKED or by
conditional updates. What a bounded step leaves behind, the next beat takes.
"""

from messaging.clock.beat import BEAT_SECONDS, Beat, run_once

__all__ = ["BEAT_SECONDS", "Beat", "run_once"]
