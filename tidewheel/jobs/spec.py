"""A job as submitted, with every default of this release."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Annotated, ClassVar, Literal, NamedTuple, Self, cast

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.keys import ConcurrencyKeyField, JobDedupe, OrderingKeyField, fill_key
from tidewheel.jobs.payload import WithPayload
from tidewheel.jobs.retry import RetryPolicy
from tidewheel.jobs.schedule import (
    AfterSpec,
    CronSpec,
    FixedDelaySpec,
    IntervalSpec,
    ManualSpec,
    ScheduleField,
    ScheduleSpec,
)
from tidewheel.jobs.schedule import schedule_document as _schedule_document
from tidewheel.jobs.strict_json import Json, as_list, as_object, canonical
from tidewheel.jobs.targets import TARGETS, TargetField
from tidewheel.jobs.validation import StrictModel
from tidewheel.jobs.values import (
    PRIORITY,
    CalendarName,
    Description,
    Instant,
    Key,
    Labels,
    OverlapPolicy,
    Priority,
    Queue,
    few,
    format_percentage,
    format_timestamp,
    microseconds,
    parse_percentage,
    span,
)

LONGEST_ATTEMPT = timedelta(hours=24)
LONGEST_JITTER = timedelta(hours=24)
LONGEST_WINDOW = timedelta(days=90)  # as long as runs are kept
_WAIT = span(timedelta(milliseconds=100), LONGEST_WINDOW)  # bounds a run's wait, and all its attempts together
MAX_FAILURES = 1_000_000

_OF_OCCURRENCES = (
    "jitter", "catch_up", "window", "on_resume", "exclude_calendars", "include_calendars", "on_excluded",
)  # fmt: skip

_IN_SCHEDULE = "write it inside schedule, beside cron"
_IN_RETRY = "write it inside retry"


class Jitter(NamedTuple):
    """Random delay of a job's runs: a duration, or a percentage of the time to the next occurrence."""

    longest: timedelta = timedelta(0)
    percent: float = 0.0


def _jitter(value: object) -> Jitter:
    if isinstance(value, Jitter):
        return value
    if isinstance(value, str) and value.endswith("%"):
        return Jitter(percent=parse_percentage(value))
    return Jitter(longest=span(timedelta(0), LONGEST_JITTER)(value))


class WorkflowSpec(StrictModel):
    """The occurrences of a workflow, in the spec of its root.

    Attributes:
        timeout: The longest time from the start of the root's run to the end of the occurrence.
        overlap: Whether the root's overlap policy sees whole occurrences, or the root's runs alone.
    """

    timeout: Annotated[timedelta, BeforeValidator(_WAIT)] | None = None
    overlap: Literal["whole", "root"] | None = None


