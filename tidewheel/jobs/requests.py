"""Requests to Tidewheel: one model per request, discriminated by `type`."""

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, ClassVar, Literal, Self, TypeAlias

from pydantic import BeforeValidator, Field, model_validator

from tidewheel.jobs.batches import AddedRuns, BatchCallbacks, BatchRuns
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.keys import ConcurrencyKeyName, OrderingKeyField, TriggerDedupe
from tidewheel.jobs.payload import WithPayload
from tidewheel.jobs.schedule import Interval
from tidewheel.jobs.spec import JobSpec
from tidewheel.jobs.spec_cache import CachedSpec
from tidewheel.jobs.validation import StrictModel
from tidewheel.jobs.values import (
    MAX_DAYS,
    MAX_PROGRESS_BYTES,
    MAX_RESULT_BYTES,
    BackfillId,
    BatchId,
    CalendarName,
    Day,
    Delay,
    Description,
    IfVersion,
    Instant,
    Key,
    Labels,
    OverlapPolicy,
    Priority,
    Queue,
    Reason,
    RunId,
    TaskToken,
    Tenant,
    Traceparent,
    Weekday,
    at_most,
    bounded_json,
    few,
)

_IN_JOB = "write it inside job"


class Sent(StrictModel):
    """The field of every request that its sender chooses."""

    request_id: Key | None = None


class _Request(Sent):
    """The fields of every request."""

    tenant: Tenant = "default"
    traceparent: Traceparent | None = None


class JobSubmit(_Request):
    """Create a job, or change it to this spec."""

    elsewhere: ClassVar[Mapping[str, str]] = dict.fromkeys(JobSpec.model_fields, _IN_JOB)

    type: Literal["job.submit"]
    job: JobSpec
    if_version: IfVersion | None = None

    @cached_property
    def cached(self) -> CachedSpec | None:
        """The cached template of its job; None if the model read the job. Not a field."""
        return None


class JobTrigger(_Request, WithPayload):
    """Run a job once: now, after a delay, or at an instant.

    Attributes:
        payload: Replaces the job's.
        labels: Replace the job's.
        overlap: Replaces the job's.
        concurrency_key: Replaces the job's key; the limit stays the job's, or one at once if it has none.
        priority: Replaces the job's.
        dedupe: The triggers with one key of which a window has one run; what it leaves out the job's has.
        ordering_key: A key whose runs start one after another, in place of the job's: an object, or as text the key.
    """

    elsewhere: ClassVar[Mapping[str, str]] = {"lane": "write it in the job", "queue": "write it in the job"}

    type: Literal["job.trigger"]
    key: Key
    delay: Delay | None = None
    run_at: Instant | None = None
    labels: Labels | None = None
    overlap: OverlapPolicy | None = None
    concurrency_key: ConcurrencyKeyName | None = None
    priority: Priority | None = None
    dedupe: TriggerDedupe | None = None
    ordering_key: OrderingKeyField = None

    @model_validator(mode="after")
    def _one_time(self) -> Self:
        if self.delay is not None and self.run_at is not None:
            raise InvalidValue(problem="delay and run_at cannot be combined", remedy="leave one out", path="delay")
        if self.ordering_key is not None and self.concurrency_key is not None:
            remedy = "leave one out; runs of an ordering key already start one after another"
            problem = "ordering_key and concurrency_key cannot be combined"
            raise InvalidValue(problem=problem, remedy=remedy, path="ordering_key")
        return self


class _AboutJob(_Request):
    """Base of requests about one job, by its key."""

    key: Key
    reason: Reason | None = None


class JobPause(_AboutJob):
    """Fire no occurrence of a job until it is resumed, or until an instant.

    Attributes:
        until: The instant at which the job resumes by itself.
    """

    elsewhere: ClassVar[Mapping[str, str]] = {"paused_until": "write it as until"}

    type: Literal["job.pause"]
    until: Instant | None = None


class JobResume(_AboutJob):
    """Fire a paused job's occurrences again."""

    type: Literal["job.resume"]


class JobDelete(_AboutJob):
    """Remove a job; runs that have started finish."""

    type: Literal["job.delete"]
    if_version: IfVersion | None = None


