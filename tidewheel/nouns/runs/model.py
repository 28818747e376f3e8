"""Records of runs: rows of queries, results of the client, JSON of the doors."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import datetime, timedelta
from typing import Annotated, Literal, NamedTuple, TypedDict
from uuid import UUID

from pydantic import AfterValidator, Field, WithJsonSchema

from tidewheel.control.reads.json_form import one_of
from tidewheel.control.reads.waits import Wait
from tidewheel.jobs.values import Instant, Key, Labels, Queue, one_line
from tidewheel.nouns.operation import InDoors
from tidewheel.runs import FINAL, SCHEDULED, AttemptOutcome, Cause, Lane, RunState

STATUSES = (*sorted(RunState), SCHEDULED)
Group = Literal["due", "held", "running_or_cancelling", "failed_or_timed_out"]
"""States that one figure of the console counts together. `due` leaves out the runs whose time is ahead, and both `due`
and `held` those whose cancel is accepted."""
Status = Literal[
    "scheduled", "queued", "buffered", "running", "waiting", "retrying", "cancelling", "blocked", "succeeded", "failed",
    "timed_out", "cancelled", "skipped",
]  # fmt: skip
ErrorType = Annotated[str, AfterValidator(one_line(255))]
OfQueue = Annotated[Queue | None, Field(description="Only runs of this queue.")]
OfLane = Annotated[Literal["critical", "standard", "batch"] | None, Field(description="Only runs of this lane.")]
StageName = Literal["due", "written", "published", "claimed", "begun", "ended", "announced"]
Clock = Literal["database", "broker", "executor"]
_STORED = WithJsonSchema({})  # JSON text, which REST shows as its value


class RunFilter(TypedDict, total=False):
    """Filter of a list of runs, which match all of its fields."""

    status: Annotated[Status | None, Field(description="Only runs in this state.")]
    key: Annotated[Key | None, Field(description="Only runs of the job with this key."), InDoors("job")]
    labels: Annotated[
        Labels | None,
        Field(description="Only runs of jobs that have this label now; repeatable. Requires a job or a start time."),
    ]
    run_labels: Annotated[
        Labels | None,
        Field(
            description="Only runs with this label; a trigger's label overrides the job's. "
            "Requires a job or a start time."
        ),
    ]
    lane: OfLane
    queue: OfQueue
    cause: Annotated[
        Literal["timer", "trigger", "backfill", "workflow", "retry"] | None,
        Field(description="Only runs of this cause."),
    ]
    concurrency_key: Annotated[Key | None, Field(description="Only runs with this key.")]
    ordering_key: Annotated[Key | None, Field(description="Only open runs with this key.")]
    since: Annotated[Instant | None, Field(description="Only runs scheduled at this time or later.")]
    until: Annotated[Instant | None, Field(description="Only runs scheduled at this time or earlier.")]


class PageFilter(RunFilter, total=False):
    """The same with the fields that only the console's page has."""

    group: Group | None
    ended_since: datetime | None
    ended_until: datetime | None


@dataclass(frozen=True, slots=True)
class Run:
    """A run in its current state, as the client polls it."""

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


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A run as lists show it."""

    run_id: Annotated[UUID, Field(description="Its id.")]
    key: Annotated[str, Field(description="Its job's key.")]
    job_id: Annotated[UUID, Field(description="Its job.")]
    job_version: Annotated[int, Field(description="The version that it was created from.")]
    status: Annotated[str, one_of(STATUSES), Field(description="Its state, or `scheduled`.")]
    cause: Annotated[str, one_of(Cause), Field(description="Its cause.")]
    queue: Annotated[str, Field(description="Its queue.")]
    lane: Annotated[str, one_of(Lane), Field(description="Its priority class.")]
    attempt: Annotated[int, Field(description="The last attempt that started; 0 before the first.")]
    scheduled_at: Annotated[datetime, Field(description="The nominal instant.")]
    created_at: Annotated[datetime, Field(description="When it was written.")]
    publish_at: Annotated[
        datetime | None,
        Field(description="When it can be claimed; null for an ended run, and while it waits for something else."),
    ]
    started_at: Annotated[datetime | None, Field(description="When the last attempt began.")]
    finished_at: Annotated[datetime | None, Field(description="When it ended.")]
    reason: Annotated[
        str | None, Field(description="The reason of a skip or a cancellation, or the timeout that fired.")
    ]
    error_type: Annotated[str | None, Field(description="The error type of its last attempt, once it has ended.")]
    concurrency_key: Annotated[str | None, Field(description="The concurrency key whose place it needs to start.")]
    why: Annotated[Wait | None, Field(description="Why an open run waits.")] = None

    @property
    def took(self) -> timedelta | None:
        """From the start to the end of its last attempt."""
        return None if self.started_at is None or self.finished_at is None else self.finished_at - self.started_at


@dataclass(frozen=True, slots=True)
class RunPage:
    """Runs whose time has come, latest first, then runs scheduled for the future.

    `at_least` is true if there may be more than `total`.
    """

    runs: tuple[RunSummary, ...]
    next_cursor: str | None
    total: int
    at_least: bool


class CountedRuns(NamedTuple):
    """A number of runs; `at_least` is true if there may be more."""

    runs: int
    at_least: bool


@dataclass(frozen=True, slots=True)
class BinnedRuns:
    """The runs of a job by bin, counted by state; a sample has only the newest of each bin."""

    bins: Sequence[Mapping[str, int]]
    is_sample: bool


@dataclass(frozen=True, slots=True)
class RelatedRun:
    """A run of the same instant of the same job."""

    run_id: Annotated[UUID, Field(description="Its id.")]
    parent_run_id: Annotated[UUID | None, Field(description="The run that it retries.")]
    cause: Annotated[str, Field(description="The reason for the run.")]
    state: Annotated[str, Field(description="Its state; `scheduled` is a queued run whose time has not come.")]
    created_at: Annotated[datetime, Field(description="When it was written.")]


@dataclass(frozen=True, slots=True)
class RetryChain:
    """A run's position in its retry chain."""

    parent_run_id: Annotated[UUID | None, Field(description="The run that it retries.")] = None
    root_run_id: Annotated[UUID | None, Field(description="The first run of the chain.")] = None
    previous: Annotated[
        tuple[RelatedRun, ...], Field(description="The runs before it, the first of the chain first.")
    ] = ()
    next: Annotated[tuple[RelatedRun, ...], Field(description="Its retries and their retries, oldest first.")] = ()


