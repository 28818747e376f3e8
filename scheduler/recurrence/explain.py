"""Says in words what a cron expression means, and marks what daylight saving does to its next instants."""

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from tidewheel.scheduler.recurrence.cron import parse_cron
from tidewheel.scheduler.recurrence.cron_schedule import CronSchedule, localised
from tidewheel.scheduler.recurrence.dst_effects import effects
from tidewheel.scheduler.recurrence.instants import whole_second
from tidewheel.scheduler.recurrence.localise import DstGap, DstOverlap, choice
from tidewheel.scheduler.recurrence.occurrences import following
from tidewheel.scheduler.recurrence.words import day_words, time_words
from tidewheel.scheduler.recurrence.zones import zone

_WALL_CLOCK = (
    "Its minute or hour field begins with *, so it follows the wall clock: it fires in both passes of an hour that "
    "comes twice, and nothing is made up for an hour that is left out."
)
_GAP = {
    DstGap.SHIFT_FORWARD: "a time that is left out by the clock is made up at the first instant after",
    DstGap.SKIP: "a time that is left out by the clock is skipped",
}
_OVERLAP = {
    DstOverlap.FIRST: "one that comes twice fires the first time",
    DstOverlap.SECOND: "one that comes twice fires the second time",
    DstOverlap.BOTH: "one that comes twice fires both times",
}


@dataclass(frozen=True, slots=True)
class MarkedOccurrence:
    """One occurrence with what the clock change does to it.

    Args:
        at: UTC.
        local: The same instant with the zone's offset and abbreviation then.
        notes: One sentence for each effect; none when no clock change is near.
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
    """The expression in words; an ``H`` stays "the job's own", since no job is at hand.

    >>> describe("0 9 * * 1-5", "UTC")
    'at 09:00, on Monday to Friday, by the clock of UTC.'

    Raises:
        ScheduleRefused: Expression, zone or choice cannot be read.
    """
    fields = parse_cron(expression, hash_key=b"any")
    of = zone(fields.timezone or timezone)
    words = fields.expression.split()
    second, minute, hour, by_date, month, by_week = words if fields.has_seconds else ["0", *words]
    said = f"{time_words(second, minute, hour)}, {day_words(by_date, month, by_week)}, by the clock of {of.name}."
    gap, overlap = choice(dst_gap, DstGap, "dst_gap"), choice(dst_overlap, DstOverlap, "dst_overlap")
    if len(set(of.offsets)) == 1:
        return said
    rule = _WALL_CLOCK if fields.follows_wall_clock else f"It names times of day: {_GAP[gap]}, {_OVERLAP[overlap]}."
    return f"{said} {rule}"


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
    """The next `n` occurrences, strictly later than `after`, each with every effect of a clock change noted.

    What a clock change swallowed since the occurrence before is noted at the one that follows.

    Raises:
        ScheduleRefused: Expression, zone or choice cannot be read.
    """
    zone(timezone)
    gap, overlap = choice(dst_gap, DstGap, "dst_gap"), choice(dst_overlap, DstOverlap, "dst_overlap")
    entry = localised(expression, timezone, gap, overlap, hash_key)
    found = following(CronSchedule((entry,)), after, n)
    since = [after, *found]
    return [
        MarkedOccurrence(at, on_clock(at, entry.zone_name), effects(entry, whole_second(earlier), whole_second(at)))
        for earlier, at in zip(since, found, strict=False)
    ]


def on_clock(at: datetime, zone_name: str) -> datetime:
    """An instant with its zone's offset and abbreviation then.

    >>> from datetime import UTC
    >>> on_clock(datetime(2026, 7, 1, tzinfo=UTC), "Europe/Berlin").isoformat()
    '2026-07-01T02:00:00+02:00'
    """
    of = zone(zone_name)
    span = of.span_at(whole_second(at))
    return at.astimezone(timezone(timedelta(seconds=of.offsets[span]), of.abbreviations[span]))