class JobSpec(WithPayload):
    """A job: target, schedule, payload and policies.

    Attributes:
        key: Unique in its tenant. If absent, intake takes the request_id or the message's coordinates.
        schedule: When it fires: an object, or as text a cron expression, a duration, an instant, or `manual`.
        start_at: A recurring schedule has no occurrence before this instant.
        end_at: A recurring schedule has no occurrence after this instant.
        max_runs: A recurring schedule ends after this many occurrences.
        jitter: Delays each run at random, up to this: a duration, or a percentage of the time to the next occurrence.
        target: What its runs execute: an object, or as text the name of a handler.
        lane: The priority class of its runs.
        priority: Within a lane, runs with a higher priority go first: 0 to 9.
        queue: Only executors that serve this queue take its runs.
        overlap: What happens to a run while another one is active; `skip` for recurring jobs, `allow_all` for others.
        catch_up: Which missed occurrences fire after downtime.
        on_resume: Which occurrences of a pause fire when the pause ends.
        window: `fire_all` fires no occurrence that is older than this.
        pause_on_failure: After this many failed runs in a row, Tidewheel pauses the job.
        exclude_calendars: It does not fire on the days of these calendars.
        include_calendars: It fires only on the days of these calendars.
        on_excluded: What happens to an occurrence on an excluded day.
        on_failure: After a run that fails for good, Tidewheel triggers the job with this key.
        delivery: With `at_most_once`, no attempt follows one that may have started.
        retry: How many attempts a run has, and how long it waits between them.
        concurrency_key: Runs with the same key share its places: an object, or as text the key.
        ordering_key: Runs with the same key start one after another: an object, or as text the key.
        dedupe: Triggers of a manual job with the same key share one run within a window.
        workflow: In the root of a workflow: what bounds each of its occurrences.
        start_to_close: An attempt times out if it takes longer than this.
        schedule_to_start: A run times out if its first attempt has not begun within this time.
        schedule_to_close: A run times out if it has not ended within this time, all attempts included.
        heartbeat: An attempt times out if it sends no heartbeat for this long.
        labels: Names with values, by which lists, cancellations and freezes select its runs.
        description: Free text for people.
        paused: Tidewheel uses this only when it creates the job; versions do not contain it.
    """

    elsewhere: ClassVar[Mapping[str, str]] = {
        "timezone": _IN_SCHEDULE,
        "dst_gap": _IN_SCHEDULE,
        "dst_overlap": _IN_SCHEDULE,
        "cron": 'write it inside schedule: {"cron": ...}',
        "interval": 'write it inside schedule: {"interval": ...}',
        "once": 'write it inside schedule: {"once": ...}',
        "anchor": 'write it inside schedule: {"interval": ..., "anchor": ...}',
        "handler": 'write it as target: a handler\'s name, or {"type": "handler", "name": ...}',
        "url": 'write it inside target: {"type": "http", "url": ...}',
        "max_attempts": _IN_RETRY,
        "backoff": _IN_RETRY,
        "non_retryable": _IN_RETRY,
        "timeout": "write it as start_to_close",
        "timeouts": "write it as start_to_close",
        "history_limit": "leave it out; `tidewheel admin tenant retention` keeps runs of a tenant for fewer days",
        "tenant": "write it beside job",
        "request_id": "write it beside job",
    }

    key: Key | None = None
    schedule: ScheduleField
    start_at: Instant | None = None
    end_at: Instant | None = None
    max_runs: Annotated[int, Field(ge=1)] | None = None
    jitter: Annotated[
        Jitter, BeforeValidator(_jitter), WithJsonSchema({"type": ["string", "number"]}, mode="validation")
    ] = Jitter()
    target: TargetField
    lane: Literal["standard", "critical", "batch"] = "standard"
    priority: Priority = PRIORITY
    queue: Queue = "default"
    overlap: OverlapPolicy | None = None
    catch_up: Literal["fire_once", "fire_all", "skip"] = "fire_once"
    on_resume: Literal["skip", "fire_once", "fire_all"] = "skip"
    window: Annotated[timedelta, BeforeValidator(span(timedelta(seconds=1), LONGEST_WINDOW))] = timedelta(hours=24)
    pause_on_failure: Annotated[int, Field(ge=1, le=MAX_FAILURES)] | None = None
    exclude_calendars: Annotated[tuple[CalendarName, ...], BeforeValidator(few)] = ()
    include_calendars: Annotated[tuple[CalendarName, ...], BeforeValidator(few)] = ()
    on_excluded: Literal["skip", "next_business_day"] = "skip"
    on_failure: Key | None = None
    delivery: Literal["at_least_once", "at_most_once"] = "at_least_once"
    retry: RetryPolicy = RetryPolicy()
    concurrency_key: ConcurrencyKeyField = None
    ordering_key: OrderingKeyField = None
    dedupe: JobDedupe | None = None
    workflow: WorkflowSpec | None = None
    start_to_close: Annotated[timedelta, BeforeValidator(span(timedelta(milliseconds=1), LONGEST_ATTEMPT))] = timedelta(
        seconds=300
    )
    schedule_to_start: Annotated[timedelta, BeforeValidator(_WAIT)] | None = None
    schedule_to_close: Annotated[timedelta, BeforeValidator(_WAIT)] | None = None
    heartbeat: Annotated[timedelta, BeforeValidator(span(timedelta(seconds=1), LONGEST_ATTEMPT))] | None = None
    labels: Labels = {}  # noqa: RUF012 - pydantic copies it
    description: Description | None = None
    paused: bool = False

    @property
    def recurring(self) -> bool:
        """True if the schedule can have more than one occurrence."""
        return isinstance(self.schedule, IntervalSpec | FixedDelaySpec | CronSpec)

    @property
    def overlap_policy(self) -> OverlapPolicy:
        """The overlap policy in force: as given, else `skip` for recurring jobs and `allow_all` for others."""
        return self.overlap or ("skip" if self.recurring else "allow_all")

    @property
    def holds_place(self) -> bool:
        """True if its overlap policy sees whole occurrences of its workflow."""
        given = self.workflow.overlap if self.workflow is not None else None
        return self.overlap_policy != "allow_all" and given != "root"

    @model_validator(mode="after")
    def _bounds_agree(self) -> Self:
        for name in ("start_at", "end_at", "max_runs"):
            if getattr(self, name) is not None and not self.recurring:
                raise InvalidValue(
                    problem="needs a schedule that recurs",
                    remedy="leave it out, or use cron or interval",
                    path=name,
                )
        if self.max_runs is not None and isinstance(self.schedule, FixedDelaySpec):
            problem = "is not supported by fixed_delay, whose occurrences depend on how long runs take"
            raise InvalidValue(problem=problem, remedy="use end_at, or interval", path="max_runs")
        if isinstance(self.schedule, FixedDelaySpec) and (self.exclude_calendars or self.include_calendars):
            problem = "is not supported by fixed_delay, whose occurrences depend on how long runs take"
            path = "exclude_calendars" if self.exclude_calendars else "include_calendars"
            raise InvalidValue(problem=problem, remedy="use interval or cron", path=path)
        if self.start_at is not None and self.end_at is not None and self.end_at < self.start_at:
            problem = f"{format_timestamp(self.end_at)} is before start_at, so the job could never fire"
            raise InvalidValue(problem=problem, remedy="write a later instant", path="end_at")
        return self

    @model_validator(mode="after")
    def _root_decides(self) -> Self:
        """Refuse the policies of occurrences on a job that has none of its own."""
        if isinstance(self.schedule, AfterSpec):
            for name in (*_OF_OCCURRENCES, "workflow"):
                if name in self.model_fields_set and getattr(self, name):
                    problem = "a job with after follows the occurrences of its root"
                    raise InvalidValue(problem=problem, remedy="set it on the root of the workflow", path=name)
        return self

    @model_validator(mode="after")
    def _own_payload_fills_the_key(self) -> Self:
        """Refuse a key that runs of the schedule could not fill in; a trigger may bring a payload of its own."""
        if not isinstance(self.schedule, ManualSpec):
            if self.concurrency_key is not None:
                fill_key(self.concurrency_key.key, self.carried)
            if self.ordering_key is not None:
                fill_key(self.ordering_key.key, self.carried, "ordering key")
        return self

    @model_validator(mode="after")
    def _order_stands_alone(self) -> Self:
        """Refuse what contradicts an order: another gate of the same runs."""
        if self.ordering_key is None:
            return self
        if self.concurrency_key is not None:
            problem = "ordering_key and concurrency_key cannot be combined"
            remedy = "leave one out; runs of an ordering key already start one after another"
        elif isinstance(self.schedule, AfterSpec):
            problem = "cannot be combined with after, whose runs start when their parents end"
            remedy = "leave it out; with overlap: buffer_all on the root, occurrences run one after another"
        elif self.overlap_policy != "allow_all":
            problem = f"cannot be combined with overlap: {self.overlap_policy}"
            remedy = "use overlap: allow_all with it, or overlap: buffer_all without it"
        else:
            return self
        raise InvalidValue(problem=problem, remedy=remedy, path="ordering_key")

    @model_validator(mode="after")
    def _triggers_are_deduped(self) -> Self:
        if self.dedupe is not None and not isinstance(self.schedule, ManualSpec):
            problem = "applies to triggers, but the job has a schedule"
            remedy = "write it in job.trigger, or use schedule: manual; to keep occurrences apart, use overlap: skip"
            raise InvalidValue(problem=problem, remedy=remedy, path="dedupe")
        return self

    @model_validator(mode="after")
    def _whole_occurrences_meet(self) -> Self:
        if self.workflow is not None and self.workflow.overlap == "whole" and not self.holds_place:
            problem = "has no effect with overlap: allow_all"
            remedy = "use another overlap for the job, such as skip or buffer_one, or leave this out"
            raise InvalidValue(problem=problem, remedy=remedy, path="workflow.overlap")
        return self

    @model_validator(mode="after")
    def _heartbeats_are_possible(self) -> Self:
        if self.heartbeat is not None and not self._reports_heartbeats:
            problem = f"a target of type {self.target.type} never reports a heartbeat"
            remedy = "leave it out and use start_to_close; only handlers and async targets report heartbeats"
            raise InvalidValue(problem=problem, remedy=remedy, path="heartbeat")
        return self

    @property
    def _reports_heartbeats(self) -> bool:
        """True if a handler or an asynchronous target can report that an attempt goes on."""
        target = TARGETS[self.target.type]
        return target.requires is None or bool(target.waits and getattr(self.target, target.waits))


