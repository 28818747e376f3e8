"""The figures of the summary, reckoned from the same history as the checks. Pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from tidewheel.control.demo.history import Call, History
from tidewheel.control.demo.seen import Seen
from tidewheel.schemas.generated.records import Reply, ReplyStatus, RunStatus

_BEFORE_KILL = timedelta(
    seconds=1
)  # what is due later than this may have been waiting for the executor that was killed


@dataclass(frozen=True, slots=True)
class Lateness:
    """How late first calls arrived after their nominal instants.

    Args:
        runs: How many were measured.
        p50_ms: Half of them were quicker.
        p99_ms: All but one in a hundred.
        max_ms: The slowest.
    """

    runs: int
    p50_ms: float
    p99_ms: float
    max_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What the summary shows.

    Args:
        sent: Requests produced.
        accepted: Of them, carried out.
        due: Occurrences by arithmetic.
        runs: Rows in PostgreSQL.
        events: Distinct completion events.
        repeated_events: Deliveries of an event that had come before.
        ends: Runs by how they ended.
        effective_runs: Runs that had an effect.
        second_effects: Effects beyond a run's first.
        failures: Attempts that failed as the file says.
        lost: Attempts that the kill ended.
        undisturbed: Lateness of HTTP calls that were due before the kill.
        overall: Lateness of all HTTP calls.
        rejections: The answers to the malformed requests.
    """

    sent: int
    accepted: int
    due: int
    runs: int
    events: int
    repeated_events: int
    ends: dict[RunStatus, int]
    effective_runs: int
    second_effects: int
    failures: int
    lost: int
    undisturbed: Lateness
    overall: Lateness
    rejections: Sequence[Reply]


def figures_of(history: History) -> Figures:
    """Reckon the figures."""
    seen = Seen(history)
    replies = {answer.number: answer.reply for answer in history.answers}
    first = [calls[0] for calls in seen.calls.values() if not calls[0].by_handler]
    until = history.kill.at - _BEFORE_KILL if history.kill else None
    attempts = sum(run.attempt for run in seen.runs.values())
    failures = sum(not call.effective for call in history.calls)
    ended = sum(run.status is RunStatus.SUCCEEDED for run in seen.runs.values())
    return Figures(
        sent=history.sent,
        accepted=sum(reply.status is ReplyStatus.ACCEPTED for reply in replies.values()),
        due=len(history.due),
        runs=history.rows,
        events=len({event.event_id for event in history.completions}),
        repeated_events=len(history.completions) - len({event.event_id for event in history.completions}),
        ends=dict(Counter(run.status for run in seen.runs.values())),
        effective_runs=len(seen.effects),
        second_effects=sum(len(calls) - 1 for calls in seen.effects.values()),
        failures=failures,
        lost=attempts - failures - ended,
        undisturbed=_lateness(first, until),
        overall=_lateness(first, None),
        rejections=[reply for reply in replies.values() if reply.status is not ReplyStatus.ACCEPTED],
    )


def percentile(ordered: Sequence[float], percent: int) -> float:
    """The nearest-rank percentile of ascending numbers; 0 of none.

    >>> percentile([1.0, 2.0, 3.0, 4.0], 50), percentile([1.0, 2.0, 3.0, 4.0], 99), percentile([], 50)
    (2.0, 4.0, 0.0)
    """
    return ordered[-(-len(ordered) * percent // 100) - 1] if ordered else 0.0


def _lateness(calls: Sequence[Call], until: datetime | None) -> Lateness:
    late = sorted(
        (call.arrived_at - call.scheduled_at) / timedelta(milliseconds=1)
        for call in calls
        if until is None or call.scheduled_at <= until
    )
    return Lateness(len(late), percentile(late, 50), percentile(late, 99), late[-1] if late else 0.0)