@dataclass(frozen=True, slots=True)
class RunStage:
    """A stage of a run.

    The clocks of the broker and of executors may differ from the database's.
    """

    name: Annotated[
        StageName,
        Field(
            description="`due`, `written`, `published` on Kafka, `claimed`, `begun` by the handler, `ended`, or"
            " `announced` by the completion event."
        ),
    ]
    attempt: Annotated[int | None, Field(description="Its attempt; null for stages of the whole run.")]
    at: Annotated[datetime | None, Field(description="Its instant; null if it is not recorded, or not reached.")]
    clock: Annotated[Clock, Field(description="The clock that the instant comes from.")]
    known: Annotated[bool, Field(description="False if the stage was passed but its instant is not recorded.")]


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt that has ended."""

    attempt: Annotated[int, Field(description="Its number.")]
    outcome: Annotated[str, one_of(AttemptOutcome), Field(description="Its outcome.")]
    executor_id: Annotated[UUID | None, Field(description="Its executor.")]
    started_at: Annotated[datetime | None, Field(description="When it was claimed.")]
    finished_at: Annotated[datetime, Field(description="When it ended.")]
    error_type: Annotated[str | None, Field(description="The error's type.")]
    error_message: Annotated[str | None, Field(description="The error's text.")]
    claimed_from: Annotated[
        str | None,
        Field(description="The message through which it was claimed, as topic/partition/offset@timestamp, or `sweep`."),
    ]
    trace: Annotated[
        str | None, Field(description="Its traceback; of a failed run's last attempt for as long as the run.")
    ] = None
    output_bytes: Annotated[int | None, Field(description="The number of bytes that it wrote, if known.")] = None
    result: Annotated[bytes | None, _STORED, Field(description="The handler's result.")] = None


@dataclass(frozen=True, slots=True)
class PastAttempt(Attempt):
    """The same with the last 64 KiB of its output, which REST has as logs."""

    output: bytes | None = None


@dataclass(frozen=True, slots=True)
class PayloadFacts:
    """The size and the type of the payload that a run's handler gets."""

    bytes: Annotated[int, Field(description="Its size.")]
    content_type: Annotated[str, Field(description="Its type.")]
    is_own: Annotated[
        bool, Field(description="True if the run was created with it; false if it comes from the job's version.")
    ]


