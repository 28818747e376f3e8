"""The records of a run's end, and if another attempt follows a failed one, and when: pure.

Every table and event that an end writes is filled from `FinishedRun`, so that they agree. `finish.py` builds it.

Failed attempts count against `max_attempts`; released, snoozed and lost ones do not. Reason, error type, completion and
dead letter contain a timeout's name. ADR 0018 (docs/adr) lists the process that enforces each timeout.
"""

import random
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

from tidewheel.ids import read_uuid
from tidewheel.runs import AttemptOutcome, Cause, Gate, RunState
from tidewheel.schemas.generated import records
from tidewheel.schemas.generated.records import Backoff, JobDefinition, Retry
from tidewheel.transitions.places import FreedPlace, held_places

_LONG = timedelta(days=1)  # inputs of runs that end sooner are dropped a day after them

UNKNOWN_OUTCOME = "unknown_outcome"  # error type and reason of an at-most-once run whose executor was lost

_PREFIX = "timeout_"


class RunEnd(NamedTuple):
    """A request to end a run.

    Args:
        attempt: The attempt that reports, or the row's attempt if none runs. Part of the fence.
        state: The requested terminal state; a run that is being cancelled ends as cancelled instead.
        executor_id: The executor that owns the attempt, or None if none runs. Part of the fence, because a run that
            was released keeps its attempt number.
        reason: Why it was skipped or cancelled, or which timeout fired.
        error_message: The error's message; the caller bounds its length.
        result: The handler's return value as JSON text, at most 64 KiB.
        output: The attempt's last output; None keeps what was flushed while it ran.
        output_bytes: The number of bytes that the attempt wrote in all.
        unflushed: True if it is certain that no output was flushed while the attempt ran.
        request: The run's message if the caller still has it; saves building it again.
        definition: The decoded definition in that message, likewise.
        outcome: The attempt's outcome, if the run's state does not say it: `lost` for a run without another attempt.
        claimed_from: The message of the claim, if the executor kept it.
    """

    run_id: UUID
    attempt: int
    state: RunState
    executor_id: UUID | None = None
    reason: str | None = None
    error_type: str | None = None
    error_message: str | None = None
    trace: str | None = None
    result: bytes | None = None
    output: bytes | None = None
    output_bytes: int | None = None
    unflushed: bool = False
    request: records.RunRequest | None = None
    definition: records.JobDefinition | None = None
    outcome: AttemptOutcome | None = None
    claimed_from: str | None = None
    next_in: timedelta | None = None


class ClosedRun(NamedTuple):
    """An open run's row as it was when the run ended; `close_runs` returns its columns in this order.

    Args:
        place: The position of its `RunEnd` in the batch, from 1.
        ended_as: The terminal state.
        gates: What its end does beyond its row.
        ended_at: The database's clock; the same for the rows of one statement.
        cancel_reason: The reason of its cancel, which the end has instead of its own.
        refused: True if the run had ended before, and this end is not recorded.
        workflow_run_id: The root's run, if it belongs to an occurrence of a workflow.
    """

    place: int
    ended_as: str
    run: str
    job: str
    tenant: str
    shard: int
    queue: str
    lane: str
    cause: str
    gates: int
    state: str
    job_version: int
    attempt: int
    scheduled_at: datetime
    publish_at: datetime
    created_at: datetime
    started_at: datetime | None
    claimed_from: str | None
    ended_at: datetime
    request_id: str | None = None
    requested_from: str | None = None
    cancel_reason: str | None = None
    refused: bool = False
    key_id: int | None = None
    workflow_run_id: UUID | None = None
    generation: int | None = None
    concurrency_key: str | None = None
    order_no: int | None = None

    @property
    def run_id(self) -> UUID:
        """The run's id."""
        return read_uuid(self.run)

    @property
    def job_id(self) -> UUID:
        """The job's id."""
        return read_uuid(self.job)


class FinishedRun(NamedTuple):
    """A run that ends in this transaction: its deleted row, with everything that is written about it."""

    row: ClosedRun
    end: RunEnd
    state: RunState
    request: records.RunRequest
    definition: records.JobDefinition

    @property
    def attempt_outcome(self) -> str:
        """The outcome of its last attempt: cancelled if the run was cancelled meanwhile."""
        return (self.end.outcome or self.state) if self.state is self.end.state else self.state

    @property
    def leaves_attempt(self) -> bool:
        """True if its last attempt has a row of its own: it started and did not succeed."""
        return self.row.started_at is not None and self.state is not RunState.SUCCEEDED

    @property
    def has_output(self) -> bool:
        """True if its last attempt leaves a result, a traceback or output."""
        end = self.end
        return bool(end.result is not None or end.trace or end.output) and self.row.started_at is not None

    @property
    def sets_next_time(self) -> bool:
        """True if the job's next fire time counts from this end: a fixed_delay's scheduled run."""
        return bool(self.definition.fixed_delay) and self.row.cause == Cause.TIMER

    @property
    def counts_failures(self) -> bool:
        """True if the job counts its consecutive failures."""
        return self.definition.pause_on_failure is not None

    @property
    def moves_inputs(self) -> bool:
        """True if it was open for so long that its inputs move to the day of its end."""
        return self.row.ended_at - self.row.created_at > _LONG

    @property
    def may_be_active(self) -> bool:
        """True if it may be its job's active run, which other runs of the job wait for."""
        return self.row.gates != 0 and bool(self.row.gates & Gate.MET) and not self.keeps_place

    @property
    def keeps_place(self) -> bool:
        """True if its place as the active run stays with its occurrence, until that ends."""
        row = self.row
        return bool(row.gates & Gate.WHOLE) and (bool(row.generation) or opens(self.state, began=row.attempt > 0))

    @property
    def held_places(self) -> list[FreedPlace]:
        """The places of its key and of its tenant that it held."""
        row = self.row
        held = held_places(row.gates, row.key_id, row.tenant, started=row.started_at is not None)
        if row.key_id is not None and row.gates & Gate.ORDER:
            passes, ended = bool(row.gates & Gate.PASSES), self.end.run_id
            held.append(FreedPlace(row.key_id, ended=ended, state=self.state, passes=passes, order_no=row.order_no))
        return held


