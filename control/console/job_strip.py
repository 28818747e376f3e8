"""Strips: the last 20 runs of a job with a bar for what comes; the ended runs of a tenant by time."""

from collections.abc import Sequence
from dataclasses import dataclass

from tidewheel.control.console.job_line import height_of
from tidewheel.control.console.words import between, counted, family_of
from tidewheel.control.reads.activity import ActivityBin
from tidewheel.nouns.runs.model import RecentRun

WIDTH, HEIGHT, AXIS = 146, 20, 14
_STEP, _BAR, _DEEP = 7, 5, 5
_MOST = 12.0
_SHOWN = 20


@dataclass(frozen=True, slots=True)
class StripBar:
    """A bar, in pixels."""

    family: str
    x: int
    y: float
    height: float


@dataclass(frozen=True, slots=True)
class Strip:
    """A strip.

    Args:
        bars: From the oldest run on.
        words: The counts in words; they are shown if a run failed.
    """

    bars: Sequence[StripBar]
    words: str
    failed: int


def strip(runs: Sequence[RecentRun], *, comes: bool) -> Strip:
    """Return the strip of runs, the newest first."""
    first = _SHOWN - len(runs)
    bars = [_bar(run, (first + at) * _STEP) for at, run in enumerate(reversed(runs))]
    if comes:
        bars.append(StripBar("ahead", _SHOWN * _STEP + 1, AXIS - 7.0, 6.0))
    failed = sum(family_of(run.state) == "bad" for run in runs)
    return Strip(
        bars,
        f"{failed} of {counted(len(runs), 'run')} failed" if failed else f"{counted(len(runs), 'run')}, none failed",
        failed,
    )


def strip_of_bins(bins: Sequence[ActivityBin]) -> Strip:
    """Return the strip of 20 bins, the oldest first: its height is the share of the fullest bin."""
    bars: list[StripBar] = []
    good = [each.succeeded + each.cancelled + each.skipped for each in bins]
    bad = [each.failed + each.timed_out for each in bins]
    for at, (ended, failed) in enumerate(zip(good, bad, strict=True)):
        if ended:
            height = max(round(ended / max(good) * _MOST, 1), 3.0)
            bars.append(StripBar("good", at * _STEP, round(AXIS - height, 1), height))
        if failed:
            bars.append(StripBar("bad", at * _STEP, AXIS + 1.0, _DEEP))
    return Strip(bars, f"{counted(sum(good) + sum(bad), 'run')} ended in the last hour, {sum(bad):,} failed", sum(bad))


def _bar(run: RecentRun, x: int) -> StripBar:
    family = family_of(run.state)
    if family == "bad":
        return StripBar(family, x, AXIS + 1.0, _DEEP)
    if family == "undone":
        return StripBar(family, x, AXIS - 2.0, 4)
    height = (
        7.0
        if family == "ahead"
        else max(round(height_of(between(run.started_at, run.finished_at)) / 46 * _MOST, 1), 3.0)
    )
    return StripBar(family, x, round(AXIS - height, 1), height)
