"""Describe cron expressions in English, and note the effects of daylight saving."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from tidewheel.schedules.cron_fields import following, preceding
from tidewheel.schedules.cron_parser import parse_cron
from tidewheel.schedules.cron_schedule import (
    CORRECTION,
    CronSchedule,
    DstGap,
    DstOverlap,
    ZonedCron,
    choice,
    zoned_cron,
)
from tidewheel.schedules.cron_syntax import DAY_OF_MONTH, DAY_OF_WEEK, HOUR, MINUTE, MONTH, SECOND, FieldKind
from tidewheel.schedules.ranges import occurrences_after
from tidewheel.schedules.schedule import at_second, whole_second
from tidewheel.schedules.zones import FOREVER, Zone, zone

# fmt: off
_MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)
# fmt: on
_WEEKDAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_NOUNS = {DAY_OF_MONTH: "day", DAY_OF_WEEK: "day of the week"}
_ORDINALS = ("", "first", "second", "third", "fourth", "fifth")
_FEW = 6  # times of day that are listed one by one; more of them read better as a rule
_WALL_CLOCK = "When clocks go back, a repeated time fires twice; when they go forward, a skipped time does not fire."
_GAP = {
    DstGap.SHIFT_FORWARD: "When clocks go forward, a skipped time fires right after the change.",
    DstGap.SKIP: "When clocks go forward, a skipped time does not fire.",
}
_OVERLAP = {
    DstOverlap.FIRST: "When clocks go back, a repeated time fires the first time only.",
    DstOverlap.SECOND: "When clocks go back, a repeated time fires the second time only.",
    DstOverlap.BOTH: "When clocks go back, a repeated time fires both times.",
}


def time_words(second: str, minute: str, hour: str) -> str:
    """Describe the times of day.

    >>> time_words("0", "30", "2,14")
    'at 02:30 and 14:30'
    >>> time_words("0", "*/5", "9-17")
    'every 5 minutes of hours 9 to 17'
    """
    seconds, minutes, hours = _numbers(second), _numbers(minute), _numbers(hour)
    if 0 < len(seconds) * len(minutes) * len(hours) <= _FEW:
        to_second = [f":{s:02}" for s in seconds] if second != "0" else [""]
        return "at " + listed(f"{h:02}:{m:02}{s}" for h in hours for m in minutes for s in to_second)
    parts = [_field(second, SECOND), _field(minute, MINUTE), _field(hour, HOUR)]
    if second == "0":
        parts.pop(0)
    while len(parts) > 1 and parts[-1] in ("every hour", "every minute") and parts[-2].startswith("every"):
        parts.pop()  # "every 5 minutes" implies every hour
    words = " of ".join(parts)
    return words if words.startswith("every") else f"at {words}"


def day_words(by_date: str, month: str, by_week: str) -> str:
    """Describe the days.

    >>> day_words("13", "*", "5")
    'on day 13 of the month or on Friday'
    >>> day_words("*/2", "6-8", "MON-FRI")
    'on every 2nd day of the month if it is Monday to Friday, in June to August'
    """
    by_date, by_week = by_date.replace("?", "*"), by_week.replace("?", "*")
    date_open, week_open = by_date == "*", by_week == "*"
    dates, weekdays = _field(by_date, DAY_OF_MONTH), _field(by_week, DAY_OF_WEEK)
    if date_open or week_open:
        days = "every day" if date_open and week_open else f"on {weekdays if date_open else dates}"
    elif by_date.startswith("*") or by_week.startswith("*"):
        days = f"on {dates} if it is {weekdays}"
    else:
        days = f"on {dates} or on {weekdays}"
    return days if month == "*" else f"{days}, in {_field(month, MONTH)}"


def listed(items: Iterable[str]) -> str:
    """Join items as in a sentence.

    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    *most, last = items
    return f"{', '.join(most)} and {last}" if most else last


def _numbers(text: str) -> list[int]:
    """Return the numbers of a field that is a plain list of numbers; none for any other."""
    return sorted({int(word) for word in text.split(",")}) if re.fullmatch(r"\d+(,\d+)*", text, re.ASCII) else []


def _field(text: str, kind: FieldKind) -> str:
    return listed(_special(element, kind) or _element(element, kind) for element in text.lower().split(","))


