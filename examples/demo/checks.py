"""Judge a demo, and compute the figures of its summary. Pure.

`tidewheel admin audit` decides which occurrences were due. The receiver's calls and the consumer's events are counted
apart from it. Every failed check names the run to look at.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property

from examples.demo.consumer import Seen
from examples.demo.receiver import Call
from examples.demo.requests import DEAD_LETTERS, REJECTED
from examples.demo.services import Counts
from tidewheel.schemas.generated.records import RunStatus

_BEFORE_KILL = timedelta(seconds=1)  # a run due later than this may have waited for the killed executor
# Ends that no failure explains: by the overlap policy, and by the deletion of the job at the end.
_HARMLESS = {(RunStatus.SKIPPED, "overlap"), (RunStatus.CANCELLED, "job_deleted")}


@dataclass(frozen=True, slots=True)
class Kill:
    """The kill of an executor, and the attempts whose end it had not recorded: run id and number."""

    at: datetime
    attempts: frozenset[tuple[str, int]]


@dataclass(frozen=True, kw_only=True)
class History:
    """Requests sent, records read, calls, rows in PostgreSQL, the kill, and findings of the audit."""

    sent: int
    seen: Seen
    calls: Sequence[Call]
    rows: Counts
    kill: Kill | None
    findings: Sequence[str]

    @cached_property
    def effects(self) -> Mapping[str, Sequence[int]]:
        """The attempts of each run that took effect; runs without one are left out."""
        return self._attempts(effective=True)

    @cached_property
    def failures(self) -> Mapping[str, Sequence[int]]:
        """The attempts of each run that the receiver refused."""
        return self._attempts(effective=False)

    def _attempts(self, *, effective: bool) -> Mapping[str, Sequence[int]]:
        found: defaultdict[str, list[int]] = defaultdict(list)
        for call in self.calls:
            if call.effective is effective:
                found[call.run_id].append(call.attempt)
        return dict(found)


@dataclass(frozen=True, slots=True)
class Check:
    """One promise and the faults found against it."""

    promise: str
    faults: tuple[str, ...] = ()


def check_all(history: History) -> list[Check]:
    """Run every check, in the order of a run's life."""
    return [Check(promise, tuple(find(history))) for promise, find in _CHECKS]


def _wrong_answers(history: History) -> Iterator[str]:
    if len(history.seen.replies) != history.sent:
        yield f"{len(history.seen.replies)} of {history.sent} requests are answered"
    found = {reply.key or "": frozenset(error.path for error in reply.errors) for reply in history.seen.rejections}
    for key in sorted(found.keys() | REJECTED.keys()):
        if found.get(key) != REJECTED.get(key):
            yield f"rejected of {key}: {sorted(found.get(key, ()))}"


def _unfinished(history: History) -> Iterator[str]:
    if history.rows.unfinished or history.rows.outbox:
        yield f"{history.rows.unfinished} runs had not ended and {history.rows.outbox} messages were not sent"


def _wrong_events(history: History) -> Iterator[str]:
    for run_id in history.seen.changed:
        yield f"run {run_id} has two completion events with different contents"
    if len(history.seen.ends) != history.rows.runs:
        yield f"{len(history.seen.ends)} completion events for {history.rows.runs} runs"


def _unexplained_ends(history: History) -> Iterator[str]:
    for run in history.seen.ends.values():
        scripted = run.status is RunStatus.FAILED and run.job_key in DEAD_LETTERS
        if run.status is not RunStatus.SUCCEEDED and not scripted and (run.status, run.reason) not in _HARMLESS:
            yield f"{run.job_key}, run {run.run_id}, ended {run.status} ({run.reason or run.error})"


def _wrong_dead_letters(history: History) -> Iterator[str]:
    found = Counter(letter.job_key for letter in history.seen.dead_letters.values())
    if found != dict.fromkeys(DEAD_LETTERS, 1):
        yield f"{dict(found)}"


def _wrong_calls(history: History) -> Iterator[str]:
    for (run_id, attempt), count in Counter((call.run_id, call.attempt) for call in history.calls).items():
        if count > 1:
            yield f"attempt {attempt} of run {run_id} reached the receiver {count} times"
    for call in history.calls:
        if call.idempotency_key != call.run_id:
            yield f"run {call.run_id} came with idempotency key {call.idempotency_key!r}"


