"""Compares the library with the brute-force evaluator, window by window, and counts what was compared."""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random

from tests.schedules.brute_force import occurrences, pinned_zone, wall_clock
from tests.schedules.expressions import any_expression
from tidewheel.schedules.parse import parse_schedule
from tidewheel.schedules.schedule import Schedule
from tidewheel.schedules.zones import zone, zone_names

FIRST, LAST = datetime(1970, 1, 1, tzinfo=UTC), datetime(2041, 1, 1, tzinfo=UTC)
AROUND = timedelta(hours=48)
SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
EXPRESSIONS_PER_WINDOW = 3
PROBES_PER_EXPRESSION = 6


@dataclass
class Tally:
    """The comparisons, and every difference that was found."""

    zones: set[str] = field(default_factory=set[str])
    windows: int = 0
    expressions: int = 0
    occurrences: int = 0
    probes: int = 0
    differences: list[str] = field(default_factory=list[str])

    def __str__(self) -> str:
        return (
            f"{len(self.zones)} zones, {self.windows} windows, {self.expressions} expressions, "
            f"{self.occurrences} occurrences, {self.probes} probes: {len(self.differences)} differences"
        )


def transitions() -> list[tuple[str, datetime]]:
    """Every change of every zone's clock from 1970 to 2040. Only where to look comes from the library."""
    found: list[tuple[str, datetime]] = []
    for name in sorted(zone_names()):
        inside = (start for start in zone(name).starts if FIRST.timestamp() <= start < LAST.timestamp())
        found += [(name, datetime.fromtimestamp(start, UTC)) for start in inside]
    return found


def compare_around(random: Random, name: str, change: datetime, tally: Tally) -> None:
    """Expressions aimed at the 96 hours around a clock change; one in twelve to the second."""
    to_second = random.random() < 1 / 12
    odd = _odd_seconds(name, change)
    around = timedelta(hours=2) if to_second or odd else AROUND
    local = change.astimezone(pinned_zone(name)).replace(tzinfo=None)
    near = local - MINUTE * random.randint(0, 90) if random.random() < 0.5 else local
    step = SECOND if to_second or odd else MINUTE
    _compare(random, name, (change - around, change + around), step=step, near=near, tally=tally, seconds=to_second)


def compare_between(random: Random, name: str, days: int, tally: Tally) -> None:
    """Expressions over some weeks anywhere between 1970 and 2040."""
    start = FIRST + MINUTE * random.randrange(0, (LAST - FIRST) // MINUTE - days * 1440)
    start = start.replace(second=0)
    if _odd_seconds(name, start):
        return
    near = (start + timedelta(days=days // 2)).replace(tzinfo=None)
    _compare(random, name, (start, start + timedelta(days=days)), step=MINUTE, near=near, tally=tally, seconds=False)


def _odd_seconds(name: str, instant: datetime) -> bool:
    """Return True if the zone's minutes differ from UTC's then (Liberia until 1972)."""
    zone_then = pinned_zone(name)
    beside = (instant - timedelta(days=1), instant, instant + timedelta(days=1))
    offsets = [each.astimezone(zone_then).utcoffset() or timedelta(0) for each in beside]
    return any(offset % MINUTE for offset in offsets) or instant.second > 0


def _compare(
    random: Random,
    name: str,
    window: tuple[datetime, datetime],
    *,
    step: timedelta,
    near: datetime,
    tally: Tally,
    seconds: bool,
) -> None:
    start, end = window
    margin = timedelta(hours=4)  # longer than any jump that leaves something to remember
    readings = wall_clock(name, start - margin, end + margin, step)
    tally.zones.add(name)
    tally.windows += 1
    for _ in range(EXPRESSIONS_PER_WINDOW):
        expression = any_expression(random, near, seconds=seconds)
        gap = random.choice(["shift_forward", "shift_forward", "skip"])
        overlap = random.choice(["first", "first", "second", "both"])
        expected = [at for at in occurrences(readings, expression, gap, overlap) if start < at <= end]
        schedule = parse_schedule(
            {
                "kind": "cron",
                "expressions": [expression],
                "timezone": name,
                "dst_gap": gap,
                "dst_overlap": overlap,
            }
        )
        wrong = _differences(random, schedule, expected, start, end)
        tally.expressions += 1
        tally.occurrences += len(expected)
        tally.probes += PROBES_PER_EXPRESSION
        if wrong:
            tally.differences.append(f"{expression!r} {name} {gap} {overlap} {start} to {end}: {wrong}")


def _differences(
    random: Random, schedule: Schedule, expected: list[datetime], start: datetime, end: datetime
) -> list[str]:
    wrong: list[str] = []
    found = list(schedule.between(start, end))
    if found != expected:
        odd = sorted({*found} ^ {*expected})[:4]
        wrong.append("between: " + ", ".join(f"{at} by {'library' if at in found else 'brute force'}" for at in odd))
    if _backwards(schedule, start, end, len(expected)) != expected:
        wrong.append("before() does not walk back the same way")
    if schedule.count(start, end, 10**9) != (len(expected), True):
        wrong.append(f"count: {schedule.count(start, end, 10**9)} for {len(expected)}")
    for _ in range(PROBES_PER_EXPRESSION):
        probe = start + timedelta(seconds=random.randrange(int((end - start).total_seconds())))
        later, earlier = bisect_right(expected, probe), bisect_left(expected, probe)
        if later < len(expected) and schedule.after(probe) != expected[later]:
            wrong.append(f"after({probe})")
        if earlier and schedule.before(probe) != expected[earlier - 1]:
            wrong.append(f"before({probe})")
    return wrong


def _backwards(schedule: Schedule, start: datetime, end: datetime, most: int) -> list[datetime]:
    found: list[datetime] = []
    at = schedule.before(end + SECOND)
    while at is not None and at > start and len(found) <= most:
        found.append(at)
        at = schedule.before(at)
    return found[::-1]
