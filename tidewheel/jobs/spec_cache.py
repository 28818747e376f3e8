"""Cache of validated specs, and the reader of stored ones.

Thousands of jobs share a few specs and schedules. The models validate each spec and each schedule the first time; the
results are cached by the bytes of the input. A hit leaves only the key and the payload to check. A miss is None: the
models then read the whole document, and report its errors.

`job_versions.spec` is the job as submitted, before defaults, in the canonical form of equal specs. Requests are read by
other rules, which change with releases: what is stored stays readable, however long the duration or strict the rule.
"""

import marshal
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from functools import lru_cache
from hashlib import sha256
from json.encoder import encode_basestring
from typing import NamedTuple, TypeVar

from pydantic import BaseModel

from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.keys import JobDedupe, is_template, parse_rate, rate_words
from tidewheel.jobs.retry import RetryPolicy
from tidewheel.jobs.schedule import (
    AfterSpec,
    CronSpec,
    FixedDelaySpec,
    IntervalSpec,
    ManualSpec,
    ScheduleSpec,
    read_schedule,
    schedule_document,
)
from tidewheel.jobs.spec import JobSpec, WorkflowSpec, canonical_parts, canonical_schedule
from tidewheel.jobs.strict_json import Json, as_list, as_object
from tidewheel.jobs.targets import TARGETS
from tidewheel.jobs.validation import validate
from tidewheel.jobs.values import format_duration, format_percentage, is_plain_key, json_payload, microseconds

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")
_MAX_BYTES, _MAX_SCHEDULE_BYTES = 4096, 512  # of a cached input: many jobs do not share a longer one
_SPECS, _SCHEDULES = 2048, 16_384  # bounds on memory, at about 15 KiB and 2 KiB each

# Fields that are validated together with the schedule, and bytes, which the models convert.
_READ_WHOLE = frozenset({
    "start_at", "end_at", "max_runs", "exclude_calendars", "include_calendars", "ordering_key", "dedupe",
    "payload_base64",
})  # fmt: skip
_GONE = frozenset({"history_limit"})  # builds before 0.2.0 have stored it
_NO_REFERENCES = 2  # the newest version of marshal in which equal values have equal bytes
_MANUAL = ManualSpec()
_MICROSECONDS = re.compile(r"(\d{1,18})us", re.ASCII)  # a longer one is no time span of Python


class SpecTemplate:
    """A validated spec without key, payload and schedule; `spec` has a manual schedule."""

    __slots__ = ("_after", "_before", "_between", "_given", "_last", "spec")

    def __init__(self, spec: JobSpec) -> None:
        self.spec = spec
        given = spec.model_fields_set
        self._given = {
            (False, False): given,
            (True, False): {*given, "key"},
            (False, True): {*given, "payload"},
            (True, True): {*given, "key", "payload"},
        }
        parts = canonical_parts(spec)
        self._before = _between(parts, "", "key")
        self._between = _between(parts, "key", "payload")
        self._after = _between(parts, "payload", "schedule")
        self._last = _between(parts, "schedule", "~")[:-1]  # never empty: the target is there

    def job(self, schedule: "ScheduleTemplate", key: str | None, payload: bytes | None) -> JobSpec:
        """Return a job of this template, equal to what the model returns."""
        # Assigned in place: the order of the fields is the model's.
        own: dict[str, object] = {"key": key, "schedule": schedule.schedule, "payload": payload}
        fields = self.spec.__dict__ | own
        return construct(JobSpec, fields, self._given[key is not None, payload is not None])

    def shown(self, schedule: "ScheduleTemplate", key: str | None) -> bytes:
        """Return the `canonical_spec` of such a job without its payload."""
        named = b"" if key is None else b'"key":%b,' % encode_basestring(key).encode()
        return b'{%b%b%b%b"schedule":%b,%b}' % (
            self._before, named, self._between, self._after, schedule.canonical, self._last
        )  # fmt: skip

    def spec_hash(self, schedule: "ScheduleTemplate", key: str | None, payload: bytes | None) -> bytes:
        """Return the hash of the `canonical_spec` of such a job."""
        named = b"" if key is None else b'"key":%b,' % encode_basestring(key).encode()
        carried = b"" if payload is None else b'"payload":%b,' % encode_basestring(payload.decode("latin-1")).encode()
        return sha256(
            b'{%b%b%b%b%b"schedule":%b,%b}'
            % (self._before, named, self._between, carried, self._after, schedule.canonical, self._last)
        ).digest()


class ScheduleTemplate:
    """A validated schedule without bounds.

    Attributes:
        document: As `tidewheel.schedules` reads it.
        canonical: Its part of `canonical_spec`.
        recurring: True if it can have more than one occurrence.
    """

    __slots__ = ("canonical", "chains", "document", "interval_us", "kind", "recurring", "schedule")

    def __init__(self, schedule: ScheduleSpec) -> None:
        self.schedule = schedule
        self.document: Mapping[str, Json] = schedule_document(schedule, None, None)
        self.canonical = canonical_schedule(schedule)
        self.kind = str(self.document["kind"])
        every = self.document.get("interval_us")
        self.interval_us = every if isinstance(every, int) else None
        self.chains = isinstance(schedule, FixedDelaySpec)
        self.recurring = isinstance(schedule, IntervalSpec | FixedDelaySpec | CronSpec)


@lru_cache(maxsize=_SCHEDULES)
def schedule_in_zone(template: ScheduleTemplate, zone: str) -> ScheduleTemplate:
    """Return a cron schedule in a zone."""
    return ScheduleTemplate(template.schedule.model_copy(update={"timezone": zone}))


class CachedSpec(NamedTuple):
    """The templates of a job that was read from the cache."""

    template: SpecTemplate
    schedule: ScheduleTemplate