def _special(element: str, kind: FieldKind) -> str:
    """Describe an element with H, L, W or #; empty for a plain one."""
    if element.startswith("h"):
        name = _NOUNS.get(kind, kind.name)
        return f"{f'{name}s' if '/' in element else f'a {name}'} derived from the job's id ({element.upper()})"
    if kind is DAY_OF_MONTH and {"l", "w"} & {*element}:
        return _special_date(element)
    if kind is DAY_OF_WEEK and "#" in element:
        days, _, which = element.partition("#")
        return f"the {_ORDINALS[int(which)]} {_element(days, kind)} of the month"
    if kind is DAY_OF_WEEK and element.strip("l") != element:
        return f"the last {_name(element.strip('l'), kind)} of the month"
    return ""


def _special_date(element: str) -> str:
    if element in ("lw", "wl"):
        return "the last weekday (Monday to Friday) of the month"
    if "w" in element:
        return f"the weekday (Monday to Friday) nearest to day {element.strip('w')} of the month"
    back = int(element[2:] or 0)
    before = f"the day {back} day{'s' if back > 1 else ''} before " if back else ""
    return f"{before}the last day of the month"


def _element(element: str, kind: FieldKind) -> str:
    body, _, step = element.partition("/")
    first, _, last = body.partition("-")
    tail = " of the month" if kind is DAY_OF_MONTH else ""
    noun = _NOUNS.get(kind, kind.name)
    if body == "*":
        even = kind in (SECOND, MINUTE, HOUR) and step and kind.size % int(step) == 0
        return (f"every {step} {noun}s" if even else f"every {_nth(step)}{noun}") + tail
    if step:
        until = f" to {_name(last, kind)}" if last else " on"
        return f"every {_nth(step)}{noun} from {_name(first, kind)}{until}{tail}"
    named = "" if kind.names else f"{noun}s " if last else f"{noun} "
    return f"{named}{_name(first, kind)}{f' to {_name(last, kind)}' if last else ''}{tail}"


def _nth(step: str) -> str:
    """Return the step as an ordinal and a space; empty for a step of one."""
    number = int(step or 1)
    if number == 1:
        return ""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending} "


def _name(word: str, kind: FieldKind) -> str:
    if not kind.names:
        return str(int(word))
    number = int(word) if word.isdigit() else kind.low + kind.names.index(word)
    return _WEEKDAYS[number] if kind is DAY_OF_WEEK else _MONTHS[number - 1]


def dst_effects(entry: ZonedCron, since: int, at: int) -> tuple[str, ...]:
    """Return the notes on an occurrence, and on times skipped since the one before, in seconds since 1970."""
    of = zone(entry.zone_name)
    span = of.span_at(at)
    notes = [
        note
        for index in range(of.span_at(since), span + 1)
        if index and since < of.starts[index]
        for note in _gap_notes(entry, of, index, at)
    ]
    return (*notes, *_overlap_notes(entry, of, span, at))


def _gap_notes(entry: ZonedCron, of: Zone, index: int, at: int) -> list[str]:
    """Return the note on local times in the gap at the start of span `index`."""
    start = of.starts[index]
    before, after = start + of.offsets[index - 1], start + of.offsets[index]
    first = following(entry.fields, before)
    if first >= after:
        return []
    last = preceding(entry.fields, after - 1)
    times = f"{_clock(first)} does" if first == last else f"{_clock(first)} to {_clock(last, first)} do"
    correction = after - before > CORRECTION
    shifts = entry.gap is DstGap.SHIFT_FORWARD and not correction
    effect = f"fires at {_clock(after, first)} instead" if shifts else "skipped"
    cause = "clock correction" if correction else "DST gap"
    return [f"{times} not exist: {effect} ({cause} {_clock(before, first)} to {_clock(after, first)})"]


def _overlap_notes(entry: ZonedCron, of: Zone, span: int, at: int) -> list[str]:
    """Return the note on an occurrence whose local time occurs twice."""
    local = at + of.offsets[span]
    earlier = local - of.offsets[span - 1] if span else FOREVER
    if span and earlier < of.starts[span]:
        return [f"{_clock(local)} occurs twice: {_passes(entry, ('second', 'first'), earlier)} (DST overlap)"]
    if span + 1 < len(of.starts):
        later = local - of.offsets[span + 1]
        if later >= of.starts[span + 1]:
            return [f"{_clock(local)} occurs twice: {_passes(entry, ('first', 'second'), later)} (DST overlap)"]
    return []


