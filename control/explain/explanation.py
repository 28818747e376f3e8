"""Explanation of one instant of a job: its outcome, the reason, and its records."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated
from uuid import UUID

from pydantic import Field


class OccurrenceOutcome(StrEnum):
    """Past or future outcome of an instant."""

    FIRED = "fired"
    """It became a run; the state of the run is its outcome."""
    SKIPPED = "skipped"
    """It was passed over; `reason` names the cause."""
    SCHEDULED = "scheduled"
    """It will fire; a run created ahead of its time exists already."""
    WILL_BE_SKIPPED = "will_be_skipped"
    """A client has skipped it."""
    WILL_BE_MOVED = "will_be_moved"
    """A client has moved it to another time."""
    WILL_BE_EXCLUDED = "will_be_excluded"
    """A calendar excludes it."""
    PAUSED = "paused"
    """It lies in a pause that has not ended; `on_resume` decides."""
    WAITING = "waiting"
    """It is due and has not fired yet."""
    NO_OCCURRENCE = "no_occurrence"
    """The job's schedule has no occurrence at the instant."""
    NOT_YET = "not_yet"
    """The job did not exist at the instant."""
    DELETED = "deleted"
    """The job was deleted before the instant."""
    UNKNOWN = "unknown"
    """It has no record, for example after its retention has ended."""


MISFIRE_AFTER = timedelta(seconds=60)
"""Default limit of an occurrence's delay before it is missed."""

MOVED = "moved"
"""The reason of an occurrence that fires at another time than its own."""


@dataclass(frozen=True, slots=True)
class AttemptFacts:
    """One attempt of a run."""

    attempt: Annotated[int, Field(description="Its number.")]
    outcome: Annotated[str | None, Field(description="Its outcome; null while it runs.")]
    executor_id: Annotated[UUID | None, Field(description="Its executor.")]
    started_at: Annotated[datetime | None, Field(description="When it began.")]
    finished_at: Annotated[datetime | None, Field(description="When it ended.")]
    error_type: Annotated[str | None, Field(description="The error's type.")]
    error_message: Annotated[str | None, Field(description="The error's text.")]


@dataclass(frozen=True, slots=True)
class RunFacts:
    """A run of the instant."""

    run_id: Annotated[UUID, Field(description="Its id.")]
    cause: Annotated[str, Field(description="Its cause: `timer`, `trigger`, `backfill`, `retry`.")]
    state: Annotated[str, Field(description="Its state.")]
    reason: Annotated[
        str | None, Field(description="The reason of a skip or a cancellation, or the timeout that fired.")
    ]
    job_version: Annotated[int, Field(description="The version that it was created from.")]
    queue: Annotated[str, Field(description="Its queue.")]
    handler: Annotated[str, Field(description="The handler or capability that its executor must have.")]
    created_at: Annotated[datetime, Field(description="When it was created, ahead of its time or late.")]
    publish_at: Annotated[datetime | None, Field(description="While it is open: when it may be published, or retried.")]
    late: Annotated[timedelta | None, Field(description="How long after its time it was created; null if in time.")]
    caught_up: Annotated[
        bool, Field(description="True if its occurrence was missed, paused or past at the submit, and was caught up.")
    ]
    attempt: Annotated[int, Field(description="The last attempt that started; 0 before the first.")]
    started_at: Annotated[datetime | None, Field(description="When that began.")]
    finished_at: Annotated[datetime | None, Field(description="When the run ended.")]
    error_type: Annotated[str | None, Field(description="The error type of its last attempt.")]
    concurrency_key: Annotated[str | None, Field(description="The concurrency key whose place it needs to start.")] = (
        None
    )
    ordering_key: Annotated[str | None, Field(description="The key in whose order it waits for its turn.")] = None
    attempts: Annotated[
        tuple[AttemptFacts, ...], Field(description="The last hundred attempts, the oldest first.")
    ] = ()


