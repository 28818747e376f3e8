"""Record outcomes in the caller's transaction, for attempts of local and remote executors.

Each outcome ends its run, sends it back for another attempt, or starts a wait for its external completion. The pure
`next_attempt` decides about retries.
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Protocol
from uuid import UUID

from tidewheel.executor.outcome import Outcome, Output, failed
from tidewheel.postgres.session import Conn, at_commit, read_ids
from tidewheel.postgres.statements import Statements
from tidewheel.process.metrics import count_by_job, metrics
from tidewheel.runs import AttemptOutcome, RunState
from tidewheel.schemas.generated.records import JobDefinition, RunRequest
from tidewheel.transitions.cancellation import start_cancelling
from tidewheel.transitions.claim import Started
from tidewheel.transitions.finish import finish_runs
from tidewheel.transitions.finished import UNKNOWN_OUTCOME, Failure, RunEnd, next_attempt
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.places import FreedPlace
from tidewheel.transitions.requeue import Requeue, Wait, end_cancelled_waits, requeue_runs, wait_runs
from tidewheel.transitions.run_keys import settle_keys

_FIND_COMPLETED = Statements("tidewheel.executor")["find_completed"]

LEAST_SNOOZE = timedelta(seconds=1)
"""A shorter one, in a loop, would keep PostgreSQL busy with one run."""

_ENDS = {
    AttemptOutcome.SUCCEEDED: RunState.SUCCEEDED,
    AttemptOutcome.CANCELLED: RunState.CANCELLED,
    AttemptOutcome.FAILED: RunState.FAILED,
    AttemptOutcome.TIMED_OUT: RunState.TIMED_OUT,
}


class RecordableAttempt(Protocol):
    """The facts of an attempt that recording its outcome needs."""

    @property
    def run_id(self) -> UUID: ...  # noqa: D102 - as in `Attempt`, and so below
    @property
    def started(self) -> Started: ...  # noqa: D102
    @property
    def request(self) -> RunRequest | None: ...  # noqa: D102
    @property
    def definition(self) -> JobDefinition: ...  # noqa: D102
    @property
    def heartbeat_seconds(self) -> float | None: ...  # noqa: D102
    @property
    def output(self) -> Output | None: ...  # noqa: D102
    def seal_output(self) -> bool: ...  # noqa: D102


@dataclass(slots=True)
class Recorded:
    """The effect of recorded outcomes on their runs, for log lines and metrics after the commit.

    Nothing was written of the first three kinds: retry what is busy.
    """

    busy: set[UUID] = field(default_factory=set[UUID])  # another transaction holds the row
    superseded: set[UUID] = field(default_factory=set[UUID])  # over before, or with a later attempt
    completed: set[UUID] = field(default_factory=set[UUID])  # by the attempt itself, with `complete_in`
    states: dict[UUID, RunState] = field(default_factory=dict[UUID, RunState])
    requeued: int = 0
    waits: Set[UUID] = frozenset()
    released: bool = False  # children of workflows wait for these ends


def record_outcomes(
    connection: Conn,
    installation: Installation,
    items: Sequence[tuple[RecordableAttempt, Outcome]],
    executor_id: UUID,
    *,
    uniform: bool = False,
) -> Recorded:
    """Write the outcomes of an executor's attempts, at most one per run, in the caller's transaction.

    `uniform` is that of `finish_runs`.
    """
    waits, ends, requeues = list[Wait](), list[RunEnd](), list[Requeue]()
    completed = _find_completed(connection, items)
    for attempt, outcome in items:
        if completed and attempt.run_id in completed:
            continue
        if (wait := run_wait(attempt, outcome, executor_id)) is not None:
            waits.append(wait)
        elif (end := run_end(attempt, outcome, executor_id)) is not None:
            ends.append(end)
        else:
            requeues.append(requeue(attempt, outcome, executor_id))
    cancelled = [(end.run_id, end.attempt) for end in ends if end.state is RunState.CANCELLED]
    busy = start_cancelling(connection, cancelled, executor_id)
    ends = [end for end in ends if end.run_id not in busy] if busy else ends
    freed: list[FreedPlace] = []
    done = finish_runs(connection, installation, ends, uniform=uniform, freed_keys=freed)
    sent_back = requeue_runs(connection, installation, requeues, freed_keys=freed)
    waiting = wait_runs(connection, waits)
    stopped = end_cancelled_waits(connection, installation, waits, freed_keys=freed)
    settle_keys(connection, installation, freed=freed)
    busy |= done.busy | sent_back.busy | waiting.busy | stopped.busy
    states = done.states
    states |= dict.fromkeys(sent_back.cancelled, RunState.CANCELLED) | stopped.states
    superseded = done.superseded
    if others := {each.run_id for each in requeues} | {each.run_id for each in waits}:
        superseded |= others - busy - sent_back.runs.keys() - waiting.waits - states.keys()
    return Recorded(busy, superseded, completed, states, len(sent_back.runs), waiting.waits, done.released)


def _find_completed(connection: Conn, items: Sequence[tuple[RecordableAttempt, Outcome]]) -> set[UUID]:
    """Return the runs whose attempt has ended them in its handler's own transaction."""
    called = [attempt.started for attempt, outcome in items if outcome.completes]
    if not called:
        return set()
    columns = {
        "run_ids": [started.run_id for started in called],
        "attempts": [started.attempt for started in called],
        "since": min(started.started_at for started in called),
        "succeeded": RunState.SUCCEEDED,
    }
    completed = read_ids(connection, _FIND_COMPLETED, columns)
    if completed:
        at_commit(
            connection, partial(_count_completed, [each.definition for each, _ in items if each.run_id in completed])
        )
    return completed