def _wrong_effects(history: History) -> Iterator[str]:
    for run in history.seen.ends.values():
        attempts = history.effects.get(run.run_id, ())
        if run.status is RunStatus.SUCCEEDED and run.attempt not in attempts:
            yield f"{run.job_key}, run {run.run_id}, succeeded by attempt {run.attempt}, which had no effect"
        if run.status is not RunStatus.SUCCEEDED and attempts:
            yield f"{run.job_key}, run {run.run_id}, ended {run.status} and had an effect"
    for run_id in history.effects.keys() - history.seen.ends:
        yield f"run {run_id} had an effect and no completion event"


def _unexplained_attempts(history: History) -> Iterator[str]:
    killed = history.kill.attempts if history.kill else frozenset[tuple[str, int]]()
    for run in history.seen.ends.values():
        for attempt in range(1, run.attempt):
            if attempt not in history.failures.get(run.run_id, ()) and (run.run_id, attempt) not in killed:
                yield f"{run.job_key}, run {run.run_id}: nothing explains why attempt {attempt} was not the last"


def _no_kill(history: History) -> Iterator[str]:
    if history.kill is None or not history.kill.attempts:
        yield "no executor was killed, or it had no attempt"


_CHECKS: Sequence[tuple[str, Callable[[History], Iterable[str]]]] = (
    ("every request is answered, and exactly the malformed ones are rejected, by field", _wrong_answers),
    (
        "tidewheel admin audit: each due occurrence is one run or one skip, each end is on Kafka",
        lambda found: found.findings,
    ),
    ("every run has ended", _unfinished),
    ("each run has one completion event, repeated only with the same contents", _wrong_events),
    ("each end is explained: success, an overlap, a deletion, or a failure that the file scripts", _unexplained_ends),
    ("dead letters = the jobs that never succeed", _wrong_dead_letters),
    ("no attempt reached the receiver twice, and each call has its run's id as idempotency key", _wrong_calls),
    ("runs with an effect = runs that succeeded", _wrong_effects),
    ("each further attempt is explained by a failure in the file or by the kill", _unexplained_attempts),
    ("an executor was killed with running attempts", _no_kill),
)


def figures(history: History) -> Iterator[tuple[str, str, str]]:
    """Yield the figures of the summary: name, value, and who counted it."""
    ends = Counter(run.status for run in history.seen.ends.values())
    ended = ", ".join(f"{ends[status]:,} {status}" for status in RunStatus if ends[status])
    refused = sum(map(len, history.failures.values()))
    lost = sum(run.attempt for run in history.seen.ends.values()) - refused - ends[RunStatus.SUCCEEDED]
    second = sum(len(attempts) - 1 for attempts in history.effects.values())
    accepted = len(history.seen.replies) - len(history.seen.rejections)
    yield "requests sent", f"{history.sent:,}", f"the producer; the replies accept {accepted}"
    yield "runs", f"{history.rows.runs:,}", "PostgreSQL: due occurrences and triggers"
    yield "completion events", f"{len(history.seen.ends):,}", f"the consumer: {ended}; {history.seen.repeats} repeats"
    yield "runs that had an effect", f"{len(history.effects):,}", "the receiver"
    yield "second effects", f"{second:,}", "the receiver; by a higher attempt after the kill"
    yield "attempts that failed", f"{refused:,}", "the receiver; as the file scripts"
    yield "attempts ended by the kill", f"{lost:,}", "attempts in the events minus the receiver's"
    yield _lateness(history)


def _lateness(history: History) -> tuple[str, str, str]:
    """Return the lateness of the first HTTP call of each run that was due before the kill."""
    first = {call.run_id: call for call in reversed(history.calls) if not call.by_handler}.values()
    calls = [call for call in first if history.kill is None or call.scheduled_at <= history.kill.at - _BEFORE_KILL]
    late = sorted((call.arrived_at - call.scheduled_at) / timedelta(milliseconds=1) for call in calls) or [0.0]
    p50, p99, most = (f"{late[(len(late) - 1) * part // 100]:,.0f} ms" for part in (50, 99, 100))
    return (
        "median lateness",
        p50,
        f"the receiver: {len(calls):,} HTTP calls before the kill; p99 {p99}, last {most}",
    )
