"""What jobs have in common, read once: all of a spec but its key, its payload and its schedule.

Jobs come by the thousand in a few patterns and on a few schedules. The models read each of those the first time, and
what they made of it is remembered by its bytes; what is left to do for one job is to look at its key and its payload.
What is out of the ordinary, or refused, is None here: it is for the models to read whole, and to say what is wrong.
"""

import marshal
from collections.abc import Callable, Mapping
from functools import lru_cache
from hashlib import sha256
from json.encoder import encode_basestring
from typing import NamedTuple, TypeVar

from pydantic import BaseModel

from tidewheel.jobs.schedule import (
    CronSpec,
    FixedDelaySpec,
    IntervalSpec,
    ManualSpec,
    ScheduleSpec,
    read_schedule,
    schedule_document,
)
from tidewheel.jobs.spec import JobSpec, canonical_parts, canonical_schedule
from tidewheel.jobs.strict_json import Json
from tidewheel.jobs.validation import validate
from tidewheel.jobs.values import is_plain_key, json_payload

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")

_MOST_BYTES = 4096  # of what is remembered: a longer one is no pattern that many jobs have
_PATTERNS, _TIMINGS = 2048, 16_384  # bounds on memory, at about 15 KiB and 2 KiB each

# What is read together with the schedule, and bytes, of which the models make others.
_READ_WHOLE = frozenset({"start_at", "end_at", "max_runs", "exclude_calendars", "include_calendars", "payload_base64"})
_NO_REFERENCES = 2  # the newest version of marshal in which equal values have equal bytes
_MANUAL = ManualSpec()


class SpecTemplate:
    """All of a job but its key, its payload and its schedule.

    Attributes:
        spec: A job of this pattern, without key and payload, and manual.
    """

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

    def job(self, timing: "ScheduleTemplate", key: str | None, payload: bytes | None) -> JobSpec:
        """A job of this pattern, as the model reads it."""
        # Assigned in place: the order of the fields is the model's.
        own: dict[str, object] = {"key": key, "schedule": timing.schedule, "payload": payload}
        fields = self.spec.__dict__ | own
        return made(JobSpec, fields, self._given[key is not None, payload is not None])

    def shown(self, timing: "ScheduleTemplate", key: str | None) -> bytes:
        """What `canonical_spec` returns of such a job without its payload."""
        named = b"" if key is None else b'"key":%b,' % encode_basestring(key).encode()
        return b'{%b%b%b%b"schedule":%b,%b}' % (
            self._before, named, self._between, self._after, timing.canonical, self._last
        )  # fmt: skip

    def spec_hash(self, timing: "ScheduleTemplate", key: str | None, payload: bytes | None) -> bytes:
        """The hash of what `canonical_spec` returns of such a job."""
        named = b"" if key is None else b'"key":%b,' % encode_basestring(key).encode()
        carried = b"" if payload is None else b'"payload":%b,' % encode_basestring(payload.decode("latin-1")).encode()
        return sha256(
            b'{%b%b%b%b%b"schedule":%b,%b}'
            % (self._before, named, self._between, carried, self._after, timing.canonical, self._last)
        ).digest()


class ScheduleTemplate:
    """A schedule without bounds.

    Attributes:
        schedule: As submitted.
        document: What the recurrence library reads.
        canonical: As a part of `canonical_spec`.
        kind: Its kind.
        interval_us: Its interval or fixed delay.
        chains: Whether it is a fixed delay.
        recurring: Whether it has more than one occurrence.
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


class CachedSpec(NamedTuple):
    """What is known of a job that was read by its pattern."""

    pattern: SpecTemplate
    timing: ScheduleTemplate


def read_job(document: Mapping[str, object]) -> tuple[JobSpec, CachedSpec] | None:
    """Return the job that a document describes, exactly as the model reads it; None where that has to be asked.

    Raises:
        Misfit: Its payload does not fit.
    """
    key = document.get("key")
    if not is_plain_key(key) and "key" in document:
        return None
    rest = dict(document)
    rest.pop("key", None)
    rest.pop("payload", None)
    try:
        timing = _remembered(rest.pop("schedule", None), _timing)
        pattern = _remembered(rest, _pattern)
    except ValueError:  # what marshal does not know, such as a Misread
        return None
    if pattern is None or timing is None:
        return None
    assert key is None or isinstance(key, str)  # noqa: S101 - a plain key
    payload = json_payload(document["payload"]) if "payload" in document else None
    return pattern.job(timing, key, payload), CachedSpec(pattern, timing)


def made(model: type[M], fields: dict[str, object], given: set[str]) -> M:
    """Return a model with these fields, of which those that are given were written out.

    Without validation, and without the two microseconds that `model_construct` looks at every field for.
    """
    one = _new(model)
    _set(one, "__dict__", fields)
    _set(one, "__pydantic_fields_set__", given)
    _set(one, "__pydantic_extra__", None)
    _set(one, "__pydantic_private__", None)
    return one


def _remembered(value: object, read: Callable[[bytes], T | None]) -> T | None:
    data = marshal.dumps(value, _NO_REFERENCES)  # type: ignore[arg-type]  # it says so itself where it cannot
    return read(data) if len(data) <= _MOST_BYTES else None


@lru_cache(maxsize=_PATTERNS)
def _pattern(data: bytes) -> SpecTemplate | None:
    document = marshal.loads(data)  # noqa: S302 - written above
    if not _READ_WHOLE.isdisjoint(document):
        return None
    try:
        return SpecTemplate(validate(JobSpec, {**document, "schedule": _MANUAL}))
    except ValueError:
        return None


@lru_cache(maxsize=_TIMINGS)
def _timing(data: bytes) -> ScheduleTemplate | None:
    try:
        return ScheduleTemplate(read_schedule(marshal.loads(data)))  # noqa: S302 - written above
    except ValueError:
        return None


def _between(parts: Mapping[str, bytes], low: str, high: str) -> bytes:
    """The parts whose names lie between two others, each with a comma behind it."""
    return b"".join([b'"%b":%b,' % (name.encode(), value) for name, value in parts.items() if low < name < high])


_new = object.__new__
_set = object.__setattr__
