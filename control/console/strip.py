"""The tide line of a job as SVG: its latest runs left of now, its next instants right of it.

Success is muted and above the axis, failure is below it. The height of a bar is its duration, on a logarithmic scale.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from tidewheel.control.console.urls import Urls
from tidewheel.control.console.words import between, counted, duration, family_of, relative, state
from tidewheel.control.reads.runs import RunSummary

_STEP = 20
_WIDTH = 12
_AXIS = 52
_DEEP = 16
_LEAST, _MOST = 6, 44
_LEAST_WIDTH = 1000
_SHORTEST, _LONGEST = 0.01, 3600.0  # seconds at the least height and at the greatest


@dataclass(frozen=True, slots=True)
class Bar:
    """One run, or one instant to come.

    Args:
        x: Its left edge.
        y: Its top.
        width: Its width.
        height: Its height.
        family: The colour family of its state.
        href: The run; None of an instant to come.
        words: Its text.
    """

    x: int
    y: float
    width: int
    height: float
    family: str
    href: str | None
    words: str


@dataclass(frozen=True, slots=True)
class Strip:
    """A drawing with its sentence.

    Args:
        bars: From the oldest to the last instant to come.
        now_x: The place of now.
        axis: The height of the axis.
        width: The width of the drawing.
        words: The sentence that a screen reader speaks.
    """

    bars: Sequence[Bar]
    now_x: int
    axis: int
    width: int
    words: str


def strip(runs: Sequence[RunSummary], coming: int, now: datetime, urls: Urls) -> Strip:
    """Return the drawing of a job's latest runs, given latest first, and of a number of instants to come."""
    bars = [_bar(run, at * _STEP, now, urls) for at, run in enumerate(reversed(runs))]
    now_x = len(bars) * _STEP + _STEP // 2
    bars += [
        Bar(now_x + _STEP // 2 + at * _STEP, _AXIS - 14, _WIDTH, 14, "ahead", None, "to come") for at in range(coming)
    ]
    counts = {family: sum(each.family == family for each in bars) for family in ("good", "bad", "undone")}
    words = (
        f"The latest {counted(len(runs), 'run')}: {counts['good']} succeeded, {counts['bad']} failed,"
        f" {counts['undone']} skipped or cancelled. {counted(coming, 'instant')} to come."
    )
    return Strip(bars, now_x, _AXIS, max(now_x + _STEP + coming * _STEP, _LEAST_WIDTH), words)


def _bar(run: RunSummary, x: int, now: datetime, urls: Urls) -> Bar:
    family = family_of(run.status)
    took = between(run.started_at, run.finished_at or now)
    height = _height(took.total_seconds() if took else 0.0)
    y = float(_AXIS) - height
    if family == "bad":
        y, height = _AXIS + 2.0, float(_DEEP)
    elif family == "undone":
        y, height = _AXIS - 4.0, 8.0
    words = f"{state(run.status)}, {relative(run.scheduled_at, now)}, took {duration(took)}"
    return Bar(x, y, _WIDTH, height, family, urls("run", run_id=run.run_id), words)


def _height(seconds: float) -> float:
    bounded = min(max(seconds, _SHORTEST), _LONGEST)
    share = math.log(bounded / _SHORTEST) / math.log(_LONGEST / _SHORTEST)
    return round(_LEAST + share * (_MOST - _LEAST), 1)