def opens(state: str, *, began: bool) -> bool:
    """Return True if the end of a root's run opens an occurrence: it began, and was not skipped."""
    return state != RunState.SKIPPED and (began or state != RunState.CANCELLED)


@dataclass(slots=True)
class Ended:
    """The result of ending a batch of runs.

    Args:
        busy: Runs whose row another transaction holds; retry them.
        superseded: Runs that have ended or started another attempt; nothing was changed.
        released: True if children of workflows wait for these ends: a scheduler has work after the commit.
    """

    states: dict[UUID, RunState] = field(default_factory=dict[UUID, RunState])
    busy: set[UUID] = field(default_factory=set[UUID])
    superseded: set[UUID] = field(default_factory=set[UUID])
    released: bool = False


@dataclass(frozen=True, slots=True)
class Failure:
    """The facts of a failed attempt that decide about the next.

    Args:
        error_type: Compared with `non_retryable`.
        not_started: True if it is certain that the attempt had no effect, as with a refused connection.
    """

    error_type: str
    permanent: bool = False
    retry_after: timedelta | None = None
    not_started: bool = False


def next_attempt(
    definition: JobDefinition, failure: Failure, *, run_id: UUID, attempt: int, failed_attempts: int
) -> timedelta | None:
    """Return the delay before the next attempt; None if there is none.

    The jitter is derived from run and attempt, so that a repeated call returns the same delay.

    Args:
        failed_attempts: Earlier attempts that count against `max_attempts`.
    """
    if definition.at_most_once and not failure.not_started:
        return None
    spread = (run_id.int + attempt * 7919) % 2001 / 1000 - 1
    return delay_before_next(definition.retry, failure, failed_attempts + 1, spread=spread)


def delay_before_next(
    retry: Retry, failure: Failure, failed_attempts: int, *, spread: float | None = None
) -> timedelta | None:
    """Return the delay before the next attempt; None if there is none.

    Args:
        failed_attempts: Attempts that count against `max_attempts`, with this one.
        spread: -1 to 1, the position of the delay within the jitter; random if None.

    >>> from tidewheel.schemas.generated.records import Backoff, Retry
    >>> policy = Retry(max_attempts=4, backoff=Backoff.EXPONENTIAL, initial_ms=2000, factor=2.0, max_ms=3_600_000,
    ...                jitter=0.1, intervals_ms=(), non_retryable=())
    >>> [delay_before_next(policy, Failure("ValueError"), n, spread=0.0) for n in (1, 2, 3, 4)]
    [datetime.timedelta(seconds=2), datetime.timedelta(seconds=4), datetime.timedelta(seconds=8), None]
    """
    if failure.permanent or failure.error_type in retry.non_retryable or failed_attempts >= retry.max_attempts:
        return None
    backoff = _backoff_ms(retry, failed_attempts)
    drawn = random.uniform(-1.0, 1.0) if spread is None else spread  # noqa: S311 - spreads load, protects no secret
    delay = timedelta(milliseconds=backoff * (1.0 + retry.jitter * drawn))
    return max(delay, failure.retry_after or timedelta(0))


def _backoff_ms(retry: Retry, failed_attempts: int) -> float:
    if retry.backoff is Backoff.INTERVALS and retry.intervals_ms:
        return float(retry.intervals_ms[min(failed_attempts, len(retry.intervals_ms)) - 1])
    if retry.backoff is Backoff.FIXED:
        return float(retry.initial_ms)  # `max` applies only to a backoff that grows
    # The exponent is bounded, so that a policy of a thousand attempts does not overflow a float.
    return min(retry.initial_ms * retry.factor ** min(failed_attempts - 1, 64), float(retry.max_ms))


class Timeout(StrEnum):
    """A timeout, named after the field that sets it."""

    START_TO_CLOSE = "start_to_close"  # one attempt took too long
    HEARTBEAT = "heartbeat"  # an attempt sent no heartbeat for too long
    SCHEDULE_TO_START = "schedule_to_start"  # no attempt started in time
    SCHEDULE_TO_CLOSE = "schedule_to_close"  # all attempts together took too long
    ASYNC_TIMEOUT = "async_timeout"  # no completion came after an http target responded 202
    REPLY_TIMEOUT = "reply_timeout"  # no reply came to a kafka target's message


FINAL_TIMEOUTS = frozenset({Timeout.SCHEDULE_TO_START, Timeout.SCHEDULE_TO_CLOSE})  # no attempt follows


def timeout_type(which: str) -> str:
    """Return the error type of a timeout, as `non_retryable` lists it.

    >>> timeout_type(Timeout.HEARTBEAT)
    'timeout_heartbeat'
    """
    return f"{_PREFIX}{which}"


def timeout_of(error_type: str) -> str:
    """Return the timeout in an error type."""
    return error_type.removeprefix(_PREFIX)


def timeout_message(which: str, seconds: float) -> str:
    """Return the error message of a timeout.

    >>> timeout_message(Timeout.SCHEDULE_TO_START, 1.5)
    'schedule_to_start of 1.5 s has passed'
    """
    return f"{which} of {seconds:g} s has passed"
