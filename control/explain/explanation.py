"""Explanation of one instant of a job: its outcome, the reason, and its records."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from uuid import UUID


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
    """One attempt of a run.

    Args:
        attempt: Its number.
        outcome: Its outcome; None while it runs.
        executor_id: Its executor.
        started_at: When it began.
        finished_at: When it ended.
        error_type: The error's type.
        error_message: The error's text.
    """

    attempt: int
    outcome: str | None
    executor_id: UUID | None
    started_at: datetime | None
    finished_at: datetime | None
    error_type: str | None
    error_message: str | None


@dataclass(frozen=True, slots=True)
class RunFacts:
    """A run of the instant.

    Args:
        run_id: Its id.
        cause: Its cause: `timer`, `trigger`, `backfill`, `retry`.
        state: Its state.
        reason: The reason of a skip or a cancellation, or the timeout that fired.
        job_version: The version that it was created from.
        queue: Its queue.
        handler: The handler or capability that its executor must have.
        created_at: When it was created, ahead of its time or late.
        publish_at: While it is open: when it may be published, or retried.
        late: How long after its time it was created; None if in time.
        caught_up: True if its occurrence was missed, paused or past at the submit, and was caught up.
        attempt: The last attempt begun; 0 before the first.
        started_at: When that began.
        finished_at: When the run ended.
        error_type: The error type of its last attempt.
        concurrency_key: The key of which it needs a place to start.
        ordering_key: The key in whose order it waits for its turn.
        attempts: The last hundred attempts, the oldest first.
    """

    run_id: UUID
    cause: str
    state: str
    reason: str | None
    job_version: int
    queue: str
    handler: str
    created_at: datetime
    publish_at: datetime | None
    late: timedelta | None
    caught_up: bool
    attempt: int
    started_at: datetime | None
    finished_at: datetime | None
    error_type: str | None
    concurrency_key: str | None = None
    ordering_key: str | None = None
    attempts: tuple[AttemptFacts, ...] = ()


@dataclass(frozen=True, slots=True)
class VersionInForce:
    """The version in force at the instant.

    Args:
        number: Its number.
        effective_at: It counts for instants later than this.
        until: And up to this one; None while it is current.
    """

    number: int
    effective_at: datetime
    until: datetime | None


@dataclass(frozen=True, slots=True)
class SkipSpan:
    """The ledger row of a passed-over occurrence.

    Args:
        reason: The reason.
        first_at: The first of its occurrences.
        last_at: The last.
        occurrences: How many.
        exact: False if `occurrences` is a lower bound.
        created_at: When it was written.
        job_version: The version whose timer wrote it.
        backfill_id: The newest backfill under way whose range has the instant; None without one.
    """

    reason: str
    first_at: datetime
    last_at: datetime
    occurrences: int
    exact: bool
    created_at: datetime
    job_version: int
    backfill_id: UUID | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decided part of an explanation, with the same fields; `undo` follows its words."""

    outcome: OccurrenceOutcome
    words: str
    reason: str | None = None
    span: SkipSpan | None = None
    moved_to: datetime | None = None
    notes: tuple[str, ...] = ()
    undo: str = ""


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
    """The occurrence of a workflow at an instant, as one of its children sees it.

    Args:
        root_key: The root's key.
        root_run_id: The root's run of the instant.
        root_state: The state of that run.
        state: The state of the occurrence; None before it is open.
        runs: The child's runs, the latest generation first.
        parents: The child's parents.
    """

    root_key: str
    root_run_id: UUID
    root_state: str
    state: str | None
    runs: tuple[ChildRun, ...]
    parents: tuple[ParentState, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """The past or future outcome of an instant of a job, and its reason.

    Args:
        key: The job.
        at: The instant in UTC.
        local: The instant in the job's zone.
        zone: The job's zone.
        outcome: Its outcome.
        reason: The ledger's word for the reason, such as `misfire`; None if there is none.
        words: The reason and the remedy in sentences.
        run: The occurrence's run.
        others: Runs of the same instant by triggers, backfills and retries.
        version: The version in force at the instant.
        span: The ledger row of a passed-over occurrence.
        moved_to: The new time of a moved occurrence.
        before: The nearest earlier occurrence.
        after: The nearest later occurrence.
        between_runs: True if these two are runs, for the job never had an occurrence.
        notes: Effects of clock changes, and other remarks.
        workflow: The occurrence that the instant is of, if the job has parents.
    """

    key: str
    at: datetime
    local: datetime
    zone: str
    outcome: OccurrenceOutcome
    words: str
    reason: str | None = None
    run: RunFacts | None = None
    others: tuple[RunFacts, ...] = ()
    version: VersionInForce | None = None
    span: SkipSpan | None = None
    moved_to: datetime | None = None
    before: datetime | None = None
    after: datetime | None = None
    notes: tuple[str, ...] = ()
    workflow: WorkflowFacts | None = None
    between_runs: bool = False
