"""The jobs of a random history as the test knows them, and what their occurrences must have been.

The expectation knows the requests, the clock and the rules of docs/time.md. It walks real time tick by tick and shares
no code with what decides: cron expressions are read by the daemon in slow motion, intervals second by second.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from typing import cast

from tests.schedules.brute_force import Reading, matcher, occurrences, pinned_zone, wall_clock

START = datetime(2026, 3, 28, 12, tzinfo=UTC)  # a Saturday; Berlin's clock goes forward on Sunday
END = START + timedelta(hours=56)
EARLIER = timedelta(days=4)  # a shifted occurrence's own day may lie before the history

_SECOND = timedelta(seconds=1)
_DAY = timedelta(days=1)
_TICK = timedelta(microseconds=1)
_EVER = datetime(1900, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Version:
    """A version as it was accepted, with what it was accepted after."""

    spec: dict[str, object]
    since: datetime
    anchor: datetime
    first: datetime


@dataclass
class Pause:
    """A stretch of a pause that is decided in one go, by the calendars there are then."""

    since: datetime  # it holds later instants
    ends_at: datetime | None
    until: datetime | None = None  # the last instant it holds; None while it goes on
    calendars: int = 0  # changes of the calendar when it was decided
    quarantine: bool = False  # the timer keeps its position until a release


@dataclass
class Job:
    key: str
    versions: list[Version] = field(default_factory=list[Version])
    ends: list[datetime] = field(default_factory=list[datetime])  # of versions that have ended, in their order
    exists: bool = False
    pauses: list[Pause] = field(default_factory=list["Pause"])
    skipped: set[datetime] = field(default_factory=set[datetime])
    moved: set[datetime] = field(default_factory=set[datetime])

    @property
    def pause(self) -> Pause | None:
        return self.pauses[-1] if self.pauses and self.pauses[-1].until is None else None

    def spans(self) -> Iterator[tuple[Version, datetime, datetime]]:
        """Each version with the times between which it was in force."""
        for number, version in enumerate(self.versions):
            yield version, version.since, self.ends[number] if number < len(self.ends) else END + _DAY


@dataclass
class Model:
    """The changes of the calendar, and the occurrences that follow from them."""

    days: list[tuple[datetime, frozenset[date], frozenset[int]]] = field(
        default_factory=list[tuple[datetime, frozenset[date], frozenset[int]]]
    )

    def closed(self, job: Job, at: datetime, known: datetime, zone: str) -> bool:
        """Return True if an instant's day was closed by the calendars at another's decision."""
        _, days, weekdays = self.days[max(self._known(job, known) - 1, 0)]
        day = at.astimezone(pinned_zone(zone)).date()
        return day in days or day.isoweekday() % 7 in weekdays

    def effective(self, job: Job, version: Version, after: datetime, until: datetime) -> set[datetime]:
        """Return the scheduled instants in ``(after, until]`` under the calendars of each moment."""
        zone = _zone(version.spec)
        named = "exclude_calendars" in version.spec
        kept = {at for at in nominal(version, after, until) if not named or not self.closed(job, at, at, zone)}
        if version.spec.get("on_excluded") != "next_business_day":
            return kept
        return kept | {to for to in self._shifted(job, version, after, until) if after < to <= until}

    def excluded(self, job: Job, version: Version, after: datetime, until: datetime) -> set[datetime]:
        """Return the instants that calendars exclude in ``(after, until]``."""
        if "exclude_calendars" not in version.spec:
            return set()
        return {at for at in nominal(version, after, until) if self.closed(job, at, at, _zone(version.spec))}

    def _shifted(self, job: Job, version: Version, after: datetime, until: datetime) -> Iterator[datetime]:
        """Return the shifted occurrences of closed days: the same time on the next open day."""
        begun = _begun(job, version)
        for at in nominal(version, after - EARLIER, until):
            for ahead in range(1, 5):
                to = at + ahead * _DAY
                if at <= max(begun, _past_changed(tuple(self.days[: self._known(job, to)]))):
                    continue
                closed = [self.closed(job, at + days * _DAY, to, "UTC") for days in range(ahead + 1)]
                if all(closed[:-1]) and not closed[-1]:
                    yield to
                    break

    def _known(self, job: Job, known: datetime) -> int:
        """Return the number of calendar changes before an instant was decided."""
        place = bisect_left([at for at, _, _ in self.days], known)
        for pause in job.pauses:
            if pause.since < known and (pause.until is None or known <= pause.until):
                place = pause.calendars if pause.until is not None else len(self.days)
        return place


@lru_cache(maxsize=1024)
def _past_changed(calendars: tuple[tuple[datetime, frozenset[date], frozenset[int]], ...]) -> datetime:
    """The last of these changes of the calendar that concerned days which had come."""
    for (_, *before), (at, *after) in reversed(list(pairwise(calendars))):
        days = [at.date() + number * _DAY for number in range(-366, 2)]
        were, are = ([day in some or day.isoweekday() % 7 in week for day in days] for some, week in (before, after))
        if were != are:
            return at
    return _EVER


def _begun(job: Job, version: Version) -> datetime:
    """Return the start of the first of successive versions with the same day rules."""
    number = job.versions.index(version)
    while number and _of_days(job.versions[number - 1]) == _of_days(version):
        number -= 1
    return job.versions[number].since if number else _EVER


def _of_days(version: Version) -> tuple[object, ...]:
    names = ("schedule", "start_at", "end_at", "max_runs", "exclude_calendars", "on_excluded")
    return version.anchor, version.first, *(version.spec.get(name) for name in names)


def nominal(version: Version, after: datetime, until: datetime) -> list[datetime]:
    """The instants of a version's schedule in ``(after, until]``, within its bounds."""
    spec = version.spec
    found = _unbounded(version)
    start, end = spec.get("start_at"), spec.get("end_at")
    if start is not None:
        found = [at for at in found if at >= datetime.fromisoformat(str(start))]
    if end is not None:
        found = [at for at in found if at <= datetime.fromisoformat(str(end))]
    most = spec.get("max_runs")
    if isinstance(most, int):
        counted = [at for at in found if at > version.first][:most]
        found = [at for at in found if len(counted) < most or at <= counted[-1]]
    return [at for at in found if after < at <= until]