class JobRollback(_AboutJob):
    """Give a job the spec of an earlier version again, as a new version.

    Attributes:
        version: The version whose spec the job gets.
        if_version: Apply only while this is the current version.
    """

    type: Literal["job.rollback"]
    version: Annotated[int, Field(ge=1, le=2**31 - 1)]
    if_version: IfVersion | None = None


class JobSkip(_AboutJob):
    """Skip one upcoming occurrence.

    Attributes:
        at: The occurrence's nominal instant.
    """

    type: Literal["job.skip"]
    at: Instant


class JobMove(_AboutJob):
    """Move one upcoming occurrence to another time; it stays the occurrence of its nominal instant.

    Attributes:
        at: The occurrence's nominal instant.
        to: The instant at which it fires instead.
    """

    type: Literal["job.move"]
    at: Instant
    to: Instant


class JobUnskip(_AboutJob):
    """Retract a skip or a move of an upcoming occurrence.

    Attributes:
        at: The occurrence's nominal instant.
    """

    type: Literal["job.unskip"]
    at: Instant


class JobReschedule(_AboutJob):
    """Set when a fixed_delay job runs next, counted from the end of its last run.

    Attributes:
        next_in: The time from that end, bounded by the job's `min` and `max`.
    """

    type: Literal["job.reschedule"]
    next_in: Interval


class JobBackfill(_AboutJob):
    """Run the occurrences of a past range.

    Attributes:
        from_at: The first instant of the range.
        to_at: The last.
        what: The occurrences that did not fire, or all.
        versions: The version in force at each instant, or the current one throughout.
        overlap: Replaces the job's policy.
        max_concurrent: The limit on open runs of this backfill.
        order: The end of the range to start with.
        dry_run: Only count the runs.
    """

    type: Literal["job.backfill"]
    from_at: Instant = Field(alias="from")
    to_at: Instant = Field(alias="to")
    what: Literal["missing_only", "all"] = "missing_only"
    versions: Literal["as_of", "current"] = "as_of"
    overlap: OverlapPolicy | None = None
    max_concurrent: Annotated[int, Field(ge=1, le=1000)] = 10
    order: Literal["oldest_first", "newest_first"] = "oldest_first"
    dry_run: bool = False

    @model_validator(mode="after")
    def _range_ahead(self) -> Self:
        if self.to_at < self.from_at:
            raise InvalidValue(problem="is before from", remedy="swap the two", path="to")
        return self


class _AboutBackfill(_Request):
    """Base of requests about one backfill."""

    backfill_id: BackfillId
    reason: Reason | None = None


class BackfillPause(_AboutBackfill):
    """Create no further run of a backfill until it is resumed."""

    type: Literal["backfill.pause"]


class BackfillResume(_AboutBackfill):
    """Continue a backfill."""

    type: Literal["backfill.resume"]


class BackfillCancel(_AboutBackfill):
    """Create no further run of a backfill, and cancel its runs that have not started."""

    type: Literal["backfill.cancel"]


class CalendarPut(_Request):
    """Create or replace a named set of days; jobs that name it follow at once.

    Attributes:
        name: Unique in its tenant.
        days: Dates such as 2026-12-25.
        weekdays: Days of every week, such as SAT and SUN.
        source: The origin of the days, as text; stored and shown.
    """

    type: Literal["calendar.put"]
    name: CalendarName
    days: Annotated[tuple[Day, ...], BeforeValidator(at_most(MAX_DAYS, "days"))] = ()
    weekdays: Annotated[tuple[Weekday, ...], BeforeValidator(few)] = ()
    source: Reason | None = None

    @model_validator(mode="after")
    def _some(self) -> Self:
        if not self.days and not self.weekdays:
            raise InvalidValue(problem="there are neither days nor weekdays", remedy="add at least one", path="days")
        return self


class CalendarDelete(_Request):
    """Remove a calendar that no job names."""

    type: Literal["calendar.delete"]
    name: CalendarName


class RunCancel(_Request):
    """End a run, whatever state it is in."""

    type: Literal["run.cancel"]
    run_id: RunId
    reason: Reason | None = None


