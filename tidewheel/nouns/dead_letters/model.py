"""Records of dead letters: rows of queries, results of the client, JSON of the doors."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal, TypedDict
from uuid import UUID

from pydantic import Field

from tidewheel.jobs.values import Instant, Key
from tidewheel.nouns.operation import InDoors, Place
from tidewheel.nouns.runs.model import ErrorType, OfLane, OfQueue, RunDetail
from tidewheel.nouns.works.model import Started

Number = Annotated[int, Field(ge=1, le=2**63 - 1)]


class DeadLetterFilter(TypedDict, total=False):
    """Filter of dead letters, which match all of its fields."""

    ids: Annotated[Annotated[Sequence[Number], Field(max_length=1000)] | None, Field(description="Only these.")]
    kind: Annotated[Literal["run", "message"] | None, Field(description="Only this kind.")]
    key: Annotated[Key | None, Field(description="Only of the job with this key."), InDoors("job")]
    status: Annotated[Literal["failed", "timed_out"] | None, Field(description="Only runs in this final state.")]
    error_type: Annotated[ErrorType | None, Field(description="Only runs whose last attempt had this error type.")]
    queue: OfQueue
    lane: OfLane
    since: Annotated[Instant | None, Field(description="Created at this instant or later.")]
    until: Annotated[Instant | None, Field(description="Created at this instant or before.")]
    redriven: Annotated[bool | None, Field(description="True for redriven ones only, false for all others.")]


@dataclass(frozen=True, slots=True)
class DeadLetterSummary:
    """A dead letter as lists show it."""

    id: Annotated[int, Field(description="Its id.")]
    kind: Annotated[str, Field(description="Its kind.")]
    run_id: Annotated[UUID | None, Field(description="The run; null for a message.")]
    key: Annotated[str | None, Field(description="Its job's key.")]
    job_id: Annotated[UUID | None, Field(description="Its job.")]
    status: Annotated[str | None, Field(description="The run's final state.")]
    cause: Annotated[str | None, Field(description="The run's cause.")]
    queue: Annotated[str | None, Field(description="The run's queue.")]
    lane: Annotated[str | None, Field(description="The run's lane.")]
    attempt: Annotated[int | None, Field(description="Its last attempt.")]
    error_type: Annotated[str | None, Field(description="The error type of that attempt.")]
    topic: Annotated[str | None, Field(description="The message's topic; null for a run.")]
    partition: Annotated[int | None, Field(description="Its partition.")]
    offset: Annotated[int | None, Field(description="Its offset.")]
    reason: Annotated[str, Field(description="The reason.")]
    created_at: Annotated[datetime, Field(description="When it was created.")]
    redriven_run_id: Annotated[UUID | None, Field(description="The new run after a redrive.")]
    redriven_at: Annotated[
        datetime | None,
        Field(description="When it was redriven: a new run was created, or the message was published again."),
    ]


@dataclass(frozen=True, slots=True)
class DeadLettersPage:
    """Dead letters, the newest first; `at_least` is true if there are more than `total`."""

    dead_letters: tuple[DeadLetterSummary, ...]  # perhaps none before `next_cursor`: a page looks at so many at most
    next_cursor: Place | None
    total: int
    at_least: bool


@dataclass(frozen=True, slots=True)
class DeadLetterDetail(DeadLetterSummary):
    """A dead letter with its run, or with its message."""

    run: RunDetail | None  # with its attempts and retry chain; None for a message, and after the run's retention
    message_key: bytes | None
    message_value: bytes | None


@dataclass(frozen=True, slots=True)
class DeadLetterGroup:
    """Dead letters of one cause."""

    kind: Annotated[str, Field(description="`run` or `message`.")]
    key: Annotated[str | None, Field(description="Their job's key; null for messages.")]
    job_id: Annotated[UUID | None, Field(description="Their job.")]
    error_type: Annotated[str | None, Field(description="The error type of their last attempts.")]
    status: Annotated[str | None, Field(description="The final state of their runs.")]
    count: Annotated[int, Field(description="Their number.")]
    first_at: Annotated[datetime, Field(description="The creation of the oldest one.")]
    last_at: Annotated[datetime, Field(description="The creation of the newest one.")]
    versions: Annotated[Sequence[int], Field(description="The versions of the job that the runs had, in order.")]
    current_version: Annotated[
        int | None, Field(description="The version that a new run gets; null if the job is deleted.")
    ]


@dataclass(frozen=True, slots=True)
class DeadLetterGroups:
    """Groups of dead letters, the largest first."""

    groups: Annotated[tuple[DeadLetterGroup, ...], Field(description="The 200 largest.")]
    looked_at: Annotated[int, Field(description="How many dead letters were looked at, the newest ones.")]
    at_least: Annotated[bool, Field(description="True if there may be more than those.")]


@dataclass(frozen=True, slots=True)
class DeadLetterWork(Started):
    """A redrive or a purge that a call has started, or that its dry run would."""

    first: Annotated[tuple[DeadLetterSummary, ...], Field(description="Of a dry run: the first ten.")] = ()
