"""What requests and reads answer, as the client hands it on."""

from dataclasses import dataclass
from datetime import datetime
from typing import cast
from uuid import UUID

from tidewheel.ids import JobId
from tidewheel.runs import FINAL, RunState
from tidewheel.schemas.generated.records import Reply


@dataclass(frozen=True, slots=True)
class Job:
    """A job after a request.

    Args:
        job_id: Derived from tenant and key.
        version: The current version.
        unchanged: Whether the request changed nothing.
        next_run_at: The next occurrence, if there is one and the job is not paused.
    """

    job_id: JobId
    version: int
    unchanged: bool
    next_run_at: datetime | None


@dataclass(frozen=True, slots=True)
class BackfillResult:
    """A backfill after a request.

    Args:
        backfill_id: Its id; None after a dry run, which makes none.
        occurrences: How many of its range are to be run; None where the request was not about that.
        unchanged: Whether the request changed nothing.
        status: The state it is in; None where it was only made.
    """

    backfill_id: UUID | None
    occurrences: int | None
    unchanged: bool
    status: str | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """A run as it stands.

    Args:
        run_id: Its id.
        job_id: Its job.
        state: Where it stands; terminal when in `tidewheel.runs.FINAL`.
        attempt: The last attempt begun; 0 before the first.
        scheduled_at: The nominal instant.
        started_at: When the last attempt began.
        finished_at: When it ended.
        reason: Why skipped or cancelled, or which timeout struck.
        error_type: The last error's type.
        error_message: What it said.
        result: What the handler returned, as JSON text.
        progress: What the attempt under way, or the last, has told of itself, as JSON text.
        progress_at: When it last told anything.
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
        """Whether it will never change again."""
        return RunState(self.state) in FINAL


def job_of(reply: Reply) -> Job:
    """The job that an accepted request was about."""
    return Job(JobId(UUID(reply.job_id)), cast("int", reply.job_version), reply.unchanged, reply.next_run_at)


def backfill_of(reply: Reply) -> BackfillResult:
    """The backfill that an accepted request was about."""
    made = UUID(reply.backfill_id) if reply.backfill_id else None
    return BackfillResult(made, reply.occurrences, reply.unchanged, reply.backfill_status)
