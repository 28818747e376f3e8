"""Check a demo's history and compute the figures of its summary. Pure.

Three independent counts must agree: arithmetic over the requests, the receiver's calls and the consumer's events.
Every failed check names the run to look at.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

from tidewheel.control.demo.observations import Call, History, Observations
from tidewheel.control.demo.occurrences import Occurrence
from tidewheel.schemas.generated.records import Reply, ReplyStatus, RequestType, RunCompleted, RunStatus

# A claim and an end take their instants a little before their transactions commit.
_SLACK = timedelta(seconds=1)
_BEFORE_KILL = timedelta(seconds=1)  # a run due later than this may have waited for the killed executor
_SHOWN = 3  # examples in a message


@dataclass(frozen=True, slots=True)
class Check:
    """One promise and the faults found against it.

    Args:
        promise: The promise in words.
        faults: One text for each fault. Empty if the promise holds.
    """

    promise: str
    faults: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """True if there are no faults."""
        return not self.faults

    def __str__(self) -> str:
        if self.holds:
            return self.promise
        more = f" (and {len(self.faults) - _SHOWN} more)" if len(self.faults) > _SHOWN else ""
        return f"{self.promise}: {'; '.join(self.faults[:_SHOWN])}{more}"


def check_all(history: History) -> list[Check]:
    """Run every check, in the order of a run's life."""
    observations = Observations(history)
    return [Check(promise, tuple(find(observations))) for promise, find in _CHECKS]


def _unanswered(observations: Observations) -> Iterable[str]:
    replies: defaultdict[int, set[str]] = defaultdict(set)
    for answer in observations.history.answers:
        replies[answer.number].add(repr(answer.reply))
    for number in range(observations.history.sent):
        if len(replies[number]) != 1:
            yield f"request {number + 1} has {len(replies[number])} different answers"


def _wrong_rejections(observations: Observations) -> Iterable[str]:
    found: dict[str, frozenset[str]] = {}
    for reply in (answer.reply for answer in observations.history.answers):
        if reply.status is not ReplyStatus.ACCEPTED:
            found[reply.key or ""] = frozenset(error.path for error in reply.errors)
            yield from (f"{reply.key}: no remedy for {error.path}" for error in reply.errors if not error.remedy)
    yield from _differences(observations.history.expected.rejected, found, "rejected")


def _bad_instants(observations: Observations) -> Iterable[str]:
    return observations.history.bad_instants


def _unreadable(observations: Observations) -> Iterable[str]:
    return observations.history.unreadable


def _unfinished(observations: Observations) -> Iterable[str]:
    if observations.history.unfinished:
        yield f"{observations.history.unfinished} had not ended when the demo gave up waiting"


def _wrong_occurrences(observations: Observations) -> Iterable[str]:
    reported = Counter(Occurrence(run.job_key, run.cause, run.scheduled_at) for run in observations.runs.values())
    for missing in sorted(observations.history.due - reported.keys()):
        yield f"{missing.key} at {missing.at:%H:%M:%S.%f} was due and has no completion event"
    for occurrence, runs in sorted(reported.items()):
        if occurrence not in observations.history.due:
            yield f"{occurrence.key} ran at {occurrence.at:%H:%M:%S.%f}, which was not due"
        if runs > 1:
            yield f"{occurrence.key} at {occurrence.at:%H:%M:%S.%f} became {runs} runs"


def _wrong_rows(observations: Observations) -> Iterable[str]:
    if observations.history.rows != len(observations.history.due):
        yield f"{observations.history.rows} rows in runs for {len(observations.history.due)} occurrences"


def _changed_events(observations: Observations) -> Iterable[str]:
    for event in observations.history.completions:
        first = observations.runs[event.run_id]
        if event.event_id != first.event_id:
            yield f"run {event.run_id} has two events, {first.event_id} and {event.event_id}"
        elif event != first:
            yield f"run {event.run_id} has two completion events with different contents"
    shared = Counter(run.event_id for run in observations.runs.values())
    yield from (f"event {event_id} names {count} runs" for event_id, count in shared.items() if count > 1)


def _unexplained_ends(observations: Observations) -> Iterable[str]:
    for run in observations.runs.values():
        if not _end_is_explained(observations, run):
            yield f"{run.job_key}, run {run.run_id}, ended {run.status} ({run.reason or run.error})"


