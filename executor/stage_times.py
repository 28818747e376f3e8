"""Observe how late attempts reach each stage: claimed, started, ended.

A run's instant and its claim are times of the database's clock. From there on the executor's monotonic clock counts.
"""

from collections import defaultdict
from collections.abc import Iterable

from tidewheel.executor.attempt import Attempt
from tidewheel.process.metrics import metrics


def observe_claimed(attempts: Iterable[Attempt]) -> None:
    """Observe a batch of claims."""
    late: defaultdict[str, list[float]] = defaultdict(list)
    for attempt in attempts:
        late[attempt.definition.lane].append(_claim_lateness(attempt))
    for lane, seconds in late.items():
        metrics.observe("lateness_seconds", seconds, "claimed", lane)


def observe_ended(attempts: Iterable[Attempt]) -> None:
    """Observe a batch of recorded attempts; those that never started have no times."""
    started: defaultdict[str, list[float]] = defaultdict(list)
    ended: defaultdict[str, list[float]] = defaultdict(list)
    took: defaultdict[str, list[float]] = defaultdict(list)
    for attempt in attempts:
        if not attempt.began_at:
            continue
        lane, due = attempt.definition.lane, attempt.claimed_at - _claim_lateness(attempt)
        started[lane].append(attempt.began_at - due)
        ended[lane].append(attempt.ended_at - due)
        took[lane].append(attempt.ended_at - attempt.began_at)
    for name in took:
        metrics.observe("lateness_seconds", started[name], "started", name)
        metrics.observe("lateness_seconds", ended[name], "ended", name)
        metrics.observe("attempt_duration_seconds", took[name], name)


def _claim_lateness(attempt: Attempt) -> float:
    return (attempt.started.started_at - attempt.started.publish_at).total_seconds()
