"""Jobs and their versions: the filter of lists, and the records of reads."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Literal, TypedDict, cast
from uuid import UUID

from pydantic import AfterValidator, Field

from tidewheel.control.reads.json_form import one_of
from tidewheel.ids import JobId
from tidewheel.jobs.values import MAX_TEXT, Labels, Queue, one_line
from tidewheel.nouns.freezes.model import Freeze
from tidewheel.nouns.runs.model import STATUSES

if TYPE_CHECKING:
    from tidewheel.schemas.generated.records import Reply

Kind = Literal["once", "interval", "fixed_delay", "cron", "manual", "after"]
Lane = Literal["critical", "standard", "batch"]
Begin = Annotated[str, AfterValidator(lambda text: text and one_line(MAX_TEXT)(text))]
"""The first characters of a key; empty for any."""


class JobFilter(TypedDict, total=False):
    """Filter of jobs, which match all of its fields."""

    prefix: Annotated[Begin | None, Field(description="Only jobs whose key begins with this text.")]
    labels: Annotated[Labels | None, Field(description="Only jobs with this label; repeatable.")]
    paused: Annotated[bool | None, Field(description="Only paused jobs, or only jobs that are not paused.")]
    finished: Annotated[
        bool | None, Field(description="Only jobs without a further occurrence, or only jobs with one.")
    ]
    kind: Annotated[Kind | None, Field(description="Only this kind of schedule.")]
    lane: Annotated[Lane | None, Field(description="Only jobs of this lane.")]
    queue: Annotated[Queue | None, Field(description="Only jobs of this queue.")]
    quarantined: Annotated[bool | None, Field(description="Only quarantined jobs, or only the others.")]
    unwell: Annotated[
        bool | None,
        Field(
            description="Only jobs that are quarantined, or that failed in one of their last 10 runs or within the last"
            " 5 minutes, or the others."
        ),
    ]


@dataclass(frozen=True, slots=True)
class Job:
    """A job after a request."""

    key: str
    job_id: JobId
    version: int
    unchanged: bool
    next_run_at: datetime | None  # None if there is none, or the job is paused


@dataclass(frozen=True, slots=True)
class ChangedJob(Job):
    """A job after a request."""

    # The name of its schema in the document of REST.


@dataclass(frozen=True, slots=True)
class LastRun:
    """A job's latest run whose instant has come."""

    run_id: Annotated[UUID, Field(description="Its id.")]
    state: Annotated[
        str, Field(description="Its state; `scheduled` is a queued run whose time has not come."), one_of(STATUSES)
    ]
    scheduled_at: Annotated[datetime, Field(description="Its nominal instant.")]
    started_at: Annotated[datetime | None, Field(description="When its last attempt began.")]
    finished_at: Annotated[datetime | None, Field(description="When it ended.")]
    duration: Annotated[timedelta | None, Field(description="From `started_at` to `finished_at`.")]
    reason: Annotated[
        str | None, Field(description="The reason of a skip or a cancellation, or the timeout that fired.")
    ]
    error_type: Annotated[str | None, Field(description="The error type of its last attempt.")]


@dataclass(frozen=True, slots=True)
class JobSummary:
    """A job as lists show it."""

    key: Annotated[str, Field(description="Unique in its tenant.")]
    job_id: Annotated[UUID, Field(description="Derived from tenant and key.")]
    version: Annotated[int, Field(description="The current version.")]
    kind: Annotated[
        str,
        Field(description="The kind of its schedule: `once`, `interval`, `fixed_delay`, `cron`, `manual` or `after`."),
    ]
    schedule: Annotated[Mapping[str, object], Field(description="Its schedule in the stored form, with all defaults.")]
    timezone: Annotated[str | None, Field(description="The zone of a cron schedule.")]
    labels: Annotated[Mapping[str, str], Field(description="Its labels as submitted.")]
    paused: Annotated[bool, Field(description="True if it is paused.")]
    paused_until: Annotated[datetime | None, Field(description="When the pause ends by itself.")]
    finished_at: Annotated[datetime | None, Field(description="When the scheduler found no occurrence left.")]
    hold_reason: Annotated[
        str | None, Field(description="Why its timer is on hold: `pause`, `quarantine`, `run` or `freeze`.")
    ]
    next_at: Annotated[
        datetime | None, Field(description="The next occurrence; null if there is none, or if the timer is on hold.")
    ]
    postponed_until: Annotated[
        datetime | None,
        Field(description="When a scheduler next tries to fire a job that failed for a cause outside its own data."),
    ]
    last_run: Annotated[LastRun | None, Field(description="The latest run whose instant has come.")]


