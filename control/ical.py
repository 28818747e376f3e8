"""Read the days of an iCalendar file: those that its events touch, each in its own zone.

An all-day event touches each of its days except the one that DTEND names. A timed event touches the days from its start
to its end, except a day at whose first instant it ends. Repeats are followed to a horizon. Cancelled events, cancelled
single occurrences and EXDATEs are omitted. A moved occurrence counts at its new time, in the zone that it then has. A
RECURRENCE-ID or EXDATE with a time names an instant, and one without a time a day of the series. An unreadable part is
refused with file and event: a silently missing holiday would be noticed only on that day.
Source: RFC 5545, sections 3.6.1 (VEVENT), 3.8.4.4 (RECURRENCE-ID) and 3.8.5 (EXDATE, RDATE, RRULE).
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from itertools import islice, takewhile
from pathlib import Path
from typing import NoReturn, cast

from dateutil.rrule import rrulestr
from icalendar import Calendar, Component, vDDDLists, vRecur

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import refuse
from tidewheel.jobs.values import HORIZON_YEARS, MAX_DAYS

MAX_BYTES = 4 * 2**20
"""Largest file in bytes: twenty times a country's holidays of a century."""

MAX_EVENTS = 10_000
"""Most events of a file: as many as days of a calendar."""

MAX_YEARS = 50
"""Farthest horizon of repeats, in years."""

_MAX_SECONDS = 20.0  # for the repeats of one file; a rule that never matches takes 5 s
_FREQUENCIES = ("DAILY", "WEEKLY", "MONTHLY", "YEARLY")
_HIGHEST = {"BYMONTH": 12, "BYWEEKNO": 53, "BYYEARDAY": 366, "BYMONTHDAY": 31}
_WEEKS_OF_A_MONTH = 5  # most Mondays that a month has
_READ = {"DTSTART", "DTEND", "DURATION", "RRULE", "RDATE", "EXDATE", "RECURRENCE-ID", "STATUS", "UID"}
_DAY, _NOTHING = timedelta(days=1), timedelta(0)


@dataclass(frozen=True, slots=True)
class FileDays:
    """The days of a file, and the last day to which repeats were followed; None if all end before."""

    days: frozenset[date]
    events: int
    repeats_until: date | None


