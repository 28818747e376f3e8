"""The occurrences of cron expressions in their zones.

The rule is Debian cron's. An expression of fixed times fires once for all times in a gap of the wall clock, at the
first instant after the gap. In an overlap it fires in the first pass only. An expression whose minute or hour field
begins with ``*`` follows the wall clock. It fires at every matching local time, in both passes, and gaps add nothing. A
jump of more than three hours is a correction of the clock, and local times are used as they are.

Every span of constant offset becomes a span of local time in which matches count. These spans, and the one instant
after each gap, are the whole rule. No zone has two jumps so close that their spans touch, as a test proves.

Source: cron(8) of Debian, "Notes"; compared with the daemon's own behaviour under a faked clock.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from itertools import islice
from typing import TypeVar

from tidewheel.errors import ScheduleRefused
from tidewheel.schedules.cron_fields import CronFields, count_matches, following, preceding
from tidewheel.schedules.cron_parser import parse_cron, uses_hash
from tidewheel.schedules.schedule import UNBOUNDED, Bounds, at_second, iterate, next_second, whole_second
from tidewheel.schedules.zones import FOREVER, zone

CORRECTION = 3 * 3600
"""Seconds: a longer jump of the wall clock is a correction, not daylight saving (cron(8), Debian)."""


class DstGap(StrEnum):
    """The policy for a fixed time that does not exist."""

    SHIFT_FORWARD = "shift_forward"
    SKIP = "skip"


class DstOverlap(StrEnum):
    """The policy for a fixed time that occurs twice."""

    FIRST = "first"
    SECOND = "second"
    BOTH = "both"


_Choice = TypeVar("_Choice", bound=StrEnum)


def choice(text: object, of: type[_Choice], path: str) -> _Choice:
    """Parse a choice."""
    try:
        return of(str(text))
    except ValueError:
        problem = f"{str(text)[:64]!r} is not known"
        raise ScheduleRefused(problem, f"write one of {', '.join(of)}", path) from None


@dataclass(frozen=True, slots=True)
class OffsetSpans:
    """A zone's spans in local time: matches in ``[lows[i], highs[i])`` count, at ``offsets[i]``.

    Args:
        starts: As in `Zone`: seconds since 1970 UTC at which each span begins.
        offsets: Seconds east of UTC.
        lows: The first local second of each span that counts.
        highs: The local second after the last one that counts.
        entries: The local second from which a search enters a span: its low, or the start of the gap before it if times
            in that gap fire at the span's start.
    """

    starts: tuple[int, ...]
    offsets: tuple[int, ...]
    lows: tuple[int, ...]
    highs: tuple[int, ...]
    entries: tuple[int, ...]


class ZonedCron:
    """One expression in one zone. Instants are whole seconds since 1970-01-01 UTC.

    Args:
        gap: For fixed times; ignored by an expression that follows the wall clock.
        overlap: For fixed times; ignored likewise.

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
        """Return the first occurrence at or after `second`; `FOREVER` if there is none."""
        last, answer = self._last_lookup
        if last != second:
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
            if not local <= entry <= match:  # otherwise nothing matches before `match`: no new search
                local, match = entry, following(fields, entry)

    def preceding(self, second: int) -> int:
        """Return the last occurrence at or before `second`; ``-FOREVER`` if there is none."""
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
        """Count the occurrences from `first` to `last`, both inclusive."""
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
    """Return the local spans of a zone for fixed times; without policies for the wall clock."""
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


@dataclass(frozen=True, slots=True)
class CronSchedule:
    """The union of its expressions' occurrences: an instant of two of them is one occurrence.

    Args:
        entries: Expressions in their zones, shared among all schedules that have them.
    """

    entries: tuple[ZonedCron, ...]
    bounds: Bounds = UNBOUNDED
    hashed: bool = False

    def after(self, instant: datetime) -> datetime | None:
        """Return the first occurrence strictly later; None past the end, or past the year `LAST_YEAR`."""
        second = whole_second(instant) + 1
        start_at = self.bounds.start_at
        if start_at is not None:
            second = max(second, next_second(start_at))
        found = min(entry.following(second) for entry in self.entries)
        if found == FOREVER:
            return None
        occurrence = at_second(found)
        end_at = self.bounds.end_at
        return occurrence if end_at is None or occurrence <= end_at else None

    def before(self, instant: datetime) -> datetime | None:
        """Return the last occurrence strictly earlier; None before the first."""
        second = next_second(instant) - 1
        end_at = self.bounds.end_at
        if end_at is not None:
            second = min(second, whole_second(end_at))
        found = max(entry.preceding(second) for entry in self.entries)
        if found == -FOREVER:
            return None
        occurrence = at_second(found)
        start_at = self.bounds.start_at
        return occurrence if start_at is None or occurrence >= start_at else None

    def between(self, start: datetime, end: datetime) -> Iterator[datetime]:
        """Yield the occurrences in ``(start, end]``."""
        return iterate(self, start, end)

    def count(self, start: datetime, end: datetime, limit: int) -> tuple[int, bool]:
        """Count the occurrences in ``(start, end]``, up to `limit`; False if there are more.

        One expression is counted month by month, several by visiting at most `limit` occurrences.
        """
        if len(self.entries) == 1:
            first, last = whole_second(start) + 1, whole_second(end)
            if self.bounds.start_at is not None:
                first = max(first, next_second(self.bounds.start_at))
            if self.bounds.end_at is not None:
                last = min(last, whole_second(self.bounds.end_at))
            found = self.entries[0].count(first, last) if first <= last else 0
        else:
            found = sum(1 for _ in islice(self.between(start, end), max(limit, 0) + 1))
        return (found, True) if found <= limit else (max(limit, 0), False)


def zoned_cron(
    expression: str, timezone: str, gap: DstGap, overlap: DstOverlap, hash_key: bytes | None = None
) -> ZonedCron:
    """Return the expression in its zone: one object for the same arguments.

    An inline zone of the expression is preferred to `timezone`.
    """
    return _zoned_cron(expression, timezone, gap, overlap, hash_key if uses_hash(expression) else None)


@lru_cache(maxsize=8192)  # tens of thousands of jobs share a few hundred expressions; one search serves all of them
def _zoned_cron(expression: str, timezone: str, gap: DstGap, overlap: DstOverlap, hash_key: bytes | None) -> ZonedCron:
    fields = parse_cron(expression, hash_key=hash_key)
    return ZonedCron(fields, fields.timezone or timezone, gap, overlap)
