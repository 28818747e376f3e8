"""The effect of new days on a calendar that jobs name, before they are saved."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date

from tidewheel.control.client.connection import Connection
from tidewheel.control.console.words import counted, number
from tidewheel.control.explain.explanation import OccurrenceOutcome
from tidewheel.control.explain.upcoming import UpcomingOccurrence, upcoming
from tidewheel.control.reads.calendars import CalendarDetail
from tidewheel.errors import TidewheelError
from tidewheel.jobs.values import WEEKDAYS

_JOBS, _OCCURRENCES, _DAYS = 10, 50, 8  # that are looked at, and named
_FIRES = {OccurrenceOutcome.SCHEDULED, OccurrenceOutcome.PAUSED, OccurrenceOutcome.WAITING}


@dataclass(frozen=True, slots=True)
class DaySet:
    """The days of a calendar: single ones, and weekdays by their numbers from Sunday on."""

    days: frozenset[date]
    weekdays: frozenset[int]

    @classmethod
    def of(cls, found: CalendarDetail) -> "DaySet":
        """Return those of a calendar."""
        return cls(frozenset(found.days), frozenset(map(WEEKDAYS.index, found.weekdays)))

    def __contains__(self, day: date) -> bool:
        return day in self.days or day.isoweekday() % 7 in self.weekdays


def effect_of(connection: Connection, tenant: str, found: CalendarDetail, then: DaySet, today: date) -> Sequence[str]:
    """Return what new days change: days that come or go, and the next occurrences on them.

    Days that have passed are left out. Of the jobs, the first ten are looked at.
    """
    now = DaySet.of(found)
    lines = [*_of_days(now, then, today), *_of_weekdays(now, then)]
    if not lines:
        return ()
    for key in found.keys[:_JOBS]:
        lines += _of_job(connection, tenant, key, now, then)
    if found.jobs > _JOBS:
        lines.append(f"{counted(found.jobs - _JOBS, 'further job')} not checked.")
    return lines


def _of_days(now: DaySet, then: DaySet, today: date) -> Iterator[str]:
    for verb, days in (("Adds", then.days - now.days), ("Removes", now.days - then.days)):
        coming = sorted(day for day in days if day >= today)
        if coming:
            yield f"{verb} {counted(len(coming), 'day')}: {_named(coming)}."


def _of_weekdays(now: DaySet, then: DaySet) -> Iterator[str]:
    for verb, days in (("Adds", then.weekdays - now.weekdays), ("Removes", now.weekdays - then.weekdays)):
        if days:
            yield f"{verb} every {', '.join(WEEKDAYS[day] for day in sorted(days))}."


def _of_job(connection: Connection, tenant: str, key: str, now: DaySet, then: DaySet) -> Iterator[str]:
    try:
        with connection.snapshot() as reading:
            coming = upcoming(reading, tenant, key, _OCCURRENCES).occurrences
    except TidewheelError as error:
        yield f"{key}: {error}"
        return
    fires = [each for each in coming if each.outcome in _FIRES]
    changed = [each.local.date() for each in fires if _changes(each, now, then)]
    if changed:
        of = f"of its next {counted(len(fires), 'occurrence')}"
        fall = "falls" if len(changed) == 1 else "fall"
        yield f"{key}: {number(len(changed))} {of} {fall} on such days: {_named(sorted(set(changed)))}."


def _changes(each: UpcomingOccurrence, now: DaySet, then: DaySet) -> bool:
    day = each.local.date()
    return (day in now) != (day in then)


def _named(days: Sequence[date]) -> str:
    names = [f"{day:%a} {day.day} {day:%b %Y}" for day in days[:_DAYS]]
    return ", ".join(names) + (f" and {number(len(days) - _DAYS)} more" if len(days) > _DAYS else "")