@dataclass(frozen=True, slots=True)
class VersionInForce:
    """The version in force at the instant."""

    number: Annotated[int, Field(description="Its number.")]
    effective_at: Annotated[datetime, Field(description="In force for instants later than this.")]
    until: Annotated[datetime | None, Field(description="In force up to this instant; null while it is current.")]


@dataclass(frozen=True, slots=True)
class SkipSpan:
    """The ledger row of a passed-over occurrence."""

    reason: Annotated[str, Field(description="The reason.")]
    first_at: Annotated[datetime, Field(description="The first of its occurrences.")]
    last_at: Annotated[datetime, Field(description="The last.")]
    occurrences: Annotated[int, Field(description="How many.")]
    exact: Annotated[bool, Field(description="False if `occurrences` is a lower bound.")]
    created_at: Annotated[datetime, Field(description="When it was written.")]
    job_version: Annotated[int, Field(description="The version whose timer wrote it.")]
    backfill_id: Annotated[
        UUID | None, Field(description="The newest backfill under way whose range has the instant; null without one.")
    ]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decided part of an explanation, with the same fields."""

    outcome: OccurrenceOutcome
    words: str
    reason: str | None = None
    span: SkipSpan | None = None
    moved_to: datetime | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ChildRun:
    """A run of a job in an occurrence of a workflow; each resume is one more generation."""

    generation: int
    run_id: UUID
    state: str
    reason: str | None


@dataclass(frozen=True, slots=True)
class ParentState:
    """A parent in an occurrence: the condition, and the state of its run; None if it has none yet."""

    key: str
    when: str
    state: str | None


@dataclass(frozen=True, slots=True)
class WorkflowFacts:
    """The occurrence of a workflow at an instant, as one of its children sees it."""

    root_key: Annotated[str, Field(description="The root's key.")]
    root_run_id: Annotated[UUID, Field(description="The root's run of the instant.")]
    root_state: Annotated[str, Field(description="The state of that run.")]
    state: Annotated[str | None, Field(description="The state of the occurrence; null before it is open.")]
    runs: Annotated[tuple[ChildRun, ...], Field(description="The child's runs, the latest generation first.")]
    parents: Annotated[tuple[ParentState, ...], Field(description="The child's parents.")]


@dataclass(frozen=True, slots=True)
class Explanation:
    """The past or future outcome of an instant of a job, and its reason."""

    key: Annotated[str, Field(description="The job.")]
    at: Annotated[datetime, Field(description="The instant in UTC.")]
    local: Annotated[datetime, Field(description="The instant in the job's zone.")]
    zone: Annotated[str, Field(description="The job's zone.")]
    outcome: Annotated[OccurrenceOutcome, Field(description="Its outcome.")]
    words: Annotated[str, Field(description="The reason and the remedy in sentences.")]
    reason: Annotated[
        str | None, Field(description="The ledger's word for the reason, such as `misfire`; null if there is none.")
    ] = None
    run: Annotated[RunFacts | None, Field(description="The occurrence's run.")] = None
    others: Annotated[
        tuple[RunFacts, ...], Field(description="Runs of the same instant by triggers, backfills and retries.")
    ] = ()
    version: Annotated[VersionInForce | None, Field(description="The version in force at the instant.")] = None
    span: Annotated[SkipSpan | None, Field(description="The ledger row of a passed-over occurrence.")] = None
    moved_to: Annotated[datetime | None, Field(description="The new time of a moved occurrence.")] = None
    before: Annotated[datetime | None, Field(description="The nearest earlier occurrence.")] = None
    after: Annotated[datetime | None, Field(description="The nearest later occurrence.")] = None
    notes: Annotated[tuple[str, ...], Field(description="Effects of clock changes, and other remarks.")] = ()
    workflow: Annotated[
        WorkflowFacts | None, Field(description="The occurrence that the instant is of, if the job has parents.")
    ] = None
    between_runs: Annotated[
        bool, Field(description="True if these two are runs, for the job never had an occurrence.")
    ] = False