def _count_completed(jobs: Sequence[JobDefinition]) -> None:
    """Count ends that a handler's own connection has committed, which no process saw."""
    metrics.count("runs_ended", len(jobs), RunState.SUCCEEDED)
    metrics.count("attempts", len(jobs), AttemptOutcome.SUCCEEDED)
    count_by_job((job.tenant, job.job_key, RunState.SUCCEEDED) for job in jobs)


def run_wait(attempt: RecordableAttempt, outcome: Outcome, executor_id: UUID) -> Wait | None:
    """Return the wait for an external completion that an outcome starts; None if it starts none."""
    if outcome.waits is None:
        return None
    seconds = attempt.heartbeat_seconds
    heartbeat = None if seconds is None else timedelta(seconds=seconds)
    return Wait(attempt.run_id, attempt.started.attempt, executor_id, outcome.waits, heartbeat)


def run_end(attempt: RecordableAttempt, outcome: Outcome, executor_id: UUID) -> RunEnd | None:
    """Return the end of the run that an outcome causes; None if the run goes on."""
    if outcome.waits is not None:
        return None
    reason: str | None = None
    if outcome.kind is AttemptOutcome.SUCCEEDED:  # nearly all, and they need no further decision
        state = RunState.SUCCEEDED
    else:
        outcome = recorded_outcome(attempt, outcome)
        ending = _ENDS.get(outcome.kind)
        if ending is None or next_delay(attempt, outcome) is not None:
            return None
        state, reason = ending, UNKNOWN_OUTCOME if outcome.error_type == UNKNOWN_OUTCOME else outcome.timeout
    unflushed, output, started = attempt.seal_output(), attempt.output, attempt.started  # sealed first: none is created
    # By position: by name it takes three times as long.
    end = RunEnd(
        started.run_id,
        started.attempt,
        state,
        executor_id,
        reason,
        outcome.error_type,
        outcome.error_message,
        outcome.trace,
        outcome.result,
        None if output is None else output.tail(),
        None if output is None else output.written,
        unflushed,
        attempt.request,
        attempt.definition,
        None,
        started.claimed_from,
    )
    return end if outcome.next_in is None else end._replace(next_in=outcome.next_in)


def requeue(attempt: RecordableAttempt, outcome: Outcome, executor_id: UUID) -> Requeue:
    """Return the move that sends a run back after an outcome that does not end it."""
    return Requeue(
        run_id=attempt.run_id,
        attempt=attempt.started.attempt,
        executor_id=executor_id,
        outcome=outcome.kind,
        delay=delay_of(attempt, outcome),
        error_type=outcome.error_type,
        error_message=outcome.error_message,
        trace=outcome.trace,
        unflushed=attempt.seal_output(),
        output=attempt.output.tail() if attempt.output else None,
        output_bytes=attempt.output.written if attempt.output else None,
        claimed_from=attempt.started.claimed_from,
    )


def delay_of(attempt: RecordableAttempt, outcome: Outcome) -> timedelta:
    """Return the delay of a run that goes back; a snooze is no shorter than `LEAST_SNOOZE`."""
    delay = next_delay(attempt, outcome)
    if delay is not None:
        return delay
    return max(outcome.snooze, LEAST_SNOOZE) if outcome.kind is AttemptOutcome.SNOOZED else outcome.snooze


def next_delay(attempt: RecordableAttempt, outcome: Outcome) -> timedelta | None:
    """Return the delay before a retry; None if the outcome is no failure or the last one."""
    if outcome.kind not in {AttemptOutcome.FAILED, AttemptOutcome.TIMED_OUT}:
        return None
    failure = Failure(outcome.error_type or "", outcome.permanent, outcome.retry_after, outcome.not_started)
    started = attempt.started
    return next_attempt(
        attempt.definition,
        failure,
        run_id=started.run_id,
        attempt=started.attempt,
        failed_attempts=started.failed_attempts,
    )


def recorded_outcome(attempt: RecordableAttempt, outcome: Outcome) -> Outcome:
    """Return the recorded outcome: unknown for an at-most-once attempt released after its start."""
    if outcome.kind is not AttemptOutcome.RELEASED or outcome.not_started or not attempt.definition.at_most_once:
        return outcome
    return failed(UNKNOWN_OUTCOME, "the executor stopped before the attempt ended; the attempt may have had its effect")