def policy_document(spec: JobSpec) -> dict[str, Json]:
    """Return the policies of the spec's occurrences, with all defaults.

    `job_versions` stores this form, so its names and shapes outlast releases. `tidewheel.schedules.decision` reads it.
    """
    return {
        "catch_up": spec.catch_up,
        "on_resume": spec.on_resume,
        "window_us": microseconds(spec.window),
        "jitter_us": microseconds(spec.jitter.longest),
        "jitter_percent": spec.jitter.percent,
        "exclude_calendars": list(spec.exclude_calendars),
        "include_calendars": list(spec.include_calendars),
        "on_excluded": spec.on_excluded,
    }


def schedule_document(spec: JobSpec) -> dict[str, Json]:
    """Return the spec's schedule with its bounds and all defaults, as `tidewheel.schedules` reads it."""
    return _schedule_document(spec.schedule, spec.start_at, spec.end_at)


def canonical_spec(spec: JobSpec) -> bytes:
    """Return the spec as submitted, before defaults, in the canonical form that equal specs share.

    Two spellings of one value (`60s` and `1m`, a bare string and its object) are equal. A default that is written out
    differs from one that is left out, because a later release may change it. `paused` is not part of the spec.
    """
    return canonical(_given(spec))


def canonical_parts(spec: JobSpec) -> dict[str, bytes]:
    """Return the parts of `canonical_spec` by their names, in its order."""
    return {name: canonical(value) for name, value in sorted(_given(spec).items())}


def canonical_schedule(schedule: ScheduleSpec) -> bytes:
    """Return a schedule as `canonical_spec` has it."""
    return canonical(_plain(schedule.model_dump(exclude_unset=True, exclude_none=True, by_alias=True)))


def _given(spec: JobSpec) -> dict[str, Json]:
    given = spec.model_dump(exclude_unset=True, exclude_none=True, exclude={"paused"}, by_alias=True)
    if "jitter" in given:
        given["jitter"] = spec.jitter  # the dump makes a list of it
    return {name: _plain(value) for name, value in given.items()}


def _plain(value: object) -> Json:
    if isinstance(value, Jitter):
        return format_percentage(value.percent) if value.percent else _plain(value.longest)
    if (parts := as_object(value)) is not None:
        return {name: _plain(part) for name, part in parts.items()}
    if (elements := as_list(value)) is not None:
        return [_plain(element) for element in elements]
    match value:
        case datetime():
            return format_timestamp(value)
        case timedelta():
            return f"{microseconds(value)}us"
        case _:
            # Any bytes become text, each its own.
            return value.decode("latin-1") if isinstance(value, bytes) else cast(Json, value)
