"""What is said about one instant of a job: its outcome, why, and what there is to it."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from uuid import UUID


class OccurrenceOutcome(StrEnum):
    """What became, or is to become, of an instant."""

    FIRED = "fired"
    """It became a run, whose state tells how that went."""
    SKIPPED = "skipped"
    """It was passed over; the reason says why."""
    SCHEDULED = "scheduled"
    """It is to fire; a run that was written ahead of its time is there already."""
    WILL_BE_SKIPPED = "will_be_skipped"
    """A person has left it out."""
    WILL_BE_MOVED = "will_be_moved"
    """A person has moved it to another time."""
    WILL_BE_EXCLUDED = "will_be_excluded"
    """A calendar leaves it out."""
    PAUSED = "paused"
    """It lies in a pause that is not over; `on_resume` decides."""
    WAITING = "waiting"
    """It is due and has not been fired yet."""
    NO_OCCURRENCE = "no_occurrence"
    """The job's schedule does not say so."""
    NOT_YET = "not_yet"
    """There was no such job then."""
    DELETED = "deleted"
    """The job had been deleted."""
    UNKNOWN = "unknown"
    """Nothing is recorded of it, as of what is older than what is kept."""


MISFIRE_AFTER = timedelta(seconds=60)
"""How late an occurrence may be before it is missed, where nobody has set it otherwise."""

MOVED = "moved"
"""The reason of an occurrence that fires at another time than its own."""


@dataclass(frozen=True, slots=True)
class AttemptFacts:
    """One attempt of a run.

    Args:
        attempt: Its number.
        outcome: How it ended; None while it is under way.
        executor_id: Who had it.
        started_at: When it began.
        finished_at: When it ended.
        error_type: What it failed with.
        error_message: What that said.
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
        cause: Why there is a run: `timer`, `trigger`, `backfill`, `retry`.
        state: Where it stands.
        reason: Why skipped or cancelled, or which timeout struck.
        job_version: The version it was made from.
        queue: Which executors may take it.
        handler: Which of their handlers; None where any executor can run it.
        created_at: When it was written, ahead of its time or late.
        publish_at: While it is open: when it may leave, or may begin again.
        late: How long after its time it was written; None where that was in time.
        caught_up: Whether its occurrence was missed, paused or past when it was submitted, and was made up for.
        attempt: The last attempt begun; 0 before the first.
        started_at: When that began.
        finished_at: When the run ended.
        error_type: What its last attempt failed with.
        attempts: The last hundred, oldest first.
    """

    run_id: UUID
    cause: str
    state: str
    reason: str | None
    job_version: int
    queue: str
    handler: str | None
    created_at: datetime
    publish_at: datetime | None
    late: timedelta | None
    caught_up: bool
    attempt: int
    started_at: datetime | None
    finished_at: datetime | None
    error_type: str | None
    attempts: tuple[AttemptFacts, ...] = ()


@dataclass(frozen=True, slots=True)
class VersionInForce:
    """The version that said what was to happen at the instant.

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
    """The row of the ledger that an occurrence was passed over with.

    Args:
        reason: Why.
        first_at: The first of its occurrences.
        last_at: The last.
        occurrences: How many.
        exact: False where there are more than were worth counting.
        created_at: When it was written.
        job_version: By which version.
    """

    reason: str
    first_at: datetime
    last_at: datetime
    occurrences: int
    exact: bool
    created_at: datetime
    job_version: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """The heart of an explanation; as there."""

    outcome: OccurrenceOutcome
    words: str
    reason: str | None = None
    span: SkipSpan | None = None
    moved_to: datetime | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Explanation:
    """What became of an instant of a job, or is to become of it, and why.

    Args:
        key: The job.
        at: The instant that was asked about, in UTC.
        local: The same on the clock of the job's zone.
        zone: That zone.
        outcome: What became of it.
        reason: The word that the ledger has for it, such as `misfire`; None where there is none.
        words: Why, and what there is to do.
        run: The run that the occurrence became.
        others: Runs of the very same instant that came otherwise: triggers, backfills, retries.
        version: The version in force then.
        span: What it was passed over with.
        moved_to: When it fires instead.
        before: The nearest occurrence earlier.
        after: The nearest later.
        notes: What a change of the clock does here, and other sentences worth knowing.
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
