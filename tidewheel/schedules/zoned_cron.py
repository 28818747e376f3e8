"""Sets a cron expression into a zone: which instants its local times are.

The rule is Debian cron's. An entry of fixed time that falls into a gap of the wall clock is made up once, at the
first instant after the gap; in an overlap it fires in the first pass only. An entry whose minute or hour field
begins with ``*`` follows the wall clock: every matching local time there is, in both passes, nothing made up. A
jump of more than three hours is a correction of the clock, which is believed as it stands.

Every span of constant offset becomes a stretch of local time in which matches count; that, and the one instant at
which a gap is made up, is the whole rule. No zone has two jumps so close that their stretches touch
(a test sees to it).
Source: cron(8) of Debian, "Notes"; read with the daemon's own behaviour under a faked clock.
"""

from bisect import bisect_right
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import TypeVar

from tidewheel.errors import ScheduleRefused
from tidewheel.schedules.cron_fields import CronFields
from tidewheel.schedules.cron_matching import count_matches, following, preceding
from tidewheel.schedules.zones import FOREVER, zone

CORRECTION = 3 * 3600
"""Seconds: a longer jump of the wall clock is no daylight saving but a correction (cron(8), Debian)."""


class DstGap(StrEnum):
    """What becomes of a fixed-time entry whose local time does not exist."""

    SHIFT_FORWARD = "shift_forward"
    SKIP = "skip"


class DstOverlap(StrEnum):
    """In which pass a fixed-time entry fires whose local time exists twice."""

    FIRST = "first"
    SECOND = "second"
    BOTH = "both"


_Choice = TypeVar("_Choice", bound=StrEnum)


def choice(text: object, of: type[_Choice], path: str) -> _Choice:
    """The choice of that word.

    Raises:
        ScheduleRefused: There is no such choice.
    """
    try:
        return of(str(text))
    except ValueError:
        problem = f"{str(text)[:64]!r} is not known"
        raise ScheduleRefused(problem, f"write one of {', '.join(of)}", path) from None


@dataclass(frozen=True, slots=True)
class OffsetSpans:
    """A zone's spans as stretches of local time: matches in ``[lows[i], highs[i])`` count, at ``offsets[i]``.

    Args:
        starts: As in `Zone`: seconds since 1970 UTC at which each span begins.
        entries: Where to look from when a span is entered: its low, or the beginning of the gap before it when what
            falls into that gap is made up at the span's start.
    """

    starts: tuple[int, ...]
    offsets: tuple[int, ...]
    lows: tuple[int, ...]
    highs: tuple[int, ...]
    entries: tuple[int, ...]


class ZonedCron:
    """One expression in one zone. Instants are whole seconds since 1970-01-01 UTC.

    Args:
        fields: The expression, read.
        zone_name: The zone it is read in; a zone named in the expression has been preferred by the caller.
        gap: For an entry of fixed time; one that follows the wall clock knows no choice.
        overlap: Likewise.

    >>> from tidewheel.schedules.cron_parser import parse_cron
    >>> berlin = ZonedCron(parse_cron("30 2 * * *"), "Europe/Berlin", DstGap.SHIFT_FORWARD, DstOverlap.FIRST)
    >>> berlin.following(0)
    5400
    """

    __slots__ = ("_hash", "_last_lookup", "_stretches", "fields", "gap", "overlap", "zone_name")

    def __init__(self, fields: CronFields, zone_name: str, gap: DstGap, overlap: DstOverlap) -> None:
        self.fields, self.zone_name = fields, zone_name
        self.gap = None if fields.follows_wall_clock else gap
        self.overlap = None if fields.follows_wall_clock else overlap
        self._stretches = offset_spans(zone_name, self.gap, self.overlap)
        self._hash = hash(self._key)
        self._last_lookup = (-FOREVER, -FOREVER)  # input and result: one tuple, since threads share it

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ZonedCron) and self._key == other._key

    def __hash__(self) -> int:
        return self._hash

    @property
    def _key(self) -> tuple[CronFields, str, DstGap | None, DstOverlap | None]:
        return self.fields, self.zone_name, self.gap, self.overlap

    def following(self, second: int) -> int:
        """The first occurrence at or after `second`; `FOREVER` when there is none."""
        asked, answer = self._last_lookup
        if asked != second:
            answer = self._search(second)
            self._last_lookup = (second, answer)
        return answer

    def _search(self, second: int) -> int:
        spans, fields = self._stretches, self.fields
        index = bisect_right(spans.starts, second) - 1
        entered = second == spans.starts[index]
        local = spans.entries[index] if entered else max(second + spans.offsets[index], spans.lows[index])
        match = following(fields, local)
        while True:
            if match < spans.lows[index]:
                return spans.starts[index]
            if match < spans.highs[index]:
                return match - spans.offsets[index]
            index += 1
            if index == len(spans.starts):
                return FOREVER
            entry = spans.entries[index]
            if not local <= entry <= match:  # otherwise nothing matches before `match`: no need to look again
                local, match = entry, following(fields, entry)

    def preceding(self, second: int) -> int:
        """The last occurrence at or before `second`; ``-FOREVER`` when there is none."""
        spans, fields = self._stretches, self.fields
        index = bisect_right(spans.starts, second) - 1
        local = min(second + spans.offsets[index], spans.highs[index] - 1)
        match = preceding(fields, local)
        while True:
            if match >= spans.lows[index]:
                return match - spans.offsets[index]
            if match >= spans.entries[index]:
                return spans.starts[index]
            index -= 1
            if index < 0:
                return -FOREVER
            end = spans.highs[index] - 1
            if not match <= end <= local:
                local, match = end, preceding(fields, end)

    def count(self, first: int, last: int) -> int:
        """How many occurrences lie from `first` to `last`, both included."""
        spans, found = self._stretches, 0
        for index in range(max(bisect_right(spans.starts, first) - 1, 0), bisect_right(spans.starts, last)):
            low, entry = spans.lows[index], spans.entries[index]
            found += count_matches(
                self.fields,
                max(low, first + spans.offsets[index]),
                min(spans.highs[index], last + 1 + spans.offsets[index]),
            )
            if entry < low and spans.starts[index] >= first and following(self.fields, entry) < low:
                found += not count_matches(
                    self.fields, low, low + 1
                )  # else the end of the gap is an occurrence already
        return found


@lru_cache(maxsize=4096)  # some 600 zones, each with the two or three choices that are in use
def offset_spans(name: str, gap: DstGap | None, overlap: DstOverlap | None) -> OffsetSpans:
    """The zone of that name cut into stretches for entries of fixed time; both None: for those on the wall clock.

    Raises:
        ScheduleRefused: tzdata has no such zone.
    """
    of = zone(name)
    lows = [1 - FOREVER, *(start + offset for start, offset in zip(of.starts[1:], of.offsets[1:], strict=True))]
    highs = [*(start + offset for start, offset in zip(of.starts[1:], of.offsets, strict=False)), FOREVER]
    entries = lows.copy()
    for index in range(1, len(of.starts)):
        jump = of.offsets[index] - of.offsets[index - 1]
        if abs(jump) > CORRECTION:
            continue
        if jump > 0 and gap is DstGap.SHIFT_FORWARD:
            entries[index] = highs[index - 1]
        elif jump < 0 and overlap is DstOverlap.FIRST:
            entries[index] = lows[index] = highs[index - 1]
        elif jump < 0 and overlap is DstOverlap.SECOND:
            highs[index - 1] = lows[index]
    return OffsetSpans(of.starts, of.offsets, tuple(lows), tuple(highs), tuple(entries))