def read_job(document: Mapping[str, object]) -> tuple[JobSpec, CachedSpec] | None:
    """Return the job that a document describes, from the cache; None if the model must read it.

    The job equals what the model returns.
    """
    key = document.get("key")
    if not is_plain_key(key) and "key" in document:
        return None
    rest = dict(document)
    rest.pop("key", None)
    rest.pop("payload", None)
    try:
        schedule = _cached(rest.pop("schedule", None), _read_schedule, _MAX_SCHEDULE_BYTES)
        template = _cached(rest, _read_template, _MAX_BYTES)
    except ValueError:  # a value that marshal does not support, such as an UnreadableValue
        return None
    if template is None or schedule is None:
        return None
    assert key is None or isinstance(key, str)  # noqa: S101 - a plain key
    payload = json_payload(document["payload"]) if "payload" in document else None
    return template.job(schedule, key, payload), CachedSpec(template, schedule)


def construct(model: type[M], fields: dict[str, object], given: set[str]) -> M:
    """Return a model with these fields; `given` names those that the document contains.

    It does not validate, and saves the 2 µs in which `model_construct` checks every field.
    """
    one = _new(model)
    _set(one, "__dict__", fields)
    _set(one, "__pydantic_fields_set__", given)
    _set(one, "__pydantic_extra__", None)
    _set(one, "__pydantic_private__", None)
    return one


def _cached(value: object, read: Callable[[bytes], T | None], most_bytes: int) -> T | None:
    data = marshal.dumps(value, _NO_REFERENCES)  # type: ignore[arg-type]  # it raises ValueError where it cannot
    return read(data) if len(data) <= most_bytes else None


@lru_cache(maxsize=_SPECS)
def _read_template(data: bytes) -> SpecTemplate | None:
    document = marshal.loads(data)  # noqa: S302 - written above
    if not _READ_WHOLE.isdisjoint(document):
        return None
    try:
        spec = validate(JobSpec, {**document, "schedule": _MANUAL})
    except ValueError:
        return None
    # A key that is filled in from the payload differs between jobs of one template.
    return None if spec.concurrency_key is not None and is_template(spec.concurrency_key.key) else SpecTemplate(spec)


@lru_cache(maxsize=_SCHEDULES)
def _read_schedule(data: bytes) -> ScheduleTemplate | None:
    try:
        schedule = read_schedule(marshal.loads(data))  # noqa: S302 - written above
    except ValueError:
        return None
    # A job with parents is validated together with its schedule, and has few siblings with the same one.
    return None if isinstance(schedule, AfterSpec) else ScheduleTemplate(schedule)


def _between(parts: Mapping[str, bytes], low: str, high: str) -> bytes:
    """Return the parts whose names lie between `low` and `high`, each followed by a comma."""
    return b"".join([b'"%b":%b,' % (name.encode(), value) for name, value in parts.items() if low < name < high])


_new = object.__new__
_set = object.__setattr__


def submitted_form(spec: object) -> dict[str, object]:
    """Return a stored spec as a job can be submitted again, without its payload.

    It becomes the same version: only durations and percentages are written in a readable form. Fields that jobs no
    longer have are left out.

    >>> submitted_form({"window": "2592000000000us", "retry": {"jitter": 0.1}, "history_limit": 9})
    {'window': '30d', 'retry': {'jitter': '10%'}}
    """
    stored = as_object(spec) or {}
    return _readable({name: value for name, value in stored.items() if name not in _GONE}, _JOB)


Reading = Mapping[str, "Callable[[object], object]"]


def _readable(stored: Mapping[str, object], how: Reading) -> dict[str, object]:
    return {name: how[name](value) if name in how else value for name, value in stored.items()}


def _within(how: Reading) -> Callable[[object], object]:
    def read(value: object) -> object:
        parts = as_object(value)
        return value if parts is None else _readable(parts, how)

    return read


def _duration(value: object) -> object:
    """Return a duration in a readable form; another value, such as a percentage, unchanged."""
    if isinstance(value, str) and (found := _MICROSECONDS.fullmatch(value)):
        return format_duration(timedelta(microseconds=int(found[1])))
    if (several := as_list(value)) is not None:
        return [_duration(one) for one in several]
    return value


def _fraction(value: object) -> object:
    """Return a fraction as the percentage that was submitted."""
    return format_percentage(value * 100) if isinstance(value, int | float) else value


def _jitter(value: object) -> object:
    """Return a duration or a percentage, even if both are stored as a pair."""
    match as_list(value):
        case [span, percent]:
            return format_percentage(percent) if isinstance(percent, int | float) and percent else _duration(span)
        case _:
            return _duration(value)


def _rate(value: object) -> object:
    """Return a rate as submitted; as the stored text where no short one is the same rate."""
    if not isinstance(value, str) or not (found := _MICROSECONDS.fullmatch(value)):
        return value
    every_us = int(found[1])
    with suppress(InvalidValue):  # outside of the bounds of this release
        words = rate_words(max(every_us, 1))
        return words if microseconds(parse_rate(words)) == every_us else value
    return value


def _durations(*models: type[BaseModel]) -> Reading:
    fields = (pair for model in models for pair in model.model_fields.items())
    return {name: _duration for name, field in fields if "timedelta" in str(field.annotation)}


_JOB: Reading = {
    **_durations(JobSpec),
    "schedule": _within(_durations(IntervalSpec, FixedDelaySpec)),
    "target": _within(_durations(*(target.model for target in TARGETS.values()))),
    "retry": _within({**_durations(RetryPolicy), "jitter": _fraction}),
    "jitter": _jitter,
    "concurrency_key": _within({"rate": _rate}),
    "dedupe": _within(_durations(JobDedupe)),
    "workflow": _within(_durations(WorkflowSpec)),
}
