"""The time axis of every plot: bins with now in one of them, and places in percent of the width.

The edges of a window lie on bins, so ticks have even distances. From seven days on an axis counts local days: a day of
23 or of 25 hours is as wide as the others.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from enum import StrEnum
from typing import NamedTuple

LEAST_SPAN = timedelta(minutes=2)
"""The shortest time that a link zooms to."""

_DAY = timedelta(days=1)
_HALF_MINUTE = timedelta(seconds=30)
_FEW = 8  # bins before now on any axis


class Window(StrEnum):
    """The windows that a page offers."""

    TWO_MINUTES = "2m"
    TEN_MINUTES = "10m"
    HOUR = "1h"
    SIX_HOURS = "6h"
    DAY = "24h"
    WEEK = "7d"
    MONTH = "30d"
    QUARTER = "90d"


class _Bins(NamedTuple):
    """The bins of a window.

    Args:
        step: The length of a bin; None if it is a part of a local day.
        every: The distance of ticks: seconds, or local days.
    """

    words: str
    bin: str
    step: timedelta | None
    parts: int
    behind: int
    ahead: int
    every: int

    @property
    def length(self) -> timedelta:
        """The length of a bin on a day of 24 hours."""
        return self.step if self.step is not None else _DAY / self.parts


_WINDOWS = {
    Window.TWO_MINUTES: _Bins("2 minutes", "second", timedelta(seconds=1), 0, 120, 30, 30),
    Window.TEN_MINUTES: _Bins("10 minutes", "5 seconds", timedelta(seconds=5), 0, 120, 30, 120),
    Window.HOUR: _Bins("hour", "half minute", timedelta(seconds=30), 0, 120, 30, 900),
    Window.SIX_HOURS: _Bins("6 hours", "4 minutes", timedelta(minutes=4), 0, 90, 22, 3_600),
    Window.DAY: _Bins("24 hours", "quarter of an hour", timedelta(minutes=15), 0, 96, 24, 14_400),
    Window.WEEK: _Bins("7 days", "twelfth of a day", None, 12, 84, 21, 1),
    Window.MONTH: _Bins("30 days", "quarter of a day", None, 4, 120, 30, 5),
    Window.QUARTER: _Bins("90 days", "day", None, 1, 90, 22, 15),
}
GRID = {
    Window.HOUR: _Bins("hour", "minute", timedelta(minutes=1), 0, 60, 12, 600),
    Window.SIX_HOURS: _Bins("6 hours", "6 minutes", timedelta(minutes=6), 0, 60, 12, 3_600),
    Window.DAY: _Bins("24 hours", "half hour", timedelta(minutes=30), 0, 48, 12, 14_400),
    Window.WEEK: _Bins("7 days", "eighth of a day", None, 8, 56, 12, 1),
}
"""The bins of a grid."""
LIST = {
    Window.HOUR: _Bins("hour", "2 minutes", timedelta(minutes=2), 0, 30, 6, 1_200),
    Window.SIX_HOURS: _Bins("6 hours", "12 minutes", timedelta(minutes=12), 0, 30, 6, 7_200),
    Window.DAY: _Bins("24 hours", "hour", timedelta(hours=1), 0, 24, 6, 21_600),
    Window.WEEK: _Bins("7 days", "quarter of a day", None, 4, 28, 6, 2),
}
"""The bins of a list, where a plot is one column of several."""


class Tick(NamedTuple):
    """A mark below the axis.

    Args:
        shift: The clock change of the day that begins here, from seven days on.
    """

    x: float
    text: str
    shift: timedelta = timedelta(0)


@dataclass(frozen=True, slots=True)
class Axis:
    """A time axis.

    Args:
        edges: The begin of each bin, and the end of the last one.
        behind: The number of bins up to now, with that of now.
        bins: The bins of its window, in a plot or in a grid.
    """

    edges: Sequence[datetime]
    behind: int
    now: datetime
    zone: tzinfo
    window: Window
    bins: _Bins

    @property
    def begin(self) -> datetime:
        """The begin of the window."""
        return self.edges[0]

    @property
    def end(self) -> datetime:
        """The end of the window."""
        return self.edges[-1]

    @property
    def until(self) -> datetime:
        """The end of the bin of now."""
        return self.edges[self.behind]

    @property
    def zone_name(self) -> str:
        """The short name of its zone now, such as CET."""
        return f"{self.now.astimezone(self.zone):%Z}"

    @property
    def width(self) -> float:
        """The width of a bin, in percent."""
        return 100 / (len(self.edges) - 1)

    def bin_of(self, at: datetime) -> int | None:
        """Return the number of the bin of an instant; None outside of the window."""
        found = bisect_right(self.edges, at) - 1
        return found if 0 <= found < len(self.edges) - 1 else None

    def x(self, at: datetime) -> float:
        """Return the place of an instant in percent; an instant outside has the place of the nearer edge."""
        found = self.bin_of(at)
        if found is None:
            return 0.0 if at < self.begin else 100.0
        begin, end = self.edges[found], self.edges[found + 1]
        return round((found + (at - begin) / (end - begin)) * self.width, 3)

    def clock(self, at: datetime) -> str:
        """Return an instant as sentences about this axis name it."""
        local, step = at.astimezone(self.zone), self.bins.step
        if step is None:
            return f"{local:%a} {local.day} {local:%b %H:%M}"
        return f"{local:%H:%M:%S}" if step < _HALF_MINUTE else f"{local:%H:%M}"

    def ticks(self) -> Iterator[Tick]:
        """Yield the ticks, the earliest first."""
        bins = self.bins
        for at in self.edges[:-1]:
            local = at.astimezone(self.zone)
            if bins.step is not None:
                if (local.hour * 3_600 + local.minute * 60 + local.second) % bins.every == 0:
                    yield Tick(self.x(at), f"{local:%H:%M}" if bins.every % 60 == 0 else f"{local:%H:%M:%S}")
            elif at == _midnight(local.date(), self.zone) and local.toordinal() % bins.every == 0:
                shift = _midnight(local.date() + _DAY, self.zone) - at - _DAY
                text = f"{local:%a} {local.day}" if bins.every == 1 else f"{local.day} {local:%b}"
                yield Tick(self.x(at), text, shift)


def axis(
    window: Window,
    now: datetime,
    zone: tzinfo = UTC,
    *,
    whole: bool = False,
    windows: Mapping[Window, _Bins] = _WINDOWS,
) -> Axis:
    """Return the axis of a window.

    Args:
        whole: True to begin with a shorter bin, so that a window of less than seven days begins its length before now.
        windows: The bins of each window: `GRID` and `LIST` have fewer, for an hour to seven days.

    >>> hour = axis(Window.HOUR, datetime(2026, 11, 21, 22, 16, 10, tzinfo=UTC))
    >>> f"{hour.begin:%H:%M:%S} {hour.end:%H:%M:%S}", [tick.text for tick in hour.ticks()]
    ('21:16:30 22:31:30', ['21:30', '21:45', '22:00', '22:15', '22:30'])
    >>> hour.x(hour.until), hour.bin_of(hour.now)
    (80.0, 119)
    >>> f"{axis(Window.HOUR, hour.now, whole=True).begin:%H:%M:%S}"
    '21:16:10'
    """
    bins = windows[window]
    if bins.step is not None:
        shift = now.astimezone(zone).utcoffset() or timedelta(0)
        since = (now - datetime(1970, 1, 1, tzinfo=UTC) + shift) // bins.step + 1
        until = datetime(1970, 1, 1, tzinfo=UTC) - shift + since * bins.step
        edges = [until + at * bins.step for at in range(-bins.behind, bins.ahead + 1)]
        before = [now - bins.behind * bins.step] if whole else []
        return Axis([*before, *edges], len(before) + bins.behind, now, zone, window, bins)
    today = now.astimezone(zone).date()
    days_behind, days_ahead = bins.behind // bins.parts + 1, bins.ahead // bins.parts + 2
    found = [
        edge for day in range(-days_behind, days_ahead) for edge in _parts_of(today + day * _DAY, bins.parts, zone)
    ]
    place = bisect_right(found, now)
    return Axis(found[place - bins.behind : place + bins.ahead + 1], bins.behind, now, zone, window, bins)


def _parts_of(day: date, parts: int, zone: tzinfo) -> list[datetime]:
    begin = _midnight(day, zone)
    length = _midnight(day + _DAY, zone) - begin
    return [begin + length * part / parts for part in range(parts)]


def _midnight(day: date, zone: tzinfo) -> datetime:
    return datetime.combine(day, time(0), zone).astimezone(UTC)


def axis_between(begin: datetime, end: datetime, now: datetime, zone: tzinfo = UTC) -> Axis:
    """Return the axis of a time, widened to the bins of the smallest window that holds it.

    >>> ten, three = datetime(2026, 11, 21, 10, 0, 10, tzinfo=UTC), datetime(2026, 11, 21, 15, tzinfo=UTC)
    >>> found = axis_between(ten, three, datetime(2026, 11, 22, tzinfo=UTC))
    >>> f"{found.begin:%H:%M} {found.end:%H:%M}", found.window.value, found.behind == len(found.edges) - 1
    ('10:00 15:00', '6h', True)
    """
    lengths = {each: bins.length * (bins.behind + bins.ahead) for each, bins in _WINDOWS.items()}
    window = next((each for each, length in lengths.items() if end - begin <= length), Window.QUARTER)
    bins = _WINDOWS[window]
    if bins.step is not None:
        shift = begin.astimezone(zone).utcoffset() or timedelta(0)
        origin = datetime(1970, 1, 1, tzinfo=UTC) - shift
        first, last = (begin - origin) // bins.step, -((origin - end) // bins.step)
        edges = [origin + at * bins.step for at in range(first, last + 1)]
    else:
        day, past = begin.astimezone(zone).date(), end.astimezone(zone).date() + _DAY
        days = range((past - day).days + 1)
        found = [edge for at in days for edge in _parts_of(day + at * _DAY, bins.parts, zone)]
        edges = found[bisect_right(found, begin) - 1 : bisect_left(found, end) + 1]
    return Axis(edges, min(max(bisect_right(edges, now), 0), len(edges) - 1), now, zone, window, bins)


def axis_since(along: Axis, at: datetime) -> Axis:
    """Return an axis without the bins before an instant, but for a few before now.

    >>> day = axis(Window.DAY, datetime(2026, 11, 21, 12, tzinfo=UTC))
    >>> later = axis_since(day, datetime(2026, 11, 21, 6, 7, tzinfo=UTC))
    >>> f"{later.begin:%H:%M} {later.end:%H:%M}", later.behind, axis_since(day, day.begin) == day
    ('06:00 18:15', 25, True)
    >>> f"{axis_since(day, day.now).begin:%H:%M}"
    '10:15'
    """
    left_out = max(min(along.bin_of(at) or 0, along.behind - _FEW), 0)
    return replace(along, edges=along.edges[left_out:], behind=along.behind - left_out)


def window_of(past: timedelta) -> Window:
    """Return the shortest window that reaches so far back, else the longest.

    >>> window_of(timedelta(seconds=40)).value, window_of(timedelta(hours=20)).value, window_of(_DAY * 400).value
    ('2m', '24h', '90d')
    """
    return next((each for each, bins in _WINDOWS.items() if past <= bins.length * bins.behind), Window.QUARTER)
