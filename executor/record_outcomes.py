"""Record outcomes in the caller's transaction, for attempts of local and remote executors.

Each outcome ends its run, sends it back for another attempt, or starts a wait for its external completion. The pure
`next_attempt` decides about retries.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol
from uuid import UUID

from tidewheel.executor.attempt_output import Output
from tidewheel.executor.outcome import Outcome, failed
from tidewheel.postgres.session import Conn
from tidewheel.runs import AttemptOutcome, RunState
from tidewheel.schemas.generated.records import JobDefinition, RunRequest
from tidewheel.transitions.await_external import Wait, end_cancelled_waits, wait_runs
from tidewheel.transitions.cancel_signals import start_cancelling
from tidewheel.transitions.claim import Started
from tidewheel.transitions.finish import finish_runs
from tidewheel.transitions.finished import RunEnd
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.places import FreedPlace
from tidewheel.transitions.requeue import Requeue, requeue_runs
from tidewheel.transitions.retry import UNKNOWN_OUTCOME, Failure, next_attempt
from tidewheel.transitions.run_keys import settle_keys

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
    """Results of recording outcomes; outcomes in neither set are written.

    Args:
        busy: Runs whose row another transaction holds; retry them.
        superseded: Runs to be ended that are over already, or have a later attempt.
        requeued: Number of runs sent back.
        released: True if children of workflows wait for these ends.
    """

    busy: set[UUID] = field(default_factory=set[UUID])
    superseded: set[UUID] = field(default_factory=set[UUID])
    requeued: int = 0
    released: bool = False


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
    for attempt, outcome in items:
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
    busy |= done.busy | requeue_runs(connection, installation, requeues, freed_keys=freed).busy
    busy |= wait_runs(connection, waits) | end_cancelled_waits(connection, installation, waits, freed_keys=freed)
    settle_keys(connection, installation, freed=freed)
    return Recorded(busy, done.superseded, len(requeues), done.released)


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
        outcome = _unknown_if_at_most_once(attempt, outcome)
        ending = _ENDS.get(outcome.kind)
        if ending is None or next_delay(attempt, outcome) is not None:
            return None
        state, reason = ending, UNKNOWN_OUTCOME if outcome.error_type == UNKNOWN_OUTCOME else outcome.timeout
    unflushed, output, started = attempt.seal_output(), attempt.output, attempt.started  # sealed first: none is created
    # By position: by name it takes three times as long.
    return RunEnd(
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


def requeue(attempt: RecordableAttempt, outcome: Outcome, executor_id: UUID) -> Requeue:
    """Return the move that sends a run back after an outcome that does not end it."""
    delay = next_delay(attempt, outcome)
    return Requeue(
        run_id=attempt.run_id,
        attempt=attempt.started.attempt,
        executor_id=executor_id,
        outcome=outcome.kind,
        delay=_pause(outcome) if delay is None else delay,
        error_type=outcome.error_type,
        error_message=outcome.error_message,
        trace=outcome.trace,
        unflushed=attempt.seal_output(),
        output=attempt.output.tail() if attempt.output else None,
        output_bytes=attempt.output.written if attempt.output else None,
        claimed_from=attempt.started.claimed_from,
    )


def _pause(outcome: Outcome) -> timedelta:
    """Return the delay of a run that goes back uncounted; a snooze is no shorter than `LEAST_SNOOZE`."""
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


def _unknown_if_at_most_once(attempt: RecordableAttempt, outcome: Outcome) -> Outcome:
    """Return the outcome; an at-most-once attempt that is released after its start has an unknown one."""
    if outcome.kind is not AttemptOutcome.RELEASED or outcome.not_started or not attempt.definition.at_most_once:
        return outcome
    return failed(UNKNOWN_OUTCOME, "the executor stopped before the attempt ended; the attempt may have had its effect")
