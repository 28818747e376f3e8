"""Schedules without some occurrences: `CalendarSchedule` for calendars, `Excluding` for overrides.

Calendars exclude the occurrences of days that are not open, or shift them to the next open day. A day is a day on the
wall clock of the schedule's zone. Searches jump over spans of days, not from occurrence to occurrence. A one-second
schedule that is closed for a year costs one step.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from tidewheel.errors import refuse
from tidewheel.schedules.cron_schedule import CronSchedule, offset_spans
from tidewheel.schedules.decision import DaySet
from tidewheel.schedules.open_days import DAY_SECONDS, MAX_SHIFT_DAYS, DayShifts, OpenDays, open_days
from tidewheel.schedules.schedule import TICK, Schedule, at_second, iterate, whole_second

MAX_SPANS = 400
"""The most excluded spans of one call: more than the weekends of a year and a calendar day in every week."""

MAX_COUNTED = 100_000
"""The most occurrences of one span that are counted; a longer one has at least so many."""

_MAX_JUMPS = 4_000  # over closed spans in one search: each comes with an open day, so at least twenty years
# shifted occurrences that `count` visits in a fifth of a second; beyond it the count is a lower bound
_MAX_SHIFTED = 2_000
_NEAR_SECONDS = MAX_SHIFT_DAYS * DAY_SECONDS
_SECOND = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Excluding:
    """A schedule without the few occurrences that users skip or move."""

    schedule: Schedule
    excluded: frozenset[datetime]

    @property
    def hashed(self) -> bool:
        """True if the schedule depends on the job's id."""
        return self.schedule.hashed

    def after(self, instant: datetime) -> datetime | None:
        """Return the first occurrence strictly later that is not excluded."""
        found = self.schedule.after(instant)
        while found is not None and found in self.excluded:
            found = self.schedule.after(found)
        return found

    def before(self, instant: datetime) -> datetime | None:
        """Return the last occurrence strictly earlier that is not excluded."""
        found = self.schedule.before(instant)
        while found is not None and found in self.excluded:
            found = self.schedule.before(found)
        return found

    def between(self, start: datetime, end: datetime) -> Iterator[datetime]:
        """Yield the occurrences in ``(start, end]`` that are not excluded."""
        return iterate(self, start, end)

    def count(self, start: datetime, end: datetime, limit: int) -> tuple[int, bool]:
        """Count the occurrences in ``(start, end]``, up to `limit`; False if there are more."""
        gone = sum(start < at <= end and is_occurrence(self.schedule, at) for at in self.excluded)
        found, exact = self.schedule.count(start, end, limit + gone)
        return (found - gone, True) if exact else (max(limit, 0), False)


def is_occurrence(schedule: Schedule, at: datetime) -> bool:
    """Return True if the instant is an occurrence of the schedule."""
    return schedule.after(at - TICK) == at


