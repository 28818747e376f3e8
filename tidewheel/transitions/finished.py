"""The records of a run's end: the request, the row that it closes, and the finished run of both.

Every table and event that an end writes is filled from `FinishedRun`, so that they agree. `finish.py` builds it.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from tidewheel.ids import read_uuid
from tidewheel.runs import AttemptOutcome, Cause, Gate, RunState
from tidewheel.schemas.generated import records
from tidewheel.transitions.places import FreedPlace, held_places

_LONG = timedelta(days=1)  # inputs of runs that end sooner are dropped a day after them


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
            passes = bool(row.gates & Gate.PASSES)
            ended = self.end.run_id
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
