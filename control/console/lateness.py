"""Lateness over time as lines: p50 and p99 of each bin on a logarithmic scale, as pure shapes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise

from tidewheel.control.console.axis import Axis
from tidewheel.control.words import duration

WIDTH = 1000  # of the coordinates of lines, which stretch to the width of the plot
_LEAST, _MOST = -3, 5  # powers of ten in seconds: 1 ms to a day


@dataclass(frozen=True, slots=True)
class Rule:
    """A horizontal line at a power of ten: its height in pixels and its label."""

    y: float
    text: str


@dataclass(frozen=True, slots=True)
class Lines:
    """Two lines over the bins up to now.

    Args:
        height: The height of the plot in pixels.
        p50: The path of the median.
        p99: The path of the 99th percentile.
        rules: The powers of ten.
    """

    height: int
    p50: str
    p99: str
    rules: Sequence[Rule]


def lines(along: Axis, p50: Sequence[float | None], p99: Sequence[float | None], height: int = 120) -> Lines:
    """Return the lines of lateness in seconds, a value or None for each bin up to now.

    A bin without a run interrupts a line. A value of 0 lies on the floor.
    """
    known = [each for each in (*p50, *p99) if each is not None]
    powers = [math.log10(each) for each in known if each > 0]
    low = max(min((math.floor(each) for each in powers), default=_LEAST), _LEAST)
    high = min(max(max((math.ceil(each) for each in powers), default=0), low + 2), _MOST)

    def y(seconds: float) -> float:
        power = min(max(math.log10(seconds), low), high) if seconds > 0 else low
        return round(height - 8 - (power - low) / (high - low) * (height - 24), 1)

    step = WIDTH / along.behind
    rules = [Rule(y(10.0**power), duration(timedelta(seconds=10.0**power))) for power in range(low, high + 1)]
    half, most = ([None if each is None else y(each) for each in values] for values in (p50, p99))
    return Lines(height, _path(half, step), _path(most, step), rules)


def sentence(stage: str, p50: float | None, p99: float | None) -> str:
    """Return the sentence of a plot of lateness, by the quantiles of its whole window."""
    if p50 is None or p99 is None:
        return f"Lateness, {stage}: no run in this window."
    half, most = (duration(timedelta(seconds=each)) for each in (p50, p99))
    return f"Lateness, {stage}: half of the runs within {half}, 99 of 100 within {most}."


def _path(heights: Sequence[float | None], step: float) -> str:
    """Return a path of steps: a horizontal piece for each bin, joined to that of its neighbour."""
    parts: list[str] = []
    for at, (before, height) in enumerate(pairwise([None, *heights])):
        if height is not None:
            parts.append(f"M{at * step:.1f} {height}" if before is None else f"V{height}")
            parts.append(f"H{(at + 1) * step:.1f}")
    return "".join(parts)