@dataclass(frozen=True, slots=True)
class JobPage:
    """Jobs in the order of their keys; `at_least` is true if there are more than `total`."""

    jobs: tuple[JobSummary, ...]
    next_cursor: str | None
    total: int
    at_least: bool


@dataclass(frozen=True, slots=True)
class JobDetail:
    """A job with all its details."""

    summary: Annotated[JobSummary, Field(description="The job as in lists.")]
    job: Annotated[
        Mapping[str, object],
        Field(description="The job as submitted, before defaults, with its payload; it can be submitted again."),
    ]
    effective_at: Annotated[datetime, Field(description="When the current version came into force.")]
    created_at: Annotated[datetime, Field(description="When the job was first submitted.")]
    paused_by: Annotated[str | None, Field(description="The author of the pause.")]
    pause_reason: Annotated[str | None, Field(description="The reason of the pause.")]
    paused_at: Annotated[datetime | None, Field(description="When it was paused.")]
    consecutive_failures: Annotated[int, Field(description="How many runs in a row have failed.")]
    error: Annotated[str | None, Field(description="The error that quarantined it, while it is quarantined.")]
    quarantined_at: Annotated[datetime | None, Field(description="When it was quarantined.")]
    freezes: Annotated[tuple[Freeze, ...], Field(description="The freezes in force that cover its runs.")] = ()


@dataclass(frozen=True, slots=True)
class Change:
    """One field that differs."""

    path: Annotated[str, Field(description="The dotted path from the job, such as `schedule.cron`.")]
    before: Annotated[object, Field(description="The old value; null if the field was not given.")]
    after: Annotated[object, Field(description="The new value; null if the field is not given.")]


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a job."""

    number: Annotated[int, Field(description="Its number.")]
    effective_at: Annotated[datetime, Field(description="In force for instants later than this.")]
    until: Annotated[datetime | None, Field(description="In force up to this instant; null while it is current.")]
    retired_at: Annotated[datetime | None, Field(description="When the job was deleted, if this was its last version.")]
    payload_sha256: Annotated[str, Field(description="The hash of its payload.")]
    payload_bytes: Annotated[int, Field(description="The length of its payload.")]
    changes: Annotated[
        tuple[Change, ...], Field(description="Its changes from the previous version; empty for the first.")
    ]


@dataclass(frozen=True, slots=True)
class BackfillResult:
    """A backfill after its request."""

    backfill_id: Annotated[UUID | None, Field(description="Its id in `client.works`; null after a dry run.")]
    occurrences: Annotated[int | None, Field(description="The number of occurrences of the range to run.")]
    unchanged: Annotated[bool, Field(description="True if an earlier delivery of the request created it.")]

    @property
    def work_id(self) -> UUID | None:
        """Its id, as that of any work."""
        return self.backfill_id


def job_of(reply: "Reply") -> ChangedJob:
    """Return the job of an accepted request."""
    job_id, version = JobId(UUID(reply.job_id)), cast("int", reply.job_version)
    return ChangedJob(reply.key or "", job_id, version, reply.unchanged, reply.next_run_at)


def backfill_of(reply: "Reply") -> BackfillResult:
    """Return the backfill of an accepted request."""
    backfill_id = UUID(reply.backfill_id) if reply.backfill_id else None
    return BackfillResult(backfill_id, reply.occurrences, reply.unchanged)