class RunRetry(_Request):
    """Create a new run of an ended one, or make the next `attempt` of a retrying one due now.

    Attributes:
        run_id: The run that has ended, or that retries.
        delay: The new run starts this much later.
        attempt: The next attempt of a retrying run.
    """

    type: Literal["run.retry"]
    run_id: RunId
    delay: Delay | None = None
    attempt: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    reason: Reason | None = None

    @model_validator(mode="after")
    def _now_or_later(self) -> Self:
        if self.attempt is not None and self.delay is not None:
            raise InvalidValue(problem="cannot be combined with attempt", remedy="leave it out", path="delay")
        return self


class _AboutWorkflow(_Request):
    """Base of requests about one occurrence of a workflow.

    Attributes:
        run_id: The root's run; the id of a batch.
    """

    run_id: RunId
    reason: Reason | None = None


class WorkflowPause(_AboutWorkflow):
    """Release no further run of an occurrence until it is resumed; runs that are queued go on."""

    type: Literal["workflow.pause"]


class WorkflowResume(_AboutWorkflow):
    """Go on with a paused occurrence, or run the failed part of one that has ended again."""

    type: Literal["workflow.resume"]


class WorkflowCancel(_AboutWorkflow):
    """Cancel an occurrence: end its open runs, and start no further jobs."""

    type: Literal["workflow.cancel"]


class BatchSubmit(_Request):
    """Run jobs once each, with dependencies between them, and trigger jobs when they end.

    Attributes:
        runs: The runs.
        on: The jobs to trigger at the first failure and at the end.
        open: True if any client may add runs, until the batch is closed.
    """

    type: Literal["batch.submit"]
    runs: BatchRuns
    on: BatchCallbacks | None = None
    open: bool = False


class BatchAdd(_Request):
    """Add runs to an open batch, or to any batch from one of its own runs.

    Attributes:
        batch_id: The batch.
        from_run_id: A run of the batch that adds them; required unless the batch is open.
        runs: The runs; their `after` may name existing runs of the batch.
    """

    type: Literal["batch.add"]
    batch_id: BatchId
    from_run_id: RunId | None = None
    runs: AddedRuns


class BatchClose(_Request):
    """Let an open batch end when its runs have ended."""

    type: Literal["batch.close"]
    batch_id: BatchId


class RunComplete(_Request):
    """Report the end of an attempt from outside.

    Attributes:
        token: The attempt's task token; no other permission is needed.
        result: With `succeeded`: any JSON value.
        error_type: With `failed`: compared with the job's non_retryable.
        error_message: With `failed`: the error.
        permanent: With `failed`: do not retry.
        next_in: The time from the run's end to the next run of its fixed_delay job, bounded by the job's `min` and
            `max`.
    """

    type: Literal["run.complete"]
    token: TaskToken
    status: Literal["succeeded", "failed"] = "succeeded"
    result: Annotated[bytes | None, BeforeValidator(bounded_json(MAX_RESULT_BYTES))] = None
    error_type: Key | None = None
    error_message: Description | None = None
    permanent: bool = False
    next_in: Interval | None = None

    @model_validator(mode="after")
    def _one_end(self) -> Self:
        for name in ("error_type", "error_message", "permanent"):
            if self.status == "succeeded" and name in self.model_fields_set:
                raise InvalidValue(
                    problem="is not allowed with a success", remedy="leave it out, or write status: failed", path=name
                )
        if self.status == "failed" and "result" in self.model_fields_set:
            raise InvalidValue(
                problem="is not allowed with a failure", remedy="write error_type and error_message", path="result"
            )
        return self


class RunHeartbeat(_Request):
    """Report from outside that an attempt goes on.

    Attributes:
        token: The attempt's task token.
        progress: The progress so far, any JSON value.
        checkpoint: State for the next attempt to continue from, any JSON value.
    """

    type: Literal["run.heartbeat"]
    token: TaskToken
    progress: Annotated[bytes | None, BeforeValidator(bounded_json(MAX_PROGRESS_BYTES))] = None
    checkpoint: Annotated[bytes | None, BeforeValidator(bounded_json(MAX_RESULT_BYTES))] = None


