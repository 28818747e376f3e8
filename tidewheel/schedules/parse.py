"""Parse submitted and stored schedules, and refuse those that can never fire.

A document is a job's `schedule` field once its defaults are filled in:

- ``{"kind": "once", "at": …}``
- ``{"kind": "interval", "interval_us": …, "anchor": …, "anchor_fires": …, "start_at": …, "end_at": …}``
- ``{"kind": "cron", "expressions": […], "timezone": …, "dst_gap": …, "dst_overlap": …, "start_at": …, "end_at": …}``
- ``{"kind": "fixed_delay", "interval_us": …, "min_us": …, "max_us": …, "start_at": …, "end_at": …}``
- ``{"kind": "manual"}``
- ``{"kind": "after", "parents": […]}``

Instants are RFC 3339 text or aware datetimes. Paths of refusals are relative to the schedule.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import lru_cache
from typing import cast
from uuid import UUID

from tidewheel.errors import ScheduleRefused
from tidewheel.schedules.cron_parser import uses_hash
from tidewheel.schedules.cron_schedule import CronSchedule, DstGap, DstOverlap, ZonedCron, choice, zoned_cron
from tidewheel.schedules.schedule import (
    Bounds,
    FixedDelay,
    Interval,
    Manual,
    Once,
    Schedule,
    read_instant,
    whole_second,
)
from tidewheel.schedules.zones import FOREVER, zone
from tidewheel.weighed_cache import WeighedCache

MIN_INTERVAL_US = 1_000_000
"""One second: a shorter interval is a loop in a handler, not a schedule."""

MAX_INTERVAL_US = 100 * 366 * 86_400_000_000
"""A hundred years: a longer interval is a mistake in the unit."""

MAX_EXPRESSIONS = 64
"""The most expressions of one schedule; each search evaluates all of them."""

_BOUNDS = ("start_at", "end_at")

# A stored schedule with one expression and no bounds has three places where one text follows another. A parsed
# expression has about 3 KiB, so 64 of them must not count as one entry.
_SHORT, _FEW, _EXPRESSION_BYTES = 512, 3, 3 << 10


def parse_schedule(document: Mapping[str, object], *, job_id: UUID | None = None) -> Schedule:
    """Parse a schedule document.

    Args:
        job_id: The job by whose id ``H`` in a cron expression is spread. None refuses ``H``.

    >>> every = parse_schedule({"kind": "interval", "interval_us": 60_000_000, "anchor": "2026-01-01T00:00:00Z"})
    >>> str(every.after(datetime.fromisoformat("2026-01-01T00:00:59Z")))
    '2026-01-01 00:01:00+00:00'
    """
    match document.get("kind"):
        case "once":
            return Once(read_instant(document.get("at"), "at"))
        case "interval":
            return _interval(document)
        case "cron":
            return _cron(document, job_id)
        case "fixed_delay":
            least, most = (
                None if document.get(name) is None else _every(document, name) for name in ("min_us", "max_us")
            )
            return FixedDelay(_every(document), _bounds(document), least, most)
        case "manual":
            return Manual()
        case "after":
            return Manual(follows=True)
        case kind:
            problem = f"{str(kind)[:64]!r} is not a kind of schedule"
            raise ScheduleRefused(problem, "write one of once, interval, fixed_delay, cron, after, manual", "kind")


def ensure_can_fire(schedule: Schedule, now: datetime) -> None:
    """Refuse a schedule that can never fire after `now`.

    A `once` whose time has passed is accepted, since `catch_up` decides about it. So is `manual`.
    """
    match schedule:
        case CronSchedule(entries=entries, bounds=bounds):
            _refuse_dead(entries, whole_second(now))
        case Interval(bounds=bounds):
            pass
        case FixedDelay(bounds=bounds):
            if schedule.due(now, None) is not None:
                return
        case _:
            return
    if schedule.after(now) is None:
        _refuse_bounds(bounds, now)


def _refuse_dead(entries: tuple[ZonedCron, ...], second: int) -> None:
    for number, entry in enumerate(entries):
        if entry.following(second) == FOREVER:
            problem = f"no date matches `{entry.fields.expression}`, so it can never fire"
            path = "cron" if len(entries) == 1 else f"cron.{number}"
            raise ScheduleRefused(
                problem, "correct its day and month fields: 30 February, for example, does not exist", path
            )


def _refuse_bounds(bounds: Bounds, now: datetime) -> None:
    if bounds.end_at is not None and bounds.end_at <= now:
        problem = f"end_at {bounds.end_at.isoformat()} has passed, so the job can never fire"
        raise ScheduleRefused(problem, "write a later end_at, or omit it", "end_at")
    problem = "no occurrence is between start_at and end_at, so the job can never fire"
    path = "start_at" if bounds.end_at is None else "end_at"
    raise ScheduleRefused(problem, "widen the bounds to include at least one occurrence", path)


def _every(document: Mapping[str, object], name: str = "interval_us") -> int:
    every, path = document.get(name), str(document.get("kind"))
    if not isinstance(every, int) or isinstance(every, bool):
        problem = f"{str(every)[:64]!r} is not a number of microseconds"
        raise ScheduleRefused(problem, "write a duration such as 90s", path)
    if not MIN_INTERVAL_US <= every <= MAX_INTERVAL_US:
        problem = f"an interval of {every / 1e6:g} s is outside 1 s to 100 years"
        raise ScheduleRefused(problem, "write 1s" if every < MIN_INTERVAL_US else "write a shorter one", path)
    return every


def _interval(document: Mapping[str, object]) -> Interval:
    every = _every(document)
    return Interval(
        every, read_instant(document.get("anchor"), "anchor"), document.get("anchor_fires") is True, _bounds(document)
    )


def _cron(document: Mapping[str, object], job_id: UUID | None) -> CronSchedule:
    expressions = _expressions(document.get("expressions"))
    timezone = _zone_name(document.get("timezone", "UTC"))
    gap = choice(document.get("dst_gap", DstGap.SHIFT_FORWARD), DstGap, "dst_gap")
    overlap = choice(document.get("dst_overlap", DstOverlap.FIRST), DstOverlap, "dst_overlap")
    hash_key = job_id.bytes if job_id is not None else None
    entries = [
        _entry(expressions, number, lambda text: zoned_cron(text, timezone, gap, overlap, hash_key))
        for number in range(len(expressions))
    ]
    hashed = any(entry.fields.hashed for entry in entries)
    return CronSchedule(tuple(dict.fromkeys(entries)), _bounds(document), hashed)


def _entry(expressions: list[str], number: int, read: Callable[[str], ZonedCron]) -> ZonedCron:
    """Read one of the expressions. A refusal names it by number if there are several."""
    try:
        return read(expressions[number])
    except ScheduleRefused as refused:
        if len(expressions) == 1:
            raise
        error = refused.errors[0]
        raise ScheduleRefused(error.problem, error.remedy, f"{error.path}.{number}") from None


def _expressions(given: object) -> list[str]:
    several = list(cast("Iterable[object]", given)) if isinstance(given, (list, tuple)) else [given]
    read = [expression for expression in several if isinstance(expression, str)]
    if not read or len(read) < len(several):
        problem = "a cron expression is missing or is not text"
        raise ScheduleRefused(problem, "write one such as `0 3 * * *`", "cron")
    if len(read) > MAX_EXPRESSIONS:
        problem = f"{len(read)} expressions exceed the limit of {MAX_EXPRESSIONS}"
        raise ScheduleRefused(problem, "split them into several jobs", "cron")
    return read


def _zone_name(given: object) -> str:
    if not isinstance(given, str):
        problem = f"{str(given)[:64]!r} is not a time zone"
        raise ScheduleRefused(problem, "write an IANA name such as UTC", "timezone")
    return zone(given).name


def _bounds(document: Mapping[str, object]) -> Bounds:
    start, end = (None if document.get(name) is None else read_instant(document[name], name) for name in _BOUNDS)
    if start is not None and end is not None and end < start:
        problem = f"end_at {end.isoformat()} is before start_at {start.isoformat()}"
        raise ScheduleRefused(problem, "write a later end_at", "end_at")
    return Bounds(start, end)


def schedule_from_text(text: str, job_id: UUID) -> Schedule:
    """Return the schedule of a canonical JSON document: the same object for the same text.

    A text with an ``H`` in an expression is parsed per job, since its occurrences depend on the job's id.
    """
    found = None
    if len(text) <= _SHORT:
        found = _of_job(text, job_id) if '"expressions"' in text and _hashed(text) else _shared(text)
    return _LARGE.of((text, job_id if "H" in text else None)) if found is None else found


def read_schedule(text: str, job_id: UUID | None = None) -> Schedule:
    """Parse the schedule of a JSON document, without the cache."""
    return parse_schedule(_document(text), job_id=job_id)


@lru_cache(maxsize=16_384)  # distinct schedules in use on one scheduler: a few thousand, an interval's anchors included
def _shared(text: str) -> Schedule | None:
    return None if _texts(text) > _FEW else read_schedule(text)


@lru_cache(maxsize=16_384)
def _of_job(text: str, job_id: UUID) -> Schedule | None:
    return None if _texts(text) > _FEW else read_schedule(text, job_id)


@lru_cache(maxsize=16_384)
def _hashed(text: str) -> bool:
    expressions = _document(text).get("expressions")
    return isinstance(expressions, list) and any(uses_hash(str(each)) for each in cast("list[object]", expressions))


def _texts(text: str) -> int:
    return text.count('","')


def _weigh(key: tuple[str, UUID | None]) -> int:
    return len(key[0]) + _EXPRESSION_BYTES * _texts(key[0])


_LARGE = WeighedCache[tuple[str, UUID | None], Schedule](lambda key: read_schedule(*key), _weigh, 16 << 20)


def _document(text: str) -> dict[str, object]:
    try:
        document: object = json.loads(text)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        problem = "the stored schedule is not a JSON object"
        raise ScheduleRefused(problem, "submit the job again", "")
    return cast("dict[str, object]", document)