def read_calendar_file(path: Path, *, today: date, years: int = HORIZON_YEARS) -> FileDays:
    """Return the days of an iCalendar file; repeats are followed for so many years from today."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        refuse(path.name, f"cannot be read: {error.strerror}", "name a file in iCalendar format")
    return days_of(data, path.name, today=today, years=years)


def days_of(data: bytes, name: str, *, today: date, years: int = HORIZON_YEARS) -> FileDays:
    r"""Return the days of an iCalendar file's content; errors call the file `name`.

    >>> lines = ["BEGIN:VEVENT", "DTSTART;VALUE=DATE:20261225", "DTEND;VALUE=DATE:20261227", "END:VEVENT"]
    >>> found = days_of("\n".join(lines).encode(), "holidays.ics", today=date(2026, 11, 20))
    >>> [str(day) for day in sorted(found.days)]
    ['2026-12-25', '2026-12-26']
    """
    if len(data) > MAX_BYTES:
        refuse(name, f"has more than {MAX_BYTES // 2**20} MiB", "remove everything but events, or split the file")
    if not 1 <= years <= MAX_YEARS:
        refuse("years", f"{years} is not valid", f"write 1 to {MAX_YEARS}")
    horizon = date(today.year + years, today.month, min(today.day, 28))
    events = _events(data, name)
    replaced: dict[str, list[date]] = {}
    for event in events:
        if event.instead_of is not None:
            replaced.setdefault(event.uid, []).append(event.instead_of)
    deadline = monotonic_seconds() + _MAX_SECONDS
    days: set[date] = set()
    touching, beyond = 0, False
    for event in events:
        if event.cancelled:
            continue
        touching += 1
        with event.within_the_calendar():
            found, cut = event.days(horizon, () if event.instead_of is not None else replaced.get(event.uid, ()))
        beyond = beyond or cut
        days |= found
        if len(days) > MAX_DAYS:
            event.refuse(f"the file covers more than {MAX_DAYS} days", "follow repeats for fewer years, or split it")
        if monotonic_seconds() > deadline:
            event.refuse(f"computing its repeats takes longer than {_MAX_SECONDS:g} s", "simplify the rule")
    if not days:
        refuse(name, "has no day that an event covers", "add an event that is not cancelled")
    return FileDays(frozenset(days), touching, horizon if beyond else None)


class _Event:
    """One parsed VEVENT."""

    def __init__(self, component: Component, file: str, number: int) -> None:
        self._component, self._file, self._number = component, file, number
        self.uid = str(component.get("UID", f"without a UID, number {number}"))
        for prop, problem in cast("Sequence[tuple[str | None, str]]", component.errors):
            if prop is None or prop in _READ:
                self.refuse(f"{prop}: {problem}" if prop else problem, "correct it")
        self.cancelled = str(component.get("STATUS", "")).upper() == "CANCELLED"
        given = self._value("DTSTART")
        if given is None:
            self.refuse("DTSTART is missing", "add the start time")
        self._all_day = not isinstance(given, datetime)
        self._zone = given.tzinfo if isinstance(given, datetime) else None
        with self.within_the_calendar():
            self._start = self._local(given)
            self._length = self._read_length()
        self.instead_of = self._value("RECURRENCE-ID")
        self._refuse_unread()

    def days(self, horizon: date, replaced: Iterable[date]) -> tuple[set[date], bool]:
        """Return its days up to the horizon without replaced ones, and True if repeats continue beyond it."""
        repeats, cut = self._repeats(datetime.combine(horizon, time.max))
        omitted = {self._place(at) for at in (*replaced, *(at for at, _ in self._listed("EXDATE")))}
        starts = [(at, self._length) for at in (self._start, *repeats)]
        starts += [(self._local(at), length) for at, length in self._listed("RDATE")]
        days: set[date] = set()
        for at, length in starts:
            if not omitted or not omitted & {at.date(), self._in_utc(at)}:
                days.update(_touched(at, length))
            if len(days) > MAX_DAYS:
                break  # the caller refuses the event
        return days, cut

    @contextmanager
    def within_the_calendar(self) -> Generator[None]:
        """Refuse the file for this event if a time is before year 1 or after year 9999."""
        try:
            yield
        except OverflowError:
            self.refuse("a time is outside the years 1 to 9999", "correct the year or the length")

    def refuse(self, problem: str, remedy: str) -> NoReturn:
        """Refuse the file for this event."""
        summary = str(self._component.get("SUMMARY", "")).strip()[:64]
        called = f"event {self._number}" + (f" {summary!r}" if summary else "") + f" (UID {self.uid[:64]})"
        refuse(self._file, f"{called}: {problem}", remedy)

    def _repeats(self, horizon: datetime) -> tuple[list[datetime], bool]:
        found: list[datetime] = []
        cut = False
        for rule in self._all("RRULE"):
            assert isinstance(rule, vRecur)  # noqa: S101 - by its property; a broken one was refused
            ends = [self._last(at) for at in cast("list[date]", rule.get("UNTIL", []))]
            last = min([horizon, *ends])
            times = list(islice(takewhile(last.__ge__, _before_the_end(self._rule(rule))), MAX_DAYS + 1))
            limits = cast("list[int]", rule.get("COUNT", []))
            cut = cut or (not any(end <= horizon for end in ends) and not any(len(times) >= count for count in limits))
            found += times
        return found, cut

    def _rule(self, rule: vRecur) -> Iterable[datetime]:
        frequency = str(rule.get("FREQ", [""])[0]).upper()
        if frequency not in _FREQUENCIES:
            self.refuse("the RRULE needs a FREQ of days or longer", f"write one of {', '.join(_FREQUENCIES)}")
        for name in ("INTERVAL", "COUNT"):
            if cast("list[int]", rule.get(name, [1]))[0] < 1:
                self.refuse(f"the {name} of the RRULE is less than 1", "write 1 or more")
        self._check_bounds(rule, is_monthly=frequency == "MONTHLY")
        text = str(rule.to_ical(), "utf-8")  # type: ignore[no-untyped-call]  # it gives bytes
        parts = [part for part in text.split(";") if not part.upper().startswith("UNTIL=")]
        try:
            return rrulestr(";".join(parts), dtstart=self._start)
        except ValueError as error:
            self.refuse(f"the RRULE cannot be read: {error}", "correct it")

    def _check_bounds(self, rule: vRecur, *, is_monthly: bool) -> None:
        """Refuse numbers that RFC 5545, 3.3.10 excludes.

        dateutil takes them for a day that never comes, or fails.
        """
        for part, highest in _HIGHEST.items():
            for number in cast("list[int]", rule.get(part, [])):
                if not 1 <= abs(number) <= highest or (part == "BYMONTH" and number < 0):
                    self.refuse(f"{part}={number} of the RRULE does not exist", f"write 1 to {highest}")
        highest = _WEEKS_OF_A_MONTH if is_monthly or "BYMONTH" in rule else _HIGHEST["BYWEEKNO"]
        for day in map(str, cast("list[str]", rule.get("BYDAY", []))):
            if abs(int(day[:-2] or 1)) > highest:
                self.refuse(f"BYDAY={day} of the RRULE does not exist", f"write a number of at most {highest}")

    def _last(self, until: date) -> datetime:
        # UNTIL of an all-day event may have a time: the whole day counts. Many programs write the calendar's last
        # second for "never", which is a time of year 10000 east of Greenwich.
        try:
            at = self._local(until)
        except OverflowError:
            return datetime.combine(date.max if until.year > 1 else date.min, time.max)
        return datetime.combine(at.date(), time.max) if self._all_day or not isinstance(until, datetime) else at

    def _read_length(self) -> timedelta:
        end, length = self._value("DTEND"), self._component.get("DURATION")
        if isinstance(length, list):
            self.refuse("DURATION occurs twice", "leave one out")
        if end is not None:
            found = self._local(end) - self._start
        else:
            found = cast("timedelta", length.dt) if length is not None else (_DAY if self._all_day else _NOTHING)
        return self._checked(found)

    def _checked(self, length: timedelta) -> timedelta:
        if length < _NOTHING:
            self.refuse("the end is before the start", "swap DTSTART and DTEND")
        if length > MAX_DAYS * _DAY:
            self.refuse(f"the event is longer than {MAX_DAYS} days", "use an RRULE, or weekdays of the calendar")
        return length

    def _refuse_unread(self) -> None:
        if self._component.get("EXRULE") is not None:
            self.refuse("EXRULE is no longer part of the format", "use EXDATE")
        found = self._component.get("RECURRENCE-ID")
        if found is not None and "RANGE" in found.params:
            self.refuse("RANGE=THISANDFUTURE is not supported", "end the series with UNTIL and begin another")

    def _value(self, name: str) -> date | None:
        found = self._component.get(name)
        if isinstance(found, list):
            self.refuse(f"{name} occurs twice", "leave one out")
        if found is not None and not isinstance(found.dt, date):
            self.refuse(f"{name} is not a date", "write a date, or a date with a time")
        return None if found is None else cast("date", found.dt)

    def _listed(self, name: str) -> Iterator[tuple[date, timedelta]]:
        """Yield the values of EXDATEs or RDATEs, each with its length: a period has its own."""
        for group in self._all(name):
            assert isinstance(group, vDDDLists)  # noqa: S101 - by its property; a broken one was refused
            for each in group.dts:
                match each.dt:
                    case (datetime() as start, timedelta() as length):
                        yield start, self._checked(length)
                    case (datetime() as start, datetime() as end):
                        yield start, self._checked(self._local(end) - self._local(start))
                    case date() as start:
                        yield start, self._length
                    case _:
                        self.refuse(f"{name} is not a date", "write a date, or a date with a time")

    def _all(self, name: str) -> list[object]:
        found = self._component.get(name)
        return cast("list[object]", found) if isinstance(found, list) else [] if found is None else [found]

    def _local(self, at: date) -> datetime:
        """Return a start in the event's own zone, as a naive datetime."""
        if not isinstance(at, datetime):
            return datetime.combine(at, time())
        return (at.astimezone(self._zone) if at.tzinfo and self._zone else at).replace(tzinfo=None)

    def _in_utc(self, local: datetime) -> datetime:
        """Return a start in UTC; an all-day event, and one without a zone, has no instant but its own clock's."""
        return local.replace(tzinfo=self._zone).astimezone(UTC).replace(tzinfo=None) if self._zone else local

    def _place(self, at: date) -> date:
        """Return what names an occurrence: its instant, or its day if the value or the series has no time."""
        local = self._local(at)
        return self._in_utc(local) if isinstance(at, datetime) and not self._all_day else local.date()


def _before_the_end(times: Iterable[datetime]) -> Iterator[datetime]:
    """Yield the times of a rule; dateutil raises an error behind the year 9999."""
    try:
        yield from times
    except ValueError:
        return


def _touched(start: datetime, length: timedelta) -> Iterator[date]:
    """Yield the days that an event touches from a given start."""
    last = (start + max(length - timedelta.resolution, _NOTHING)).date()
    for number in range((last - start.date()).days + 1):
        yield start.date() + number * _DAY


def _events(data: bytes, file: str) -> list[_Event]:
    try:
        found = Calendar.from_ical(data, multiple=True)
    except ValueError as error:
        refuse(file, f"not an iCalendar file: {str(error)[:120]}", "export it again as .ics")
    components = [event for each in found for event in each.walk("VEVENT")]  # pyright: ignore[reportUnknownMemberType]  # a default of its has no type
    if not components:
        refuse(file, "contains no event", "name a file with events (VEVENT)")
    if len(components) > MAX_EVENTS:
        refuse(file, f"contains {len(components)} events", f"keep at most {MAX_EVENTS}")
    return [_Event(component, file, number) for number, component in enumerate(components, start=1)]