@dataclass(frozen=True, slots=True)
class CalendarSchedule:
    """The occurrences of a schedule on open days.

    Args:
        schedule: The schedule; its bounds apply to its own instants, not to shifted ones.
        exclude: Days of these are not open.
        include: If there are any, only days of these are open.
        shift: True if an occurrence of a day that is not open fires on the next open day, at the same wall time.
        since: The last change of open days or of `shift`. An occurrence before it has fired on its own day, or was
            excluded, and is no longer shifted.
        taken: Instants that are decided already, a handful. They are in no excluded span.

    >>> from datetime import UTC
    >>> from tidewheel.schedules.parse import parse_schedule
    >>> daily = parse_schedule({"kind": "cron", "expressions": ["0 9 * * *"]})
    >>> weekend = DaySet(weekdays=frozenset({0, 6}))
    >>> str(CalendarSchedule(daily, (weekend,), (), "UTC").after(datetime(2026, 11, 20, 12, tzinfo=UTC)))
    '2026-11-23 09:00:00+00:00'
    """

    schedule: Schedule
    exclude: tuple[DaySet, ...]
    include: tuple[DaySet, ...]
    zone_name: str
    shift: bool = False
    since: datetime | None = None
    taken: frozenset[datetime] = frozenset()
    _days: OpenDays = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_days", open_days(self.exclude, self.include, self.zone_name))

    @property
    def hashed(self) -> bool:
        """True if the schedule depends on the job's id."""
        return self.schedule.hashed

    def excludes(self, instant: datetime) -> bool:
        """Return True if the instant lies on a day that is not open."""
        return not self._days.opens(self._days.day_at(whole_second(instant)))

    def after(self, instant: datetime) -> datetime | None:
        """Return the first occurrence strictly later; None if none lies within twenty years."""
        return self._after(instant, None)

    def before(self, instant: datetime) -> datetime | None:
        """Return the last occurrence strictly earlier; None if none lies within twenty years."""
        if not self.shift:
            return self._nominal_before(instant, None, opens=True)
        # In the steps of `_after`.
        kept = self._nominal_before(instant, _at(whole_second(instant) - _NEAR_SECONDS), opens=True)
        shifted = self._shifted_before(instant, kept)
        kept = kept or self._nominal_before(instant, shifted, opens=True)
        return max((at for at in (kept, shifted) if at is not None), default=None)

    def between(self, start: datetime, end: datetime) -> Iterator[datetime]:
        """Yield the occurrences in ``(start, end]``."""
        return iterate(self, start, end)

    def count(self, start: datetime, end: datetime, limit: int) -> tuple[int, bool]:
        """Count the occurrences in ``(start, end]``, up to `limit`; False if there are more.

        It counts span by span of open days, and visits shifted ones. Beyond `_MAX_SHIFTED` it returns a lower bound.
        """
        found, exact = self._count_kept(start, end, limit)
        return self._count_shifted(start, end, limit, found) if exact and self.shift else (found, exact)

    def excluded_after(self, instant: datetime, until: datetime) -> datetime | None:
        """Return the first instant of the schedule in ``(instant, until]`` on a day that is not open."""
        return self._nominal_after(instant, until, opens=False)

    def excluded_before(self, instant: datetime) -> datetime | None:
        """Return the schedule's last instant before another, on a day that is not open."""
        return self._nominal_before(instant, None, opens=False)

    def first_until(self, instant: datetime, until: datetime) -> datetime | None:
        """Return the first occurrence in ``(instant, until]``."""
        found = self._after(instant, until)
        return found if found is not None and found <= until else None

    def _after(self, instant: datetime, until: datetime | None) -> datetime | None:
        if not self.shift:
            return self._nominal_after(instant, until, opens=True)
        # A schedule without an instant on any open day would cost `_MAX_JUMPS`: 20 ms. So the first search ends after a
        # year, and the last one at what the second has found.
        near = _at(whole_second(instant) + _NEAR_SECONDS)
        near = until if near is None or (until is not None and until < near) else near
        kept = self._nominal_after(instant, near, opens=True)
        shifted = self._shifted_after(instant, kept or until)
        kept = kept or self._nominal_after(instant, shifted or until, opens=True)
        return min((at for at in (kept, shifted) if at is not None), default=None)

    def _nominal_after(self, instant: datetime, until: datetime | None, *, opens: bool) -> datetime | None:
        """Return the schedule's first instant in ``(instant, until]`` on a day that is open (or is not)."""
        found = self.schedule.after(instant)
        for _ in range(_MAX_JUMPS):
            if found is None or (until is not None and found > until):
                return None
            second = whole_second(found)
            there = self._days.following(second, opens=opens)
            if there == second:
                return found
            at = _at(there)
            if at is None:
                return None
            found = self.schedule.after(at - TICK)
        return None

    def _nominal_before(self, instant: datetime, since: datetime | None, *, opens: bool) -> datetime | None:
        """Return the schedule's last instant in ``[since, instant)`` on a day that is open (or is not)."""
        found = self.schedule.before(instant)
        for _ in range(_MAX_JUMPS):
            if found is None or (since is not None and found < since):
                return None
            second = whole_second(found)
            there = self._days.preceding(second, opens=opens)
            if there == second:
                return found
            at = _at(there + 1)
            if at is None:
                return None
            found = self.schedule.before(at)
        return None

    def _shifts(self) -> DayShifts:
        of = self.schedule.entries[0] if isinstance(self.schedule, CronSchedule) else None
        gap, overlap = (of.gap, of.overlap) if of is not None else (None, None)
        return DayShifts(self.schedule, self._days, offset_spans(self.zone_name, gap, overlap), self.since)

    def _shifted_after(self, instant: datetime, until: datetime | None) -> datetime | None:
        """Return the first shifted instant after another; those of days after `until` need not be found."""
        days, shifts = self._days, self._shifts()
        today = days.day_at(whole_second(instant))
        opened = [day for day in range(today - 2, today + 1) if days.opens(day) and not days.opens(day - 1)]
        coming = None if days.opens(today) else days.nearest(today, 1, opens=True)
        for target in opened if coming is None else (*opened, coming):
            found = shifts.first(target, instant)
            if found is not None:
                return found
        position = instant if self.since is None else max(instant, self.since)
        for _ in range(_MAX_JUMPS):
            closed = self._nominal_after(position, until, opens=False)
            end = None if closed is None else _at(days.following(whole_second(closed), opens=True))
            if end is None:
                return None
            found = shifts.first(days.day_at(whole_second(end)), instant)
            if found is not None:
                return found
            position = end - TICK
        return None

    def _shifted_before(self, instant: datetime, since: datetime | None) -> datetime | None:
        """Return the last shifted instant before another; those of days before `since` need not be found."""
        days, shifts = self._days, self._shifts()
        earliest = None if since is None else days.day_at(whole_second(since)) - 2
        position: datetime | None = instant
        for _ in range(_MAX_JUMPS):
            nominal = None if position is None else self.schedule.before(position)
            closed = None if nominal is None else _at(days.preceding(whole_second(nominal), opens=False))
            if closed is None or (self.since is not None and closed + _SECOND <= self.since):
                return None
            target = days.nearest(days.day_at(whole_second(closed)), 1, opens=True)
            if target is not None:
                if earliest is not None and target < earliest:
                    return None
                found = shifts.last(target, instant)
                if found is not None:
                    return found
            position = _at(days.preceding(whole_second(closed), opens=True) + 1)
        return None

    def _count_kept(self, start: datetime, end: datetime, limit: int) -> tuple[int, bool]:
        found, position = 0, start
        while (first := self._nominal_after(position, end, opens=True)) is not None:
            closes = _at(self._days.following(whole_second(first), opens=False))
            position = end if closes is None else min(closes - TICK, end)
            more, exact = self.schedule.count(first - TICK, position, limit - found)
            if not exact:
                return max(limit, 0), False
            found += more
        return found, True

    def _count_shifted(self, start: datetime, end: datetime, limit: int, found: int) -> tuple[int, bool]:
        """Add the shifted instants that are no instants of the schedule itself to the count."""
        position = start
        for _ in range(_MAX_SHIFTED):
            shifted = self._shifted_after(position, end)
            if shifted is None or shifted > end:
                return found, True
            if self.schedule.after(shifted - TICK) != shifted or self.excludes(shifted):
                if found >= limit:
                    return max(limit, 0), False
                found += 1
            position = shifted
        return found, False


