"""The waterfall of one run: a row for each stage, with its bar on one linear axis."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from tidewheel.control.console.words import between, family_of, state
from tidewheel.control.words import duration
from tidewheel.jobs.values import format_timestamp
from tidewheel.nouns.runs.model import PastAttempt, RunDetail
from tidewheel.runs import OWNED, Cause

_THINNEST = 0.15  # percent: a pixel of a wide page
_TICK = 0.4
_ATTEMPTS = 12
_NOT_RECORDED = "time not recorded"


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of a run; its bar has places in percent of the axis.

    Args:
        words: Its duration or its instant, and what came of it.
        shape: `bar`, `tick`, `hollow` for another clock than the database's, or `dotted` if not recorded.
        x: The left edge of its bar; None outside of the axis.
    """

    name: str
    words: str
    family: str = "ahead"
    shape: str = "bar"
    x: float | None = None
    width: float = 0.0
    took: timedelta = timedelta(0)


@dataclass(frozen=True, slots=True)
class Timing:
    """The stages of a run.

    Args:
        stages: In the order of time.
        total: From its time to its end, or to now.
        slowest: The stage that took the longest, all of its name together; None if none has a duration.
        left_out: The number of earlier attempts without a row.
    """

    stages: Sequence[Stage]
    total: timedelta
    slowest: str | None
    slowest_took: timedelta
    left_out: int


@dataclass(frozen=True, slots=True)
class _Span:
    """A stage with a begin and an end."""

    name: str
    words: str
    family: str
    since: datetime
    until: datetime

    @property
    def took(self) -> timedelta:
        return max(self.until - self.since, timedelta(0))


def timing(run: RunDetail, now: datetime) -> Timing:
    """Return the waterfall of a run."""
    summary, attempts = run.summary, run.attempts[-_ATTEMPTS:]
    left_out = len(run.attempts) - len(attempts)
    first = max(summary.created_at, summary.scheduled_at)
    starts = [each.started_at for each in attempts if each.started_at is not None]
    if not starts and summary.started_at is not None:
        starts = [summary.started_at]
    begin = starts[0] if starts and left_out else min([first, *starts])
    end = max(summary.finished_at or now, begin)
    spans = list(_spans(run, attempts, begin if left_out else first, now))
    axis = _Axis(begin, max(end - begin, timedelta(milliseconds=1)))
    stages = [*_ticks(run, axis), *(axis.bar(each) for each in spans), *_not_kept(run)]
    took: dict[str, timedelta] = {}
    for each in spans:
        took[each.name] = took.get(each.name, timedelta(0)) + each.took
    slowest = max(took, key=lambda name: took[name], default=None)
    if slowest is not None and not took[slowest]:
        slowest = None
    return Timing(stages, end - begin, slowest, took[slowest] if slowest else timedelta(0), left_out)


@dataclass(frozen=True, slots=True)
class _Axis:
    """The time of a run from its begin to its end, or to now."""

    begin: datetime
    span: timedelta

    def place(self, instant: datetime) -> float:
        """Return the place of an instant in percent, outside of 0 to 100 if it is outside of the axis."""
        return 100 * ((instant - self.begin) / self.span)

    def bar(self, given: _Span) -> Stage:
        left, right = (min(max(self.place(at), 0.0), 100.0) for at in (given.since, given.until))
        width = max(right - left, _THINNEST)
        x = min(left, 100 - width)
        return Stage(given.name, given.words, given.family, "bar", round(x, 2), round(width, 2), given.took)

    def tick(self, name: str, words: str, at: datetime, shape: str = "tick") -> Stage:
        place = self.place(at)
        x = round(min(place, 100 - _TICK), 2) if 0 <= place <= 100 else None
        return Stage(name, words, "undone", shape, x, _TICK)


def _ticks(run: RunDetail, axis: _Axis) -> Iterator[Stage]:
    """Yield the instants before the first attempt."""
    summary = run.summary
    is_retry = summary.cause == Cause.RETRY
    own = ", the time of the run that it repeats" if is_retry else ""
    yield axis.tick("scheduled", f"{format_timestamp(summary.scheduled_at)}{own}", summary.scheduled_at)
    at = format_timestamp(summary.created_at) if is_retry else _beside(summary.created_at, summary.scheduled_at)
    yield axis.tick("written", at, summary.created_at)
    for stage in run.stages:
        if stage.name == "published":
            if stage.at is None:
                yield Stage("sent to Kafka", _NOT_RECORDED, shape="dotted")
            else:
                since = max(summary.created_at, summary.scheduled_at)
                words = f"{_beside(stage.at, since, 'after its time')}, the broker's clock"
                yield axis.tick("sent to Kafka", words, stage.at, "hollow")
            return


def _not_kept(run: RunDetail) -> Iterator[Stage]:
    """Yield the stages of which no instant is kept."""
    if run.summary.attempt and any(stage.name == "begun" for stage in run.stages):
        yield Stage("handler's start", _NOT_RECORDED, shape="dotted")
    if run.summary.finished_at and any(stage.name == "announced" for stage in run.stages):
        yield Stage("completion event", _NOT_RECORDED, shape="dotted")


def _spans(run: RunDetail, attempts: Sequence[PastAttempt], first: datetime, now: datetime) -> Iterator[_Span]:
    """Yield the attempts, and the waits before each of them."""
    summary, before, wait = run.summary, first, "wait"
    for each in attempts:
        began = each.started_at or each.finished_at
        if began > before:
            yield _Span(wait, duration(began - before), "ahead", before, began)
        took = _NOT_RECORDED if each.started_at is None else duration(each.finished_at - each.started_at)
        words = f"{took}, {state(each.outcome)}" + (f", {each.error_type}" if each.error_type else "")
        yield _Span(f"attempt {each.attempt}", words, family_of(each.outcome), began, each.finished_at)
        before, wait = each.finished_at, "back-off"
    if summary.finished_at is not None:
        return
    if summary.started_at is not None and summary.status in {*OWNED, "waiting"} and summary.started_at >= before:
        yield _Span(wait, duration(summary.started_at - before), "ahead", before, summary.started_at)
        words = f"{duration(between(summary.started_at, now))} so far"
        yield _Span(f"attempt {summary.attempt}", words, "moving", summary.started_at, now)
    elif now > before:
        if wait == "back-off" and summary.publish_at is not None and before < summary.publish_at < now:
            yield _Span(wait, duration(summary.publish_at - before), "ahead", before, summary.publish_at)
            before, wait = summary.publish_at, "wait"
        yield _Span(wait, f"{duration(now - before)} so far", "ahead", before, now)


def _beside(written: datetime, due: datetime, after: str = "after") -> str:
    span = written - due
    if abs(span) < timedelta(milliseconds=1):
        return "at its time"
    return f"{duration(abs(span))} {'ahead' if span < timedelta(0) else after}"
