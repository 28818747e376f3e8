"""The timing of one run: a row for each stage whose instants are stored, with its bar in SVG."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from tidewheel.control.console.words import absolute, between, duration, family_of, state
from tidewheel.control.reads.run_detail import PastAttempt, RunDetail
from tidewheel.runs import OWNED

WIDTH = 1000
_THINNEST = 4.0
_ATTEMPTS = 12
_NOT_RECORDED = "not recorded"


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of a run.

    Args:
        name: Its name.
        words: Its duration or its instant, and what came of it.
        family: The colour family of its bar.
        x: The left edge of its bar; None if an instant is not recorded.
        width: The width of its bar.
        took: Its duration.
    """

    name: str
    words: str
    family: str = "ahead"
    x: float | None = None
    width: float = 0.0
    took: timedelta = timedelta(0)


@dataclass(frozen=True, slots=True)
class Timing:
    """The stages of a run.

    Args:
        stages: In the order of time.
        total: From its time to its end, or to now.
        slowest: The longest stage; None if there is none with a duration.
        left_out: The number of earlier attempts without a row.
    """

    stages: Sequence[Stage]
    total: timedelta
    slowest: Stage | None
    left_out: int


def timing(run: RunDetail, now: datetime) -> Timing:
    """Return the timing of a run."""
    summary, attempts = run.summary, run.attempts[-_ATTEMPTS:]
    first = max(summary.created_at, summary.scheduled_at)
    starts = [each.started_at for each in attempts if each.started_at is not None]
    if not starts and summary.started_at is not None:
        starts = [summary.started_at]
    begin = starts[0] if starts and len(attempts) < len(run.attempts) else min([first, *starts])
    end = max(summary.finished_at or now, begin)
    axis = _Axis(begin, max(end - begin, timedelta(milliseconds=1)))
    stages = [
        Stage("due", absolute(summary.scheduled_at), "undone", axis.at(summary.scheduled_at), _THINNEST),
        Stage(
            "written",
            _beside(summary.created_at, summary.scheduled_at),
            "undone",
            axis.at(summary.created_at),
            _THINNEST,
        ),
        *_attempts(run, attempts, first, now, axis),
    ]
    longest = max(stages, key=lambda stage: stage.took)
    return Timing(stages, end - begin, longest if longest.took else None, len(run.attempts) - len(attempts))


@dataclass(frozen=True, slots=True)
class _Axis:
    begin: datetime
    span: timedelta

    def at(self, instant: datetime) -> float | None:
        """Return the place of an instant; None outside of the axis."""
        share = (instant - self.begin) / self.span
        return round(min(share * WIDTH, WIDTH - _THINNEST), 1) if 0 <= share <= 1 else None

    def stage(self, name: str, words: str, family: str, since: datetime, until: datetime) -> Stage:
        left = min(max((since - self.begin) / self.span, 0.0), 1.0) * WIDTH
        right = min(max((until - self.begin) / self.span, 0.0), 1.0) * WIDTH
        width = max(right - left, _THINNEST)
        took = max(until - since, timedelta(0))
        return Stage(name, words, family, round(min(left, WIDTH - width), 1), round(width, 1), took)


def _attempts(
    run: RunDetail, attempts: Sequence[PastAttempt], first: datetime, now: datetime, axis: _Axis
) -> Iterator[Stage]:
    """Yield the attempts, and the waits before each of them."""
    summary, before, wait = run.summary, first, "wait"
    for each in attempts:
        if each.started_at is None:
            yield Stage(
                f"attempt {each.attempt}", f"{state(each.outcome)}, start {_NOT_RECORDED}", family_of(each.outcome)
            )
        else:
            if each.started_at > before:
                yield axis.stage(wait, duration(each.started_at - before), "ahead", before, each.started_at)
            words = f"{duration(each.finished_at - each.started_at)} {state(each.outcome)}"
            words += f", {each.error_type}" if each.error_type else ""
            yield axis.stage(
                f"attempt {each.attempt}", words, family_of(each.outcome), each.started_at, each.finished_at
            )
        before, wait = each.finished_at, "back-off"
    if summary.finished_at is not None:
        return
    if summary.started_at is not None and summary.status in {*OWNED, "waiting"} and summary.started_at >= before:
        yield axis.stage(wait, duration(summary.started_at - before), "ahead", before, summary.started_at)
        words = f"{duration(between(summary.started_at, now))} so far"
        yield axis.stage(f"attempt {summary.attempt}", words, "moving", summary.started_at, now)
    elif now > before:
        yield axis.stage(wait, f"{duration(now - before)} so far", "ahead", before, now)


def _beside(written: datetime, due: datetime) -> str:
    span = written - due
    if abs(span) < timedelta(milliseconds=1):
        return "at its time"
    return f"{duration(abs(span))} {'ahead' if span < timedelta(0) else 'after'}"
