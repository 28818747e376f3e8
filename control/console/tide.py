"""The tide line as shapes: the past is left of now; the rows of jobs below draw what comes.

Success is muted and above the axis, failure is below it. Skips and cancellations are lozenges on it, in bins without a
bar. A place along the axis is a percentage, a height is in pixels: so a plot fits every width and stretches nothing.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from tidewheel.control.console.axis import Axis, Tick
from tidewheel.control.console.words import counted, number

_LEAST = 3.0  # pixels: one failure beside 4,000 successes stays visible
_FILLED = 0.8  # of a bin
_FREE = 8  # pixels between the highest bar and the axis above it
_FEW = 10  # failures of which a bin fills its height
_STRIP, _THIN = 4.0, 0.3  # the height of a frozen time in pixels, its least width in percent

Span = tuple[datetime, datetime, str]
"""A frozen time with its scope."""
Link = Callable[[datetime, datetime], str | None]


@dataclass(frozen=True, slots=True)
class Size:
    """The heights of a plot in pixels; one bar shows `joined` bins."""

    above: int
    below: int
    foot: int
    joined: int = 1

    @property
    def height(self) -> int:
        """The whole height."""
        return self.above + self.below + self.foot


WIDE, NARROW = Size(72, 20, 0), Size(40, 14, 20, joined=2)  # the wide one is below the axis of a grid


@dataclass(frozen=True, slots=True)
class Counts:
    """The counts of a bin: ended runs by state, and jobs to come."""

    succeeded: int = 0
    failed: int = 0
    timed_out: int = 0
    cancelled: int = 0
    skipped: int = 0
    coming: int = 0

    @property
    def bad(self) -> int:
        """Failures of both kinds."""
        return self.failed + self.timed_out

    @property
    def undone(self) -> int:
        """Runs that did nothing to their end."""
        return self.cancelled + self.skipped

    def __add__(self, other: "Counts") -> "Counts":
        """Return the sum."""
        return Counts(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))

    def words(self) -> str:
        """Return the counts that are not 0."""
        named = {name: getattr(self, name) for name in self.__slots__}
        return ", ".join(f"{value:,} {name.replace('_', ' ')}" for name, value in named.items() if value)


class Bar(NamedTuple):
    """A rectangle: `x` and `width` in percent, `y` and `height` in pixels."""

    family: str
    x: float
    y: float
    width: float
    height: float


class Column(NamedTuple):
    """One bin with something in it, and the middle of its lozenge along the axis."""

    at: datetime
    counts: Counts
    words: str
    href: str | None
    bars: Sequence[Bar]
    diamond: float | None = None


class Tide(NamedTuple):
    """A tide line.

    Args:
        columns: The bins with something in them, the earliest first.
        top: The begin of the highest bar, and its words.
    """

    size: Size
    columns: Sequence[Column]
    ticks: Sequence[Tick]
    now_x: float
    top: tuple[datetime, str] | None
    frozen: Sequence[Bar] = ()


def tide(along: Axis, bins: Sequence[Counts], size: Size, link: Link, *, frozen: Sequence[Span] = ()) -> Tide:
    """Return the shapes of a tide line."""
    joined = _joined(along, bins, size.joined)
    most = max((counts.succeeded for _, _, counts in joined), default=0)
    worst = max((counts.bad for _, _, counts in joined), default=0)
    scale = _Scale(size, along, most, max(worst, _FEW))
    columns = [scale.column(first, last, counts, link) for first, last, counts in joined if counts != Counts()]
    peak = max(columns, key=lambda each: each.counts.succeeded, default=None)
    top = None
    if peak is not None and peak.counts.succeeded:
        top = (peak.at, number(peak.counts.succeeded))
    y, spans = size.above + size.below - _STRIP, [(along.x(since), along.x(until)) for since, until, _ in frozen]
    strips = [Bar("frozen", left, y, round(max(right - left, _THIN), 3), _STRIP) for left, right in spans]
    return Tide(size, columns, list(along.ticks()), along.x(along.until), top, strips)


def sentence(along: Axis, bins: Sequence[Counts], *, coming_at_least: bool = False, frozen: Sequence[Span] = ()) -> str:
    """Return the sentence of a tide line: what ended, failed, was frozen, and comes."""
    past, total = bins[: along.behind], sum(bins, Counts())
    ended = total.succeeded + total.bad + total.undone
    parts = [f"Runs by {along.bins.bin}, last {along.bins.words}: "]
    if not ended:
        parts.append("none ended.")
    else:
        at = max(range(len(past)), key=lambda each: past[each].succeeded)
        parts.append(f"{total.succeeded:,} succeeded")
        if past[at].succeeded:
            parts.append(f", most {past[at].succeeded:,} at {along.clock(along.edges[at])}")
        parts.append("; " + (f"{total.bad:,} failed" if total.bad else "none failed"))
        if total.bad > 1:
            first = next(each for each, counts in enumerate(past) if counts.bad)
            parts.append(f", all after {along.clock(along.edges[first])}")
        if total.undone:
            parts.append(f"; {total.undone:,} skipped or cancelled")
        parts.append(".")
    for since, until, scope in frozen[-3:]:
        begin, end = along.clock(since), along.clock(until)
        during = f"at {begin}" if begin == end else f"from {begin} to {end}"
        parts.append(f" A freeze of {scope} was in force {during}.")
    if total.coming or coming_at_least:
        many = f"{total.coming:,}+ jobs" if coming_at_least else counted(total.coming, "job")
        parts.append(f" Upcoming: {many} until {along.clock(along.end)}.")
    return "".join(parts)


@dataclass(frozen=True, slots=True)
class _Scale:
    size: Size
    along: Axis
    most: int
    worst: int

    def column(self, first: int, last: int, counts: Counts, link: Link) -> Column:
        x, width = first * self.along.width, (last - first) * self.along.width
        begin, end = self.along.edges[first], self.along.edges[last]
        words = f"{self.along.clock(begin)}: {counts.words()}"
        bars = list(self._bars(x, width, counts))
        middle = None if bars or not counts.undone else round(x + width / 2, 3)
        return Column(begin, counts, words, link(begin, end), bars, middle)

    def _bars(self, x: float, width: float, counts: Counts) -> Iterator[Bar]:
        above = float(self.size.above)
        if counts.succeeded:
            height = _height(counts.succeeded, self.most, self.size.above - _FREE)
            yield _bar("good", x, above - height, width, height)
        if counts.bad:
            yield _bar("bad", x, above + 1, width, _height(counts.bad, self.worst, self.size.below - 4))


def _bar(family: str, x: float, y: float, width: float, height: float) -> Bar:
    return Bar(family, round(x + width * (1 - _FILLED) / 2, 3), round(y, 1), round(width * _FILLED, 3), height)


def _height(count: int, most: int, pixels: int) -> float:
    """Return a height by the square root of a count, so that a few beside thousands are seen."""
    return max(round(math.sqrt(count / most) * pixels, 1), _LEAST)


def _joined(along: Axis, bins: Sequence[Counts], joined: int) -> list[tuple[int, int, Counts]]:
    """Return the first and the end of each group of bins, and its sum; none holds the past and what comes."""
    behind = along.behind
    starts = [*range(0, behind, joined), *range(behind, len(bins), joined)]
    ends = [*starts[1:], len(bins)]
    return [(first, end, sum(bins[first:end], Counts())) for first, end in zip(starts, ends, strict=True)]