def _unbounded(version: Version) -> Iterable[datetime]:
    schedule = schedule_of(version.spec)
    if "cron" in schedule:
        return _cron(str(schedule["cron"]), _zone(version.spec), str(schedule.get("dst_gap", "shift_forward")))
    text = str(schedule["interval"])
    every = int(text[:-1]) * (60 if text.endswith("m") else 1)
    given = schedule.get("anchor")
    return _interval(every, datetime.fromisoformat(str(given)) if given else version.anchor, given is not None)


@lru_cache(maxsize=512)
def _interval(every: int, anchor: datetime, fires: bool) -> list[datetime]:  # noqa: FBT001 - a memo's key
    seconds = int((END + _DAY - anchor) / _SECOND)
    return [anchor + n * _SECOND for n in range(seconds + 1) if n % every == 0 and (n or fires)]


@lru_cache(maxsize=64)
def _cron(expression: str, zone: str, gap: str) -> list[datetime]:
    fields = expression.split()
    if len(fields) == 5:
        return occurrences(_readings(zone), expression, gap, "first")
    assert zone == "UTC", "second by second, where no clock jumps"
    seconds = (START - _DAY + n * _SECOND for n in range(int((END - START) / _SECOND) + 2 * 86_400))
    matches = matcher(fields)
    return [at for at in seconds if matches(at)]


@lru_cache(maxsize=8)
def _readings(zone: str) -> list[Reading]:
    return wall_clock(zone, START - EARLIER, END + _DAY, timedelta(minutes=1))


def schedule_of(spec: dict[str, object]) -> dict[str, object]:
    return cast("dict[str, object]", spec["schedule"])


def _zone(spec: dict[str, object]) -> str:
    return str(schedule_of(spec).get("timezone", "UTC"))
