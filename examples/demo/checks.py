"""Judge a demo, and compute the figures of its summary. Pure.

`tidewheel admin audit` decides which occurrences were due. The receiver's calls and the consumer's events are counted
apart from it. Every failed check names the run to look at.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import cast

from examples.demo.consumer import Read
from examples.demo.receiver import Call
from examples.demo.requests import Expected
from examples.demo.services import Counts
from tidewheel.schemas.generated.records import Reply, ReplyStatus, RunStatus

_BEFORE_KILL = timedelta(seconds=1)  # a run due later than this may have waited for the killed executor
_SHOWN = 3  # examples in a message


@dataclass(frozen=True, slots=True)
class Kill:
    """The kill of an executor, and the attempts whose end it had not recorded: run id and number."""

    at: datetime
    attempts: frozenset[tuple[str, int]]


@dataclass(frozen=True, kw_only=True)
class History:
    """The number of requests, the records, the calls, the rows in PostgreSQL, the kill, the audit."""

    sent: int
    expected: Expected
    read: Read
    calls: Sequence[Call]
    rows: Counts
    kill: Kill | None
    audit: Mapping[str, object]

    @cached_property
    def calls_of(self) -> Mapping[str, Sequence[Call]]:
        """The calls of each run, in the order they arrived."""
        found: defaultdict[str, list[Call]] = defaultdict(list)
        for call in self.calls:
            found[call.run_id].append(call)
        return found

    @cached_property
    def effects(self) -> Mapping[str, Sequence[Call]]:
        """The calls of each run that took effect; runs without one are left out."""
        found = {run: [call for call in calls if call.effective] for run, calls in self.calls_of.items()}
        return {run: calls for run, calls in found.items() if calls}

    @property
    def rejections(self) -> Sequence[Reply]:
        """The replies to the malformed requests."""
        return [reply for reply in self.read.replies.values() if reply.status is not ReplyStatus.ACCEPTED]

    @property
    def totals(self) -> Mapping[str, object]:
        """The sums of the audit."""
        return cast("Mapping[str, object]", self.audit["totals"])


@dataclass(frozen=True, slots=True)
class Check:
    """One promise and the faults found against it."""

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
    return [Check(promise, tuple(find(history))) for promise, find in _CHECKS]


def _wrong_answers(history: History) -> Iterator[str]:
    yield from history.read.unreadable
    if len(history.read.replies) != history.sent:
        yield f"{len(history.read.replies)} of {history.sent} requests are answered"
    found = {reply.key: frozenset(error.path for error in reply.errors) for reply in history.rejections}
    for key in sorted({key or "" for key in found} | history.expected.rejected.keys()):
        if found.get(key) != history.expected.rejected.get(key):
            yield f"rejected of {key}: {sorted(found.get(key, ()))}"


def _audited(history: History) -> Iterator[str]:
    for each in cast("list[Mapping[str, object]]", history.audit["findings"]):
        finding = cast("Mapping[str, object]", each["finding"])
        yield f"{finding['problem']}: {each['key']} at {finding['first_at']}: {finding['words']}"
    if not history.audit["passed"]:
        yield f"the audit has {history.totals['findings']} findings and {history.totals['unrecorded']} unrecorded ends"


def _unfinished(history: History) -> Iterator[str]:
    if not history.rows.is_quiet:
        yield f"{history.rows.unfinished} runs had not ended and {history.rows.outbox} messages were not sent"


def _wrong_events(history: History) -> Iterator[str]:
    yield from history.read.changed
    if len(history.read.runs) != history.rows.runs:
        yield f"{len(history.read.runs)} completion events for {history.rows.runs} runs"


def _unexplained_ends(history: History) -> Iterator[str]:
    for run in history.read.runs.values():
        match run.status, run.reason:
            case (RunStatus.SUCCEEDED, _) | (RunStatus.SKIPPED, "overlap") | (RunStatus.CANCELLED, "job_deleted"):
                continue
            case RunStatus.FAILED, _ if run.job_key in history.expected.dead_letters:
                continue
            case _:
                yield f"{run.job_key}, run {run.run_id}, ended {run.status} ({run.reason or run.error})"


def _wrong_dead_letters(history: History) -> Iterator[str]:
    found = Counter(letter.job_key for letter in history.read.dead_letters.values())
    if found != dict.fromkeys(history.expected.dead_letters, 1):
        yield f"{dict(found)}"


def _wrong_calls(history: History) -> Iterator[str]:
    for (run_id, attempt), count in Counter((call.run_id, call.attempt) for call in history.calls).items():
        if count > 1:
            yield f"attempt {attempt} of run {run_id} reached the receiver {count} times"
    for call in history.calls:
        if call.idempotency_key != call.run_id:
            yield f"run {call.run_id} came with idempotency key {call.idempotency_key!r}"


def _wrong_effects(history: History) -> Iterator[str]:
    for run in history.read.runs.values():
        attempts = [call.attempt for call in history.effects.get(run.run_id, ())]
        if run.status is RunStatus.SUCCEEDED and run.attempt not in attempts:
            yield f"{run.job_key}, run {run.run_id}, succeeded by attempt {run.attempt}, which had no effect"
        if run.status is not RunStatus.SUCCEEDED and attempts:
            yield f"{run.job_key}, run {run.run_id}, ended {run.status} and had an effect"
    for run_id in history.effects.keys() - history.read.runs:
        yield f"run {run_id} had an effect and no completion event"


def _unexplained_attempts(history: History) -> Iterator[str]:
    held = history.kill.attempts if history.kill else frozenset[tuple[str, int]]()
    for run in history.read.runs.values():
        failed = {call.attempt for call in history.calls_of.get(run.run_id, ()) if not call.effective}
        for attempt in range(1, run.attempt):
            if attempt not in failed and (run.run_id, attempt) not in held:
                yield f"{run.job_key}, run {run.run_id}: nothing explains why attempt {attempt} was not the last"


def _no_kill(history: History) -> Iterator[str]:
    if history.kill is None or not history.kill.attempts:
        yield "no executor was killed, or it had no attempt"


_CHECKS: Sequence[tuple[str, Callable[[History], Iterable[str]]]] = (
    ("every request is answered, and exactly the malformed ones are rejected, by field", _wrong_answers),
    ("tidewheel admin audit: each due occurrence is one run or one skip, each end is on Kafka", _audited),
    ("every run has ended", _unfinished),
    ("each run has one completion event, repeated only with the same contents", _wrong_events),
    ("each end is explained: success, an overlap, a deletion, or a failure that the file scripts", _unexplained_ends),
    ("dead letters = the jobs that never succeed", _wrong_dead_letters),
    ("no attempt reached the receiver twice, and each call has its run's id as idempotency key", _wrong_calls),
    ("runs with an effect = runs that succeeded", _wrong_effects),
    ("each further attempt is explained by a failure in the file or by the kill", _unexplained_attempts),
    ("an executor was killed with running attempts", _no_kill),
)


def figures(history: History) -> Iterator[tuple[str, int, str]]:
    """Yield the counts of the summary: name, number, and who counted it."""
    runs = history.read.runs.values()
    ends = Counter(run.status for run in runs)
    failures = sum(not call.effective for call in history.calls)
    lost = sum(run.attempt for run in runs) - failures - ends[RunStatus.SUCCEEDED]
    accepted = len(history.read.replies) - len(history.rejections)
    ended = ", ".join(f"{ends[status]} {status}" for status in RunStatus if ends[status])
    second = sum(len(calls) - 1 for calls in history.effects.values())
    yield "requests sent", history.sent, f"the producer; the replies accept {accepted}"
    yield "occurrences due", _sum(history.totals["computed"]), f"tidewheel admin audit: {_audit_words(history)}"
    yield "runs", history.rows.runs, "PostgreSQL: due occurrences and triggers"
    yield "completion events", len(runs), f"the consumer: {ended}; {history.read.repeats} repeats"
    yield "runs that had an effect", len(history.effects), "the receiver"
    yield "second effects", second, "the receiver; by a higher attempt after the kill"
    yield "attempts that failed", failures, "the receiver; as the file scripts"
    yield "attempts ended by the kill", lost, "attempts in the events minus the receiver's"


def _audit_words(history: History) -> str:
    found = {name: _sum(history.totals[name]) for name in ("fired", "skipped", "undecided")}
    words = f"{found['fired']:,} fired, {found['skipped']:,} skipped with a reason"
    return f"{words}, {found['undecided']:,} not decided" if found["undecided"] else words


def _sum(counts: object) -> int:
    """Return a count, or the sum of counts by reason."""
    return sum(cast("Mapping[str, int]", counts).values()) if isinstance(counts, dict) else int(str(counts))


def lateness(history: History) -> Iterator[tuple[str, list[float]]]:
    """Yield the lateness of first HTTP calls in ms, ascending: of those due before the kill, and of all."""
    first = [calls[0] for calls in history.calls_of.values() if not calls[0].by_handler]
    until = history.kill.at - _BEFORE_KILL if history.kill else None
    before = [call for call in first if until is None or call.scheduled_at <= until]
    for name, calls in (("due before the kill", before), ("all, including the kill", first)):
        yield name, sorted((call.arrived_at - call.scheduled_at) / timedelta(milliseconds=1) for call in calls)


def percentile(ordered: Sequence[float], percent: int) -> float:
    """Return the nearest-rank percentile of ascending numbers; 0 of none.

    >>> percentile([1.0, 2.0, 3.0, 4.0], 50), percentile([1.0, 2.0, 3.0, 4.0], 99), percentile([], 50)
    (2.0, 4.0, 0.0)
    """
    return ordered[-(-len(ordered) * percent // 100) - 1] if ordered else 0.0