def excluded_spans(
    nominal: Schedule, effective: Schedule, start: datetime, end: datetime
) -> list[tuple[datetime, datetime, int, bool]]:
    """List the spans that calendars exclude from a schedule in ``(start, end]``.

    Args:
        effective: The schedule under its calendars; without calendars nothing is excluded.

    Returns:
        Spans without an occurrence in them: the first excluded instant, the last, their number, and True if it is exact
        (else it is a lower bound). The last of `MAX_SPANS` may hold occurrences, and is then not exact.
    """
    spans: list[tuple[datetime, datetime, int, bool]] = []
    if not isinstance(effective, CalendarSchedule):
        return spans
    first = effective.excluded_after(start, end)
    while first is not None:
        if first in effective.taken:
            first = effective.excluded_after(first, end)
            continue
        occurrence = effective.first_until(first, end)
        until = end if occurrence is None else occurrence - TICK
        until = min((at - TICK for at in effective.taken if first < at <= until), default=until)
        if len(spans) == MAX_SPANS - 1:
            spans.append(_rest(Excluding(nominal, effective.taken), effective, first, end))
            return spans
        spans.append((first, nominal.before(until + TICK) or first, *nominal.count(first - TICK, until, MAX_COUNTED)))
        first = effective.excluded_after(until, end)
    return spans


def ensure_open_days(effective: Schedule, now: datetime) -> None:
    """Refuse a schedule whose calendars exclude every occurrence after `now`.

    A schedule that had an occurrence before passes. So does a `once` whose time has passed on an open day, as in
    `ensure_can_fire`.
    """
    if not isinstance(effective, CalendarSchedule) or effective.after(now) is not None:
        return
    if effective.schedule.after(now) is None and effective.before(now) is not None:
        return
    path = "exclude_calendars" if effective.exclude else "include_calendars"
    problem = "the calendars exclude every future occurrence, so the job can never fire"
    refuse(path, problem, "correct the schedule or the calendars")


def _rest(
    nominal: Schedule, effective: CalendarSchedule, first: datetime, end: datetime
) -> tuple[datetime, datetime, int, bool]:
    """Return all that is excluded from `first` on as one span."""
    last = effective.excluded_before(end + TICK) or first
    if last <= first:
        return first, first, 1, True
    every, _ = nominal.count(first - TICK, end, MAX_COUNTED)
    kept, _ = effective.count(first - TICK, end, MAX_COUNTED)
    return first, last, max(every - kept, 2), False


def _at(second: int) -> datetime | None:
    """Return the instant of a second; None beyond the range of a datetime."""
    try:
        return at_second(second)
    except OverflowError:
        return None