def _end_is_explained(observations: Observations, run: RunCompleted) -> bool:
    match run.status:
        case RunStatus.SUCCEEDED:
            return True
        case RunStatus.FAILED:
            return run.job_key in observations.history.expected.dead_letters
        case RunStatus.SKIPPED:
            return run.reason == "overlap" and any(
                _under_way(other, run) for other in observations.runs_of[run.job_key]
            )
        case RunStatus.CANCELLED:
            return run.reason == "job_deleted" and run.attempt == 0
        case _:
            return False


def _under_way(other: RunCompleted, skipped: RunCompleted) -> bool:
    """Return True if another run of the job was active when this one was skipped."""
    if other.run_id == skipped.run_id or other.status is RunStatus.SKIPPED:
        return False
    return other.scheduled_at - _SLACK <= skipped.finished_at <= other.finished_at + _SLACK


def _wrong_dead_letters(observations: Observations) -> Iterable[str]:
    letters = {letter.event_id: letter for letter in observations.history.dead_letters}
    found = Counter(letter.job_key for letter in letters.values())
    yield from _differences(dict.fromkeys(observations.history.expected.dead_letters, 1), found, "dead letters")
    for letter in letters.values():
        run = observations.runs.get(letter.run_id)
        if run is None or run.status is not RunStatus.FAILED:
            yield f"run {letter.run_id} has a dead letter and ended {run.status if run else 'nowhere'}"


def _lost_triggers(observations: Observations) -> Iterable[str]:
    for reply in (answer.reply for answer in observations.history.answers):
        if reply.type is RequestType.JOB_TRIGGER and reply.run_id is not None and reply.run_id not in observations.runs:
            yield f"the trigger {reply.request_id} of {reply.key} names run {reply.run_id}, without a completion event"


def _repeated_attempts(observations: Observations) -> Iterable[str]:
    calls = Counter((call.run_id, call.attempt) for call in observations.history.calls)
    for (run_id, attempt), count in calls.items():
        if count > 1:
            yield f"attempt {attempt} of run {run_id} reached the receiver {count} times"


def _wrong_keys(observations: Observations) -> Iterable[str]:
    for call in observations.history.calls:
        if call.idempotency_key != call.run_id:
            yield f"run {call.run_id} came with idempotency key {call.idempotency_key!r}"


def _wrong_effects(observations: Observations) -> Iterable[str]:
    for run in observations.runs.values():
        attempts = [call.attempt for call in observations.effects.get(run.run_id, [])]
        if run.status is RunStatus.SUCCEEDED and run.attempt not in attempts:
            yield f"{run.job_key}, run {run.run_id}, succeeded by attempt {run.attempt}, which had no effect"
        if run.status is not RunStatus.SUCCEEDED and attempts:
            yield f"{run.job_key}, run {run.run_id}, ended {run.status} and had an effect"
    yield from (
        f"run {run_id} had an effect and no completion event"
        for run_id in observations.effects.keys() - observations.runs
    )


def _unexplained_effects(observations: Observations) -> Iterable[str]:
    for run_id, calls in observations.effects.items():
        for call, following in pairwise(calls):
            if following.attempt <= call.attempt:
                yield f"attempt {following.attempt} of run {run_id} took effect after attempt {call.attempt} had"
            if not observations.ended_by_kill(call):
                yield f"run {run_id} took effect again by attempt {following.attempt}, with nothing to explain it"


def _unexplained_attempts(observations: Observations) -> Iterable[str]:
    for run in observations.runs.values():
        calls = {call.attempt: call for call in observations.calls.get(run.run_id, [])}
        if beyond := [attempt for attempt in calls if attempt > run.attempt]:
            yield f"run {run.run_id} ended with attempt {run.attempt}, and attempt {max(beyond)} was made"
        for attempt in range(1, run.attempt):
            if not _attempt_is_explained(observations, calls, attempt):
                yield f"{run.job_key}, run {run.run_id}: nothing explains why attempt {attempt} was not the last"


