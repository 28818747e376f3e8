"""Schedules as submitted: an object with one kind in it, or a bare string.

`tidewheel.schedules` checks cron expressions and zones; these models do not.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Annotated, ClassVar, Literal, Self, TypeAlias

from pydantic import AfterValidator, BeforeValidator, model_validator

from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.peer_words import our_field
from tidewheel.jobs.strict_json import Json, as_list, as_object
from tidewheel.jobs.validation import StrictModel, not_valid, shown, validate
from tidewheel.jobs.values import Instant, Key, format_timestamp, microseconds, span

MAX_EXPRESSIONS = 20
MAX_EXPRESSION = 256
SHORTEST_INTERVAL = timedelta(seconds=1)
LONGEST_INTERVAL = timedelta(days=400)

read_interval = span(SHORTEST_INTERVAL, LONGEST_INTERVAL)
Interval = Annotated[timedelta, BeforeValidator(read_interval)]
"""The time between two occurrences, and from the end of a run to the next (`next_in`)."""
MAX_PARENTS = 1000  # of one job

_EXAMPLES = (
    'write one of {"once": ...}, {"interval": ...}, {"fixed_delay": ...}, {"cron": ...}, {"after": ...} or "manual"'
)
_BESIDE = "write it beside schedule, in job"
_BOUNDS = {"start_at": _BESIDE, "end_at": _BESIDE, "max_runs": _BESIDE, "jitter": _BESIDE}
_CRON_ALONE = "leave it out; only cron has it"
_ZONE = {"timezone": _CRON_ALONE, "dst_gap": _CRON_ALONE, "dst_overlap": _CRON_ALONE}
_EVERY = re.compile(r"@every\s+(\S.*)")
_ISO_DURATION = re.compile(r"P[\dT].*")
_ISO_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\d.*")
_SPAN = re.compile(r"(?:every\s+)?((?:[\d.]+[a-z]+)+)", re.ASCII | re.IGNORECASE)


class OnceSpec(StrictModel):
    """One occurrence."""

    elsewhere: ClassVar[Mapping[str, str]] = _BOUNDS | _ZONE

    once: Instant


class IntervalSpec(StrictModel):
    """An occurrence at every `anchor + n x interval`."""

    elsewhere: ClassVar[Mapping[str, str]] = _BOUNDS | _ZONE

    interval: Interval
    anchor: Instant | None = None


class FixedDelaySpec(StrictModel):
    """The first occurrence at once, each later one a fixed time after the end of the timer's last run.

    Within `min` and `max`, a run may set the time to the next occurrence. Without them, none may.
    """

    elsewhere: ClassVar[Mapping[str, str]] = _BOUNDS | _ZONE | {"anchor": "leave it out; only interval has it"}

    fixed_delay: Interval
    min: Interval | None = None
    max: Interval | None = None

    @model_validator(mode="after")
    def _lies_between(self) -> Self:
        if self.min is not None and self.min > self.fixed_delay:
            raise InvalidValue(problem="is longer than fixed_delay", remedy="write a shorter one", path="min")
        if self.max is not None and self.max < self.fixed_delay:
            raise InvalidValue(problem="is shorter than fixed_delay", remedy="write a longer one", path="max")
        return self


def _expressions(value: object) -> tuple[str, ...]:
    expressions = [value] if isinstance(value, str) else as_list(value)
    if not expressions:
        remedy = "write a cron expression such as 0 8 * * MON-FRI, or a list of them"
        if expressions is None:
            raise not_valid(value, remedy)
        raise InvalidValue(problem="is empty", remedy=remedy)
    if len(expressions) > MAX_EXPRESSIONS:
        raise InvalidValue(
            problem=f"there are {len(expressions)} expressions", remedy=f"write at most {MAX_EXPRESSIONS}"
        )
    return tuple(_expression(one) for one in expressions)


def _expression(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise not_valid(value, "write a cron expression such as 0 8 * * MON-FRI")
    if len(value) > MAX_EXPRESSION or not value.isprintable():
        raise not_valid(value, f"write at most {MAX_EXPRESSION} printable characters")
    return value.strip()


def _zone(value: object) -> str:
    if not isinstance(value, str) or not value or len(value) > 64 or not value.isprintable():
        raise not_valid(value, "write an IANA zone such as Europe/Berlin")
    return value


class CronSpec(StrictModel):
    """An occurrence at every match of one of its cron expressions, on the wall clock of a zone."""

    elsewhere: ClassVar[Mapping[str, str]] = _BOUNDS

    cron: Annotated[tuple[str, ...], BeforeValidator(_expressions)]
    timezone: Annotated[str, BeforeValidator(_zone)] = "UTC"
    dst_gap: Literal["shift_forward", "skip"] = "shift_forward"
    dst_overlap: Literal["first", "second", "both"] = "first"


class ManualSpec(StrictModel):
    """No occurrence: the job runs by triggers only."""

    elsewhere: ClassVar[Mapping[str, str]] = _BOUNDS | _ZONE

    manual: Literal[True] = True


class ParentSpec(StrictModel):
    """A parent of a job in a workflow.

    Attributes:
        job: The parent's key, in the same tenant.
        when: The end of the parent's run that meets the condition.
    """

    job: Key
    when: Literal["success", "failure", "always"] = "success"


def read_parents(value: object, field: str, remedy: str, between: str) -> tuple[object, ...]:
    """Return the parents that a name or a list describes; `field` is where an object has its name."""
    parents = [value] if isinstance(value, str) else as_list(value)
    if parents is None:
        raise not_valid(value, remedy)
    if len(parents) > MAX_PARENTS:
        remedy = f"write at most {MAX_PARENTS}, or put {between} in between"
        raise InvalidValue(problem=f"there are {len(parents)} parents", remedy=remedy)
    return tuple({field: one} if isinstance(one, str) else one for one in parents)


def ensure_distinct(names: Sequence[str], field: str) -> None:
    """Refuse parents of which two have one name."""
    seen: set[str] = set()
    for place, name in enumerate(names):
        if name in seen:
            problem = f"{shown(name)} is named twice"
            raise InvalidValue(problem=problem, remedy="name each parent once", path=f"{place}.{field}")
        seen.add(name)


def _parents(value: object) -> tuple[object, ...]:
    remedy = 'write a list of keys, or of {"job": ..., "when": ...}'
    if not (parents := read_parents(value, "job", remedy, "a job")):
        raise InvalidValue(problem="is empty", remedy=remedy)
    return parents


def _distinct(parents: tuple[ParentSpec, ...]) -> tuple[ParentSpec, ...]:
    ensure_distinct([parent.job for parent in parents], "job")
    return parents


class AfterSpec(StrictModel):
    """One run for each occurrence of its workflow's root, after the runs of its parents have ended."""

    elsewhere: ClassVar[Mapping[str, str]] = _BOUNDS | _ZONE

    after: Annotated[tuple[ParentSpec, ...], BeforeValidator(_parents), AfterValidator(_distinct)]