class RunsMatching(StrictModel):
    """The open runs that a cancellation by filter ends: those that match all of its fields."""

    key: Annotated[Key | None, Field(description="Of this job.")] = None
    labels: Annotated[
        Labels | None, Field(description="Of jobs that have all of these labels when the request is applied.")
    ] = None
    queue: Annotated[Queue | None, Field(description="Of this queue.")] = None
    lane: Annotated[Literal["critical", "standard", "batch"] | None, Field(description="Of this lane.")] = None
    handler: Annotated[Key | None, Field(description="Of this handler.")] = None
    cause: Annotated[
        Literal["timer", "trigger", "backfill", "workflow", "retry"] | None, Field(description="Of this cause.")
    ] = None
    created_before: Annotated[
        Instant | None,
        Field(description="Created before this instant; by default the instant at which the request is applied."),
    ] = None
    include_started: Annotated[bool, Field(description="True to cancel runs that have started too.")] = True

    @model_validator(mode="after")
    def _narrow(self) -> Self:
        if not any((self.key, self.labels, self.queue, self.lane, self.handler, self.cause)):
            remedy = "filter by key, labels, queue, lane, handler or cause"
            raise InvalidValue(problem="there is no filter, so every run would be cancelled", remedy=remedy, path="key")
        return self


class CancelFields(RunsMatching, Sent):
    """End all runs that match a filter and were created before an instant."""

    reason: Reason | None = None


class RunsCancel(CancelFields, _Request):
    """End all runs that match a filter and were created before an instant."""

    type: Literal["runs.cancel"]


class FreezeScope(StrictModel):
    """A scope: the runs that fit all of its fields."""

    elsewhere: ClassVar[Mapping[str, str]] = {
        "key": "write key_prefix, or send job.pause, which is about one job",
        "label": "write labels, as an object",
    }

    scope: Annotated[
        Literal["fleet", "tenant"] | None,
        Field(description="`fleet`, the runs of all tenants, or `tenant`, those of the request's tenant."),
    ] = None
    queue: Annotated[Queue | None, Field(description="Only runs of this queue.")] = None
    labels: Annotated[Labels | None, Field(description="Only runs of jobs that have all of these labels.")] = None
    key_prefix: Annotated[Key | None, Field(description="Only runs of jobs whose keys begin with this text.")] = None

    @model_validator(mode="after")
    def _named(self) -> Self:
        if not any((self.scope, self.queue, self.labels, self.key_prefix)):
            remedy = "add scope (fleet or tenant), queue, labels or key_prefix"
            raise InvalidValue(problem="is missing", remedy=remedy, path="scope")
        if self.scope == "fleet" and (self.labels or self.key_prefix):
            path = "labels" if self.labels else "key_prefix"
            problem = "labels and keys belong to the jobs of one tenant"
            raise InvalidValue(problem=problem, remedy="leave it out, or leave out scope: fleet", path=path)
        return self


class ThawFields(FreezeScope, Sent):
    """End the freeze of a scope."""


class FreezeFields(FreezeScope, Sent):
    """Start no run of a scope until it is thawed; what runs goes on."""

    reason: Annotated[Reason | None, Field(description="Shown until the thaw.")] = None
    by: Annotated[Key | None, Field(description="The name of the operator, which nothing verifies.")] = None


class Freeze(FreezeFields, _Request):
    """Start no run of a scope until it is thawed; what runs goes on."""

    type: Literal["freeze"]


class Thaw(ThawFields, _Request):
    """End the freeze of a scope."""

    type: Literal["thaw"]


AnyRequest: TypeAlias = (
    JobSubmit
    | JobTrigger
    | JobPause
    | JobResume
    | JobDelete
    | JobRollback
    | JobSkip
    | JobMove
    | JobUnskip
    | JobReschedule
    | JobBackfill
    | BackfillPause
    | BackfillResume
    | BackfillCancel
    | CalendarPut
    | CalendarDelete
    | RunCancel
    | RunRetry
    | RunComplete
    | RunHeartbeat
    | RunsCancel
    | Freeze
    | Thaw
    | WorkflowPause
    | WorkflowResume
    | WorkflowCancel
    | BatchSubmit
    | BatchAdd
    | BatchClose
)
Request: TypeAlias = Annotated[AnyRequest, Field(discriminator="type")]