def _attempt_is_explained(observations: Observations, calls: Mapping[int, Call], attempt: int) -> bool:
    """Return True if the file or the kill explains why this attempt was not the last.

    An attempt that never reached the receiver is explained by the kill if the next one arrived after it.
    """
    kill, call, following = observations.history.kill, calls.get(attempt), calls.get(attempt + 1)
    if call is not None:
        return not call.effective or observations.ended_by_kill(call)
    return kill is not None and following is not None and following.arrived_at > kill.at


def _no_kill(observations: Observations) -> Iterable[str]:
    if observations.history.kill is None:
        yield "no executor was killed"
    elif not observations.history.kill.open_calls:
        yield "it had no open calls"


def _differences(expected: Mapping[str, object], found: Mapping[str, object], what: str) -> Iterable[str]:
    for key in sorted(expected.keys() | found.keys()):
        if expected.get(key) != found.get(key):
            yield f"{what} of {key}: {_words(found.get(key))}, not {_words(expected.get(key))}"


def _words(value: object) -> str:
    match value:
        case None:
            return "none"
        case frozenset():
            return ", ".join(sorted(str(part) for part in value))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        case _:
            return str(value)


_CHECKS: Sequence[tuple[str, Callable[[Observations], Iterable[str]]]] = (
    ("every message could be read", _unreadable),
    ("every request has one answer", _unanswered),
    ("exactly the malformed requests are rejected, each field with its path and remedy", _wrong_rejections),
    ("each acceptance, pause and deletion is between its request and its reply", _bad_instants),
    ("every run has ended", _unfinished),
    ("each due occurrence is exactly one run with one completion event, and nothing else ran", _wrong_occurrences),
    ("runs in PostgreSQL = occurrences due", _wrong_rows),
    ("each trigger became the run that its reply names", _lost_triggers),
    ("a run's completion event is repeated only with the same id and contents", _changed_events),
    ("each end is explained: success, an overlap, a deletion, or a failure that the file scripts", _unexplained_ends),
    ("dead letters = the jobs that never succeed", _wrong_dead_letters),
    ("no attempt reached the receiver twice", _repeated_attempts),
    ("each call carries its run's id as idempotency key", _wrong_keys),
    ("runs with an effect = runs that succeeded", _wrong_effects),
    ("a run's second effect has a higher attempt and is explained by the kill", _unexplained_effects),
    ("each further attempt is explained by a failure in the file or by the kill", _unexplained_attempts),
    ("an executor was killed with open calls", _no_kill),
)


@dataclass(frozen=True, slots=True)
class Lateness:
    """Lateness of first calls after their nominal instants.

    Args:
        runs: The number of measured runs.
        p50_ms: The median.
        p99_ms: The 99th percentile.
        max_ms: The maximum.
    """

    runs: int
    p50_ms: float
    p99_ms: float
    max_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of the summary.

    Args:
        sent: Requests produced.
        accepted: Requests accepted.
        due: Occurrences by arithmetic.
        runs: Rows in PostgreSQL.
        events: Distinct completion events.
        repeated_events: Repeated deliveries of an event.
        ends: Runs by final status.
        effective_runs: Runs that had an effect.
        second_effects: Effects beyond a run's first.
        failures: Attempts that failed as the file scripts.
        lost: Attempts that the kill ended.
        undisturbed: Lateness of HTTP calls that were due before the kill.
        overall: Lateness of all HTTP calls.
        rejections: The replies to the malformed requests.
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
    """Compute the figures."""
    observations = Observations(history)
    replies = {answer.number: answer.reply for answer in history.answers}
    first = [calls[0] for calls in observations.calls.values() if not calls[0].by_handler]
    until = history.kill.at - _BEFORE_KILL if history.kill else None
    attempts = sum(run.attempt for run in observations.runs.values())
    failures = sum(not call.effective for call in history.calls)
    ended = sum(run.status is RunStatus.SUCCEEDED for run in observations.runs.values())
    return Figures(
        sent=history.sent,
        accepted=sum(reply.status is ReplyStatus.ACCEPTED for reply in replies.values()),
        due=len(history.due),
        runs=history.rows,
        events=len({event.event_id for event in history.completions}),
        repeated_events=len(history.completions) - len({event.event_id for event in history.completions}),
        ends=dict(Counter(run.status for run in observations.runs.values())),
        effective_runs=len(observations.effects),
        second_effects=sum(len(calls) - 1 for calls in observations.effects.values()),
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
