"""A cron daemon in slow motion: the second opinion on every instant the library computes.

It walks real time tick by tick, reads the wall clock through `zoneinfo`, and decides at each tick what a daemon that
follows the rule of docs/time.md would start. It shares no code with the library and was written from crontab(5), the
Quartz documentation of ``L W #`` and the rule's own words.
"""

import calendar
from collections.abc import Callable
from datetime import date, datetime, timedelta
from functools import lru_cache
from importlib.resources import files
from typing import NamedTuple
from zoneinfo import ZoneInfo

THREE_HOURS = timedelta(hours=3)
MONTH_NAMES = ["", "JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
DAY_NAMES = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]


@lru_cache(maxsize=700)
def pinned_zone(name: str) -> ZoneInfo:
    """The zone as the tzdata package has it, whatever the machine has."""
    with files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as file:
        return ZoneInfo.from_file(file, key=name)


class Reading(NamedTuple):
    """The wall clock at one tick, with its last change.

    `skipped` are the local times that the clock has just jumped over; `repeated` says that this local time was shown
    before, and `again` that it will be shown once more; corrections of the clock are neither.
    """

    instant: datetime
    local: datetime
    skipped: tuple[datetime, ...]
    repeated: bool
    again: bool


def wall_clock(name: str, start: datetime, end: datetime, step: timedelta) -> list[Reading]:
    """Yield the wall clock from `start` to `end`, both inclusive, at every `step`."""
    zone = pinned_zone(name)
    shown: list[tuple[datetime, datetime]] = []
    instant = start
    while instant <= end:
        shown.append((instant, instant.astimezone(zone).replace(tzinfo=None)))
        instant += step
    readings: list[Reading] = []
    mark = shown[0][1]  # the local time up to which everything was shown before
    before = shown[0][1] - step
    for instant, local in shown:
        jump = local - (before + step)
        skipped: tuple[datetime, ...] = ()
        if timedelta(0) < jump <= THREE_HOURS:
            skipped = tuple(before + step * (n + 1) for n in range(jump // step))
        elif timedelta(0) > jump >= -THREE_HOURS:
            mark = before + step
        elif jump:
            mark = local
        readings.append(Reading(instant, local, skipped, repeated=local < mark, again=False))
        before = local
    repeated = {reading.local for reading in readings if reading.repeated}
    if repeated:
        readings = [each._replace(again=each.local in repeated and not each.repeated) for each in readings]
    return readings


def occurrences(readings: list[Reading], expression: str, gap: str, overlap: str) -> list[datetime]:
    """Return the instants at which the daemon starts the job of that crontab line."""
    fields = expression.split()
    if len(fields) == 5:
        fields = ["0", *fields]
    matches = matcher(fields)
    if fields[1].startswith("*") or fields[2].startswith("*"):
        return [reading.instant for reading in readings if matches(reading.local)]
    found: list[datetime] = []
    for reading in readings:
        made_up = gap == "shift_forward" and any(matches(local) for local in reading.skipped)
        wrong_pass = (overlap == "first" and reading.repeated) or (overlap == "second" and reading.again)
        if made_up or (matches(reading.local) and not wrong_pass):
            found.append(reading.instant)
    return found


def matcher(fields: list[str]) -> Callable[[datetime], bool]:
    """Return True if a local time fits the six fields (seconds first)."""
    seconds = {value for value in range(60) if in_field(value, fields[0], 0, 59, [])}
    minutes = {value for value in range(60) if in_field(value, fields[1], 0, 59, [])}
    hours = {value for value in range(24) if in_field(value, fields[2], 0, 23, [])}
    months = {value for value in range(1, 13) if in_field(value, fields[4], 1, 12, MONTH_NAMES)}
    days: dict[date, bool] = {}

    def matches(local: datetime) -> bool:
        if local.minute not in minutes or local.hour not in hours or local.second not in seconds:
            return False
        day = local.date()
        if day not in days:
            days[day] = day.month in months and day_fits(day, fields[3], fields[5])
        return days[day]

    return matches


def day_fits(day: date, by_date: str, by_week: str) -> bool:
    """crontab(5): of two restricted fields either matches; one that begins with * is unrestricted."""
    date_fits = by_date == "?" or any(date_element(day, element) for element in by_date.split(","))
    week_fits = by_week == "?" or any(week_element(day, element) for element in by_week.split(","))
    if by_date[0] in "*?" or by_week[0] in "*?":
        return date_fits and week_fits
    return date_fits or week_fits


def date_element(day: date, element: str) -> bool:
    last = calendar.monthrange(day.year, day.month)[1]
    if element == "L":
        return day.day == last
    if element.startswith("L-"):
        return day.day == last - int(element[2:])
    if element == "LW":
        return day == nearest_weekday(day.replace(day=last))
    if element.endswith("W"):
        wanted = int(element[:-1])
        return wanted <= last and day == nearest_weekday(day.replace(day=wanted))
    return in_field(day.day, element, 1, 31, [])


def nearest_weekday(day: date) -> date:
    """Return the nearest Monday to Friday of the same month."""
    month = calendar.Calendar().itermonthdates(day.year, day.month)
    working = [other for other in month if other.month == day.month and other.weekday() < 5]
    return min(working, key=lambda other: (abs((other - day).days), other))


def week_element(day: date, element: str) -> bool:
    weekday = day.isoweekday() % 7
    last = calendar.monthrange(day.year, day.month)[1]
    if "#" in element:
        which, number = element.split("#")
        return week_element(day, which) and (day.day + 6) // 7 == int(number)
    if element.endswith("L"):
        return week_element(day, element[:-1]) and day.day > last - 7
    if element.endswith("-SUN"):
        element = element.replace("-SUN", "-7")
    if "-" not in element:
        return in_element(weekday, element.replace("7", "0"), 0, 6, DAY_NAMES)
    return in_element(weekday, element, 0, 7, DAY_NAMES) or (weekday == 0 and in_element(7, element, 0, 7, DAY_NAMES))


def in_field(value: int, field: str, low: int, high: int, names: list[str]) -> bool:
    return any(in_element(value, element, low, high, names) for element in field.split(","))


def in_element(value: int, element: str, low: int, high: int, names: list[str]) -> bool:
    """crontab(5): a number, name, range or *; with /step every step-th value from its first."""
    body, _, step = element.partition("/")
    first, _, last = body.partition("-")
    if first == "*":
        begin, end = low, high
    else:
        begin = names.index(first) if first in names else int(first)
        end = begin if not last else names.index(last) if last in names else int(last)
        if step and not last:
            end = high
    return begin <= value <= end and (value - begin) % int(step or 1) == 0