ScheduleSpec: TypeAlias = OnceSpec | IntervalSpec | FixedDelaySpec | CronSpec | ManualSpec | AfterSpec

_KINDS: dict[str, type[ScheduleSpec]] = {
    "once": OnceSpec,
    "interval": IntervalSpec,
    "fixed_delay": FixedDelaySpec,
    "cron": CronSpec,
    "manual": ManualSpec,
    "after": AfterSpec,
}


def read_schedule(value: object) -> ScheduleSpec:
    """Return the schedule that an object or a bare string describes."""
    if isinstance(value, ScheduleSpec):
        return value
    if isinstance(value, str):
        return read_schedule(_from_text(value))
    if (given := as_object(value)) is None:
        raise not_valid(value, _EXAMPLES)
    kinds = [kind for kind in _KINDS if kind in given]
    if len(kinds) > 1:
        raise InvalidValue(
            problem=f"has {' and '.join(kinds)}, but a schedule has one kind", remedy="split it into several jobs"
        )
    if not kinds:
        ours = next(filter(None, (our_field(name, _KINDS) for name in given)), _EXAMPLES)
        raise InvalidValue(problem=f"has {_names(given)}, which is not a kind of schedule", remedy=ours)
    return validate(_KINDS[kinds[0]], given)


ScheduleField: TypeAlias = Annotated[ScheduleSpec, BeforeValidator(read_schedule)]


def _from_text(text: str) -> dict[str, object]:
    bare = text.strip()
    if bare == "manual":
        return {"manual": True}
    if every := _EVERY.fullmatch(bare):
        return {"interval": every.group(1)}
    if _ISO_DURATION.fullmatch(bare):
        return {"interval": bare}
    if _ISO_TIMESTAMP.fullmatch(bare):
        return {"once": bare}
    if span := _SPAN.fullmatch(bare[:64]):
        raise InvalidValue(problem=f"{shown(text)} is not a schedule", remedy=f'write "@every {span[1]}"')
    return {"cron": [bare]}


def schedule_document(schedule: ScheduleSpec, start_at: datetime | None, end_at: datetime | None) -> dict[str, Json]:
    """Return a schedule with its bounds and all defaults, as `tidewheel.schedules` reads it.

    `job_versions` stores this form, so its names and shapes outlast releases.
    """
    bounds: dict[str, Json] = {"start_at": _text(start_at), "end_at": _text(end_at)}
    match schedule:
        case OnceSpec():
            return {"kind": "once", "at": format_timestamp(schedule.once)}
        case IntervalSpec():
            every = microseconds(schedule.interval)
            return {"kind": "interval", "interval_us": every, "anchor": _text(schedule.anchor), **bounds}
        case FixedDelaySpec():
            delays = {"interval_us": schedule.fixed_delay, "min_us": schedule.min, "max_us": schedule.max}
            given = {name: microseconds(each) for name, each in delays.items() if each is not None}
            return {"kind": "fixed_delay", **given, **bounds}
        case CronSpec():
            return {
                "kind": "cron",
                "expressions": list(schedule.cron),
                "timezone": schedule.timezone,
                "dst_gap": schedule.dst_gap,
                "dst_overlap": schedule.dst_overlap,
                **bounds,
            }
        case ManualSpec():
            return {"kind": "manual"}
        case AfterSpec():
            return {"kind": "after", "parents": [{"job": one.job, "when": one.when} for one in schedule.after]}


def _text(moment: datetime | None) -> str | None:
    return None if moment is None else format_timestamp(moment)


def _names(given: Mapping[str, object]) -> str:
    return ", ".join(shown(name) for name in list(given)[:5]) or "nothing"
