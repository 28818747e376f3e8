"""Compute due occurrences from the requests alone, without the scheduler's code.

Cron is evaluated by brute force: every second of the window is matched against the zone's wall clock. The module knows
the forms that the file uses (`*`, `*/n`, `a-b/n`, lists, MON-FRI) and rejects any other form.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from tidewheel.jobs.strict_json import as_object

_SECOND = timedelta(seconds=1)
_DAYS = {"SUN": "0", "MON": "1", "TUE": "2", "WED": "3", "THU": "4", "FRI": "5", "SAT": "6"}
_HIGHEST = (59, 59, 23, 31, 12, 7)  # of second, minute, hour, day of month, month, day of week


@dataclass(frozen=True, slots=True, order=True)
class Occurrence:
    """One occurrence, which must become exactly one run.

    Args:
        key: The job's key.
        cause: `timer` or `trigger`.
        at: The nominal instant, in UTC.
    """

    key: str
    cause: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Window:
    """The time in which a job was active.

    Args:
        accepted_at: The start, exclusive.
        stopped_at: The instant of the pause or deletion, inclusive.
    """

    accepted_at: datetime
    stopped_at: datetime


def due_instants(job: Mapping[str, object], window: Window) -> list[datetime]:
    """Return the instants of a job's schedule within the window, in order.

    Args:
        job: The submitted job.
        window: The time in which it was active.

    Raises:
        ValueError: The schedule is of a form that this module does not know.
    """
    found = _instants(job.get("schedule"), window)
    first, last = (_bound(job.get(name)) for name in ("start_at", "end_at"))
    return [at for at in found if (first is None or at >= first) and (last is None or at <= last)]


def _instants(schedule: object, window: Window) -> Iterator[datetime]:
    document = {"manual": True} if schedule == "manual" else as_object(schedule) or {}
    match document:
        case {"manual": True}:
            return iter(())
        case {"once": str(at)}:
            return iter([datetime.fromisoformat(at)])
        case {"interval": str(every)}:
            return _every(_seconds(every), _bound(document.get("anchor")), window)
        case {"cron": str(expression), "timezone": str(zone)}:
            return _cron(expression, ZoneInfo(zone), window)
        case _:
            message = f"the demo does not know the schedule {schedule!r}"
            raise ValueError(message)


def _every(every: timedelta, anchor: datetime | None, window: Window) -> Iterator[datetime]:
    """Yield interval instants. Only a given anchor is an occurrence itself, not the acceptance."""
    at = window.accepted_at + every if anchor is None else anchor
    while at <= window.stopped_at:
        if at > window.accepted_at:
            yield at
        at += every


def _cron(expression: str, zone: ZoneInfo, window: Window) -> Iterator[datetime]:
    """Yield every whole second of the window that matches.

    >>> at = datetime(2026, 11, 20, 8, 29, 50, tzinfo=UTC)
    >>> [str(one.time()) for one in _cron("*/5 * * * * *", ZoneInfo("UTC"), Window(at, at + 11 * _SECOND))]
    ['08:29:55', '08:30:00']
    >>> [str(one.time()) for one in _cron("0 14 * * MON-FRI", ZoneInfo("Asia/Kolkata"), Window(at, at + 60 * _SECOND))]
    ['08:30:00']
    """
    fields = _fields(expression)
    at = window.accepted_at.astimezone(UTC).replace(microsecond=0) + _SECOND
    while at <= window.stopped_at:
        local = at.astimezone(zone)
        clock = (local.second, local.minute, local.hour, local.day, local.month, local.isoweekday() % 7)
        if all(value in allowed for value, allowed in zip(clock, fields, strict=True)):
            yield at
        at += _SECOND


def _fields(expression: str) -> list[set[int]]:
    texts = expression.split()
    if len(texts) == 5:
        texts = ["0", *texts]
    if len(texts) != 6 or (texts[3] != "*" and texts[5] != "*"):
        message = f"the demo does not know the cron expression {expression!r}"
        raise ValueError(message)
    return [_values(text, highest) for text, highest in zip(texts, _HIGHEST, strict=True)]


def _values(text: str, highest: int) -> set[int]:
    values: set[int] = set()
    for part in text.split(","):
        span, _, step = part.partition("/")
        first, _, last = ("0", "-", str(highest)) if span == "*" else span.partition("-")
        low, high = (int(_DAYS.get(name, name)) for name in (first, last or first))
        values.update(range(low, high + 1, int(step or 1)))
    return values


def _seconds(text: str) -> timedelta:
    return timedelta(seconds=float(text.removesuffix("s")))


def _bound(text: object) -> datetime | None:
    return datetime.fromisoformat(text) if isinstance(text, str) else None