def _passes(entry: ZonedCron, passes: tuple[str, str], other: int) -> str:
    """Return the effect on both passes of a local time: on this one, then on the one at `other`."""
    this, that = passes
    if entry.following(other) == other:
        return f"fires both times, and this is the {this}"
    return f"fires the {this} time, and the {that} at {at_second(other):%H:%M} UTC is skipped"


def _clock(local: int, beside: int | None = None) -> str:
    """Format a local time, without its date if `beside` is on the same day."""
    shown = at_second(local)
    day = "" if beside is not None and local // 86_400 == beside // 86_400 else f"{shown:%Y-%m-%d} "
    return f"{day}{shown:%H:%M:%S}" if shown.second else f"{day}{shown:%H:%M}"


@dataclass(frozen=True, slots=True)
class MarkedOccurrence:
    """An occurrence with its notes on clock changes.

    Args:
        at: UTC.
        local: The same instant with the zone's offset and abbreviation at that time.
        notes: One sentence for each effect; none if no clock change is near.
    """

    at: datetime
    local: datetime
    notes: tuple[str, ...]


def describe(
    expression: str,
    timezone: str,
    *,
    dst_gap: str = DstGap.SHIFT_FORWARD,
    dst_overlap: str = DstOverlap.FIRST,
) -> str:
    """Describe an expression in English. An ``H`` has no value here, since there is no job.

    >>> describe("0 9 * * 1-5", "UTC")
    'at 09:00, on Monday to Friday, in time zone UTC.'
    """
    fields = parse_cron(expression, hash_key=b"any")
    of = zone(fields.timezone or timezone)
    text = f"{describe_times(expression, timezone)}."
    gap, overlap = choice(dst_gap, DstGap, "dst_gap"), choice(dst_overlap, DstOverlap, "dst_overlap")
    if len(set(of.offsets)) == 1:
        return text
    return f"{text} {_WALL_CLOCK if fields.follows_wall_clock else f'{_GAP[gap]} {_OVERLAP[overlap]}'}"


def describe_times(expression: str, timezone: str) -> str:
    """Describe the times of an expression as a clause, without the effects of clock changes."""
    fields = parse_cron(expression, hash_key=b"any")
    of = zone(fields.timezone or timezone)
    words = fields.expression.split()
    second, minute, hour, by_date, month, by_week = words if fields.has_seconds else ["0", *words]
    return f"{time_words(second, minute, hour)}, {day_words(by_date, month, by_week)}, in time zone {of.name}"


def marked_occurrences(
    expression: str,
    timezone: str,
    after: datetime,
    n: int = 10,
    *,
    dst_gap: str = DstGap.SHIFT_FORWARD,
    dst_overlap: str = DstOverlap.FIRST,
    hash_key: bytes | None = None,
) -> list[MarkedOccurrence]:
    """Return the next `n` occurrences, strictly later than `after`, each with notes on clock changes.

    Times that a clock change skipped are noted at the occurrence that follows.
    """
    zone(timezone)
    gap, overlap = choice(dst_gap, DstGap, "dst_gap"), choice(dst_overlap, DstOverlap, "dst_overlap")
    entry = zoned_cron(expression, timezone, gap, overlap, hash_key)
    found = occurrences_after(CronSchedule((entry,)), after, n)
    since = [after, *found]
    return [
        MarkedOccurrence(at, to_zone(at, entry.zone_name), dst_effects(entry, whole_second(earlier), whole_second(at)))
        for earlier, at in zip(since, found, strict=False)
    ]


def to_zone(at: datetime, zone_name: str) -> datetime:
    """Return an instant with the zone's offset and abbreviation at that time.

    >>> from datetime import UTC
    >>> to_zone(datetime(2026, 7, 1, tzinfo=UTC), "Europe/Berlin").isoformat()
    '2026-07-01T02:00:00+02:00'
    """
    of = zone(zone_name)
    span = of.span_at(whole_second(at))
    return at.astimezone(timezone(timedelta(seconds=of.offsets[span]), of.abbreviations[span]))