@dataclass(frozen=True, slots=True)
class RunDetail(RunSummary):
    """A run with its attempts, deadlines and retry chain."""

    _: KW_ONLY
    handler: Annotated[str, Field(description="The handler or capability that its executor must have.")]
    labels: Annotated[Mapping[str, str], Field(description="Its job's labels, overridden by its own.")]
    max_attempts: Annotated[
        int,
        Field(
            description="How many attempts may fail before the run fails; 0 if its definition is lost or cannot be"
            " read."
        ),
    ]
    failed_attempts: Annotated[
        int | None,
        Field(description="How many attempts count against `max_attempts`; null for an ended run with more than 100."),
    ] = None
    lost_attempts: Annotated[
        int | None,
        Field(description="How many were lost with their executors; null for an ended run with more than 100."),
    ] = None
    deadline_at: Annotated[
        datetime | None, Field(description="The earliest of its timeouts that PostgreSQL keeps.")
    ] = None
    schedule_to_close_at: Annotated[datetime | None, Field(description="When its schedule_to_close timeout fires.")] = (
        None
    )
    external_deadline_at: Annotated[
        datetime | None, Field(description="Until when it waits for an external completion.")
    ] = None
    executor_id: Annotated[UUID | None, Field(description="The executor that owns it.")] = None
    executor: Annotated[str | None, Field(description="That executor's name.")] = None
    claimed_from: Annotated[
        str | None, Field(description="The message through which the current attempt was claimed.")
    ] = None
    progress: Annotated[bytes | None, _STORED, Field(description="Reported by the current attempt, or the last.")] = (
        None
    )
    progress_at: Annotated[datetime | None, Field(description="When it was reported.")] = None
    checkpoint: Annotated[bytes | None, _STORED, Field(description="Passed to the next attempt.")] = None
    checkpoint_attempt: Annotated[int | None, Field(description="The attempt that saved it.")] = None
    error_message: Annotated[str | None, Field(description="The text of its error.")] = None
    result: Annotated[bytes | None, _STORED, Field(description="The handler's result.")] = None
    late: Annotated[
        timedelta | None, Field(description="How late it was created, if it catches up a missed occurrence.")
    ] = None
    request_id: Annotated[str | None, Field(description="The id of the request that created it.")] = None
    traceparent: Annotated[str | None, Field(description="Its trace.")] = None
    dead_letter: Annotated[int | None, Field(description="The id of its dead letter, if it is one.")] = None
    workflow_run_id: Annotated[
        UUID | None, Field(description="The root's run, if it belongs to an occurrence of a workflow.")
    ] = None
    retry_chain: Annotated[RetryChain, Field(description="The runs that it retries, and its retries.")] = RetryChain()
    attempts: Annotated[
        tuple[PastAttempt, ...], Field(description="The last hundred that have ended, oldest first.")
    ] = ()
    payload: Annotated[
        PayloadFacts | None,
        Field(
            description="The size and type of its payload; null if it is no longer in the database, or if its"
            " definition cannot be read."
        ),
    ] = None
    stages: Annotated[
        tuple[RunStage, ...],
        Field(description="The stages that it has passed, each with the clock of its instant."),
    ] = ()
    archived: Annotated[
        bool,
        Field(description="True if it is only in the archive, without outputs, results and progress."),
    ] = False
    copied: Annotated[
        bool,
        Field(
            description="True if only the copy of a failed run is left, without inputs, labels of its own and other"
            " attempts than the last."
        ),
    ] = False
    batch_id: Annotated[UUID | None, Field(description="Its batch, if it belongs to one.")] = None

    @property
    def summary(self) -> RunSummary:
        """The run as in lists."""
        return self


@dataclass(frozen=True, slots=True)
class Cancellation:
    """A cancellation by filter, with its progress."""

    cancellation_id: Annotated[int, Field(description="Its id.")]
    key: Annotated[str | None, Field(description="Of this job.")]
    labels: Annotated[Mapping[str, str], Field(description="Of the jobs that had all of these.")]
    queue: Annotated[str | None, Field(description="Of this queue.")]
    lane: Annotated[str | None, Field(description="Of this lane.")]
    handler: Annotated[str | None, Field(description="Of this handler.")]
    cause: Annotated[str | None, Field(description="Of this cause.")]
    created_before: Annotated[datetime, Field(description="Runs that were created later are not cancelled.")]
    include_started: Annotated[bool, Field(description="True if started runs are cancelled too.")]
    reason: Annotated[str | None, Field(description="The reason of the request.")]
    created_at: Annotated[
        datetime, Field(description="When it was accepted. From then on, claims refuse matching runs.")
    ]
    named_count: Annotated[
        int | None,
        Field(
            description="How many runs matched at its acceptance, except those that already had a cancel. Counted"
            " to 250,000; one more means that there may be more. Null for cancellations of an earlier release, and of"
            " deleted jobs."
        ),
    ]
    cancelled_count: Annotated[
        int, Field(description="The number of runs that it has ended or requested to stop so far.")
    ]
    finished_at: Annotated[datetime | None, Field(description="When the last matching run had ended.")]


@dataclass(frozen=True, slots=True)
class CancelResult:
    """Result of a request to cancel runs by a filter."""

    cancellation_id: Annotated[int | None, Field(description="The cancellation's id; null of a dry run.")]
    matched: Annotated[int, Field(description="How many open runs match; counted to 250,000 open runs.")]
    at_least: Annotated[bool, Field(description="True if there may be more than `matched`.")]


@dataclass(frozen=True, slots=True)
class LogPiece:
    """New output of an attempt, after bytes that are no longer stored."""

    attempt: int
    outcome: Annotated[str | None, Field(description="Its outcome; null while it runs.")]
    dropped_bytes: int
    output: bytes
