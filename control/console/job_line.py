"""The timeline of a job as shapes.

A place along the axis is a percentage, a height is in pixels. The height of a bar is its duration beside the longest
one, on a logarithmic scale.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import zip_longest
from typing import NamedTuple

from tidewheel.control.console.axis import LEAST_SPAN, Axis, Tick
from tidewheel.control.console.grid import WAITING
from tidewheel.control.console.tide import Bar, Size
from tidewheel.control.console.urls import Urls
from tidewheel.control.console.words import between, counted, family_of, reason_words, state
from tidewheel.control.explain.explain import Unfired
from tidewheel.control.explain.explanation import OccurrenceOutcome
from tidewheel.control.explain.month import Counted
from tidewheel.control.explain.operations import JobTimeline, TimelineBin, TimelineRun
from tidewheel.control.explain.upcoming import UpcomingOccurrence
from tidewheel.control.words import duration
from tidewheel.ids import instant_of
from tidewheel.jobs.values import format_second
from tidewheel.nouns.runs.model import RunSummary
from tidewheel.runs import SCHEDULED, Cause, RunState

SIZE = Size(88, 18, 22)
_RANGE = 1000  # the longest run shown is so many times as long as one of the least height
_LEAST, _MOST = 4.0, 66.0
_HOLLOW = 12.0
_THINNEST = 0.35  # percent
_RETRIES = 4
_LEGEND = {
    "good": "succeeded (height: duration)", "bad": "failed", "moving": "running", "trouble": "running for long",
    "dot": "retried", "undone": "skipped, cancelled", "waits": "waiting", "open": "waiting or running",
    "ahead": "upcoming", "paused": "paused", "version": "new version",
}  # fmt: skip
_UNFIRED = {OccurrenceOutcome.WILL_BE_EXCLUDED, OccurrenceOutcome.WILL_BE_SKIPPED, OccurrenceOutcome.WILL_BE_MOVED}


class Mark(NamedTuple):
    """A bar, or the middle of a lozenge in percent; a dot is a further attempt."""

    words: str
    href: str | None = None
    bar: Bar | None = None
    diamond: float | None = None
    family: str = "undone"
    dots: Sequence[float] = ()


class Line(NamedTuple):
    """The drawing; pauses are hatched grounds, and the place of now is None if it is outside."""

    size: Size
    marks: Sequence[Mark]
    pauses: Sequence[tuple[Bar, str]]
    versions: Sequence[tuple[float, str]]
    ticks: Sequence[Tick]
    now_x: float | None

    @property
    def legend(self) -> Mapping[str, str]:
        """The kinds of marks that it has, each with its words."""
        found = {each.family if each.bar is None else each.bar.family for each in self.marks}
        found |= {"dot"} if any(each.dots for each in self.marks) else set()
        found |= {name for name, shapes in (("paused", self.pauses), ("version", self.versions)) if shapes}
        return {name: words for name, words in _LEGEND.items() if name in found}


def job_line(
    along: Axis,
    timeline: JobTimeline,
    coming: Sequence[Counted],
    special: Sequence[UpcomingOccurrence],
    urls: Urls,
    *,
    address: Callable[..., str],
) -> Line:
    """Return the shapes of a timeline.

    Args:
        coming: The number of occurrences in each bin ahead.
        special: Occurrences to come, of which those that do not fire at their time are marked.
    """
    durations = [between(run.started_at, run.finished_at or timeline.now) for run in timeline.runs]
    longest = max(filter(None, [*durations, *(each.longest for each in timeline.bins)]), default=timedelta.max)
    marks = [
        *(_run(along, run, timeline, urls, longest) for run in reversed(timeline.runs)),
        *(mark for each in timeline.bins for mark in _bin(along, each, address, longest)),
        *_skips(along, timeline),
        *_ahead(along, coming),
        *(
            Mark(f"{state(each.outcome)}, {along.clock(each.at)}", diamond=along.x(each.at), family="ahead")
            for each in special
            if each.outcome in _UNFIRED and along.begin <= each.at < along.end
        ),
    ]
    return Line(
        SIZE,
        marks,
        list(_pauses(along, timeline)),
        [(along.x(each.at), f"version {each.number}") for each in timeline.versions],
        list(along.ticks()),
        along.x(along.now) if along.begin <= along.now <= along.end else None,
    )


def ran_at(run: TimelineRun | RunSummary) -> datetime:
    """Return the place of a run in time: its instant, of a retry the start or the time of its request."""
    return run.scheduled_at if run.cause != Cause.RETRY else run.started_at or instant_of(run.run_id)


def without_run(timeline: JobTimeline, runs: Sequence[TimelineRun | RunSummary]) -> list[Unfired]:
    """Return the skips of which none of these runs is the occurrence."""
    skipped = {each.scheduled_at for each in runs if each.cause == Cause.TIMER and state_of(each) == RunState.SKIPPED}
    return [each for each in timeline.skips if each.at != each.last_at or each.at not in skipped]


def state_of(run: TimelineRun | RunSummary) -> str:
    """Return the state that pages show of a run."""
    return run.status if isinstance(run, RunSummary) else run.state


def height_of(took: timedelta | None, longest: timedelta) -> float:
    """Return the height of a duration beside the longest one, on a logarithmic scale.

    >>> long = timedelta(minutes=1)
    >>> height_of(None, long), height_of(long, long), height_of(long / 1000, long), height_of(long, long * 2)
    (4.0, 66.0, 4.0, 59.8)
    """
    share = 1 + math.log(took / longest) / math.log(_RANGE) if took and took > timedelta(0) else 0
    return round(_LEAST + max(share, 0) * (_MOST - _LEAST), 1)


def _run(along: Axis, run: TimelineRun, timeline: JobTimeline, urls: Urls, longest: timedelta) -> Mark:
    family, x = family_of(run.state), along.x(ran_at(run))
    took = between(run.started_at, run.finished_at or timeline.now)
    words = f"{state(run.state)}, {along.clock(ran_at(run))}"
    words += f", retry of {along.clock(run.scheduled_at)}" if run.cause == Cause.RETRY else ""
    words += f", took {duration(took)}" if took is not None else ""
    words += f", attempt {run.attempt}" if run.attempt > 1 else ""
    words += f", {run.error_type or reason_words(run.reason or '')}" if run.error_type or run.reason else ""
    href = urls("run", run_id=run.run_id)
    if family == "undone":
        return Mark(words, href, diamond=x)
    end = along.x(run.finished_at or timeline.now) if run.started_at else x
    width = round(min(max(end - x, _THINNEST), 100 - x), 3)
    height = height_of(took, longest)
    top = float(SIZE.above) - height
    dots = [top - 5 - 5 * at for at in range(min(max(run.attempt - 1, 0), _RETRIES))]
    if family == "bad":
        bar = Bar("bad", x, SIZE.above + 2, width, SIZE.below - 4)
        return Mark(words, href, bar, dots=[SIZE.above - 5.0] if dots else ())
    if family == "moving" and timeline.took_p95 is not None and took is not None and took > timeline.took_p95:
        family = "trouble"
        words += f", longer than 95 % of the job's runs ({duration(timeline.took_p95)})"
    if run.state in {SCHEDULED, *WAITING}:
        family = "ahead" if run.state == SCHEDULED else "waits"
        top, height, dots = SIZE.above - _HOLLOW, _HOLLOW, []
    return Mark(words, href, Bar(family, x, round(top, 1), width, height), dots=dots)


def _bin(along: Axis, each: TimelineBin, address: Callable[..., str], longest: timedelta) -> Iterator[Mark]:
    x, least = along.x(each.at), each.at + LEAST_SPAN
    href = address(**{"from": format_second(each.at), "to": format_second(max(each.until, least))})
    step = along.x(each.until) - x
    width = round(max(step * 0.8, _THINNEST), 3)
    words = f"{along.clock(each.at)}: " + ", ".join(f"{many:,} {name}" for name, many in each.counts.items() if many)
    words += f", longest {duration(each.longest)}" if each.longest is not None else ""
    if each.succeeded:
        height = height_of(each.longest, longest)
        yield Mark(words, href, Bar("good", x, round(SIZE.above - height, 1), width, height))
    if each.failed or each.timed_out:
        yield Mark(words, href, Bar("bad", x, SIZE.above + 2, width, SIZE.below - 4))
    if each.open:
        yield Mark(words, href, Bar("open", x, SIZE.above - _HOLLOW, width, _HOLLOW))
    if each.cancelled or each.skipped:
        yield Mark(words, href, diamond=round(x + step / 2, 3))


def _skips(along: Axis, timeline: JobTimeline) -> Iterator[Mark]:
    for each in without_run(timeline, timeline.runs):
        first, last = along.x(max(each.at, along.begin)), along.x(each.last_at)
        many = counted(each.occurrences, "occurrence", at_least=not each.exact)
        words = f"{many} not fired, {state(each.reason)}: {along.clock(each.at)}"
        words += f" to {along.clock(each.last_at)}" if each.last_at != each.at else ""
        bar = Bar("undone", first, SIZE.above - 0.5, round(last - first, 3), 2) if last - first > _THINNEST else None
        yield Mark(words, bar=bar, diamond=round((first + last) / 2, 3))


def _ahead(along: Axis, coming: Sequence[Counted]) -> Iterator[Mark]:
    edges = along.edges[max(along.behind - 1, 0) :]
    if len(coming) < 2 * sum(each.fires > 0 for each in coming) < 2 * len(coming):  # pairs of bins have even boxes
        pairs = zip_longest(coming[::2], coming[1::2], fillvalue=Counted(0, exact=True))
        edges = [*edges[:-1:2], edges[-1]]
        coming = [Counted(one.fires + other.fires, one.exact and other.exact) for one, other in pairs]
    for at, end, each in zip(edges[:-1], edges[1:], coming, strict=False):
        if each.fires:
            x = max(along.x(at), along.x(along.now)) if at <= along.now else along.x(at)
            many = counted(each.fires, "occurrence", at_least=not each.exact)
            words = f"{many} upcoming, {along.clock(max(at, along.now))} to {along.clock(end)}"
            width = round(along.width * 0.7, 3)
            yield Mark(words, bar=Bar("ahead", round(x + along.width * 0.15, 3), SIZE.above - _HOLLOW, width, _HOLLOW))


def _pauses(along: Axis, timeline: JobTimeline) -> Iterator[tuple[Bar, str]]:
    for each in timeline.pauses:
        first, last = along.x(each.since), along.x(each.until or along.end)
        by = f" by {each.by}" if each.by else ""
        yield Bar("", first, 0, round(max(last - first, _THINNEST), 3), SIZE.above), f"paused{by}"
