"""Results of the client's requests and reads."""

from dataclasses import dataclass
from datetime import datetime
from typing import cast
from uuid import UUID

from tidewheel.ids import JobId, RunId
from tidewheel.intake.trigger import ACCEPTED
from tidewheel.runs import FINAL, RunState
from tidewheel.schemas.generated.records import Reply


@dataclass(frozen=True, slots=True)
class Job:
    """A job after a request.

    Args:
        next_run_at: The next occurrence, if there is one and the job is not paused.
    """

    job_id: JobId
    version: int
    unchanged: bool
    next_run_at: datetime | None


@dataclass(frozen=True, slots=True)
class Triggered:
    """The answer to a trigger with dedupe.

    Args:
        run_id: The run that the trigger has: its own, or that of an earlier one.
        outcome: `accepted` for a new run; `deduplicated`, `replaced` or `debounced` for an earlier one.
        runs_at: When the run is due; of a deduplicated trigger this may have passed.
    """

    run_id: RunId
    outcome: str
    runs_at: datetime


@dataclass(frozen=True, slots=True)
class BackfillResult:
    """A backfill after its request.

    Args:
        backfill_id: Its id in `client.works`; None after a dry run, which creates none.
        occurrences: How many of its range are to be run.
        unchanged: True if an earlier delivery of the request has created it.
    """

    backfill_id: UUID | None
    occurrences: int | None
    unchanged: bool


@dataclass(frozen=True, slots=True)
class Run:
    """A run in its current state.

    Args:
        state: Its state; terminal when in `tidewheel.runs.FINAL`.
        attempt: The last attempt begun; 0 before the first.
        started_at: When the last attempt began.
        reason: The reason of a skip or a cancellation, or the timeout that fired.
        result: The handler's result, as JSON text.
        progress: Reported by the current attempt, or the last, as JSON text.
        deadline_at: The earliest of its timeouts that PostgreSQL keeps; None once it is terminal.
    """

    run_id: UUID
    job_id: UUID
    state: str
    attempt: int
    scheduled_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    reason: str | None
    error_type: str | None
    error_message: str | None
    result: bytes | None
    progress: bytes | None = None
    progress_at: datetime | None = None
    deadline_at: datetime | None = None

    @property
    def final(self) -> bool:
        """True if the run is terminal."""
        return RunState(self.state) in FINAL


def job_of(reply: Reply) -> Job:
    """Return the job of an accepted request."""
    return Job(JobId(UUID(reply.job_id)), cast("int", reply.job_version), reply.unchanged, reply.next_run_at)


def backfill_of(reply: Reply) -> BackfillResult:
    """Return the backfill of an accepted request."""
    backfill_id = UUID(reply.backfill_id) if reply.backfill_id else None
    return BackfillResult(backfill_id, reply.occurrences, reply.unchanged)


def triggered(reply: Reply) -> Triggered:
    """Return the answer to a trigger that may have a dedupe."""
    assert reply.next_run_at is not None  # noqa: S101 - a run has a time
    return Triggered(RunId(UUID(reply.run_id)), reply.dedupe or ACCEPTED, reply.next_run_at)
