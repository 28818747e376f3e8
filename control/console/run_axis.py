"""The time axis of a run as bars and marks, as pure functions.

The axis is linear. If it shows steps or log lines, a long wait takes a fixed part of it instead.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from tidewheel.control.console.run_log import Log
from tidewheel.control.console.words import between, counted, family_of, number, state
from tidewheel.control.words import duration
from tidewheel.executor.context_parts import StepTime, has_steps, step_times
from tidewheel.executor.log_lines import read_log_line
from tidewheel.jobs.values import format_timestamp
from tidewheel.nouns.runs.detail import answer_of
from tidewheel.nouns.runs.model import PastAttempt, RunDetail
from tidewheel.runs import OWNED, Cause

_THINNEST = 0.15  # percent: a pixel of a wide page
_TICK = 0.4
_ATTEMPTS = 12
_STEPS = 12  # rows of an attempt
_NAMES = {"published": "sent to Kafka", "begun": "handler's start", "announced": "completion event"}
_LONG, _CUT = 0.15, 0.06  # the parts of a wait that is cut: of the run's time at least, and of the axis
_ON_TIME = "on time"
_RULER = [timedelta(seconds=each) for each in (
    *(base * unit for unit in (0.001, 0.01, 0.1) for base in (1, 2, 5)), 1, 2, 5, 10, 20, 60, 120, 300, 600, 1200,
    3600, 7200, 21600, 43200, 86400, 7 * 86400,
)]  # fmt: skip
_RULES, _ROOM = 8, 8  # of a ruler at most, and the percent between two of them
_FOLD = 5  # percent within which log lines are one mark: 24 px of a wide page
_WORDS = 90  # characters of a log line
_FAMILIES = ("ahead", "trouble", "bad")  # of a log line, by its level


class Mark(NamedTuple):
    """A log line with its number and text; the first of the worst of several that fall together."""

    at: datetime
    family: str
    line: int
    words: str
    x: float = 0.0
    many: int = 1


class Stage(NamedTuple):
    """A stage of a run; its bar has places in percent of the axis.

    Args:
        shape: `bar`, `cut` for a wait that is drawn shorter, `step`, `tick`, `marks` for log lines, or `hollow` for
            another clock than the database's.
        x: The left edge of its bar; None outside of the axis.
    """

    name: str
    words: str
    family: str = "ahead"
    shape: str = "bar"
    x: float | None = None
    width: float = 0.0
    marks: Sequence[Mark] = ()


class _Span(NamedTuple):
    """A stage with a begin and an end; a wait has no attempt."""

    name: str
    words: str
    family: str
    since: datetime
    until: datetime
    attempt: int | None = None


def timing(run: RunDetail, now: datetime, log: Log | None = None) -> Mapping[str, object]:
    """Return the waterfall of a run, with the lines of the log of one attempt.

    The slowest stage is that which took the longest, all of its name together; of an attempt its slowest step is named.
    Missing are the stages that the run has passed without a recorded time. Attempts that are left out have no row.
    """
    summary, attempts = run.summary, run.attempts[-_ATTEMPTS:]
    left_out = len(run.attempts) - len(attempts)
    first = max(summary.created_at, summary.scheduled_at)
    starts = [each.started_at for each in attempts if each.started_at is not None]
    starts = starts or [at for at in (summary.started_at,) if at is not None]
    begin = starts[0] if starts and left_out else min([first, *starts])
    end = max(summary.finished_at or now, begin)
    spans = list(_spans(run, attempts, begin if left_out else first, now))
    texts = [(line.number, read_log_line(line.text.striptags())) for line in log.lines] if log else []
    lines = [Mark(each.at, _FAMILIES[each.level], at, each.text[:_WORDS]) for at, each in texts if each]
    steps = step_times(run.checkpoint)
    axis = _axis(begin, end, spans if steps or lines else ())
    stages, took = list(_ticks(run, axis)), defaultdict[str, timedelta](timedelta)
    for each in spans:
        took[each.name] += each.until - each.since
        stages.append(axis.bar(each, "cut" if (each.since, each.until) in axis.cuts else "bar"))
        stages += _steps(axis, [step for step in steps if step.attempt == each.attempt])
        stages += _saved(run, axis, each)
        if log and log.attempt == each.attempt and (marks := list(_marks(axis, lines))):
            stages.append(Stage("log", counted(len(log.lines) + log.left_out, "line"), shape="marks", marks=marks))
    known = {each.name for each in run.stages if each.known}
    passed = dict.fromkeys(each.name for each in run.stages if each.name in _NAMES)
    slowest, longest = max(took.items(), key=itemgetter(1), default=("", timedelta(0)))
    return {
        "stages": stages, "begin": begin, "ruler": axis.ruler(end - begin), "total": end - begin,
        "slowest": slowest if longest else "",
        "left_out": left_out, "missing": [_NAMES[name] for name in passed if name not in known],
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Axis:
    """The time of a run from its begin to its end, or to now; each of `cuts` takes `_CUT` of the span."""

    begin: datetime
    span: timedelta
    cuts: Sequence[tuple[datetime, datetime]]

    def place(self, instant: datetime) -> float:
        """Return the place of an instant in percent, outside of 0 to 100 if it is outside of the axis."""
        at = instant - self.begin
        for since, until in self.cuts:
            at -= (min(max(instant, since), until) - since) * (1 - _CUT * self.span / (until - since))
        return 100 * (at / self.span)

    def ruler(self, whole: timedelta) -> Sequence[tuple[float, str]]:
        """Return the times since the begin, each with its place; without its words where these have no room."""
        step = next((each for each in _RULER if whole <= _RULES * each), whole)
        times = [step * at for at in range(int(whole / step) + 1)]
        found, last = list[tuple[float, str]](), 0.0
        for at in times[1:]:
            x = round(self.place(self.begin + at), 2)
            has_room = last + _ROOM <= x <= 100 - 1.6 * _ROOM
            found.append((x, duration(at, exact=True) if has_room else ""))
            last = x if has_room else last
        return found

    def bar(self, given: _Span, shape: str = "bar") -> Stage:
        left, right = (min(max(self.place(at), 0.0), 100.0) for at in (given.since, given.until))
        width = max(right - left, _THINNEST)
        x = min(left, 100 - width)
        return Stage(given.name, given.words, given.family, shape, round(x, 2), round(width, 2))

    def tick(self, name: str, words: str, at: datetime, shape: str = "tick") -> Stage:
        place = self.place(at)
        x = round(min(place, 100 - _TICK), 2) if 0 <= place <= 100 else None
        return Stage(name, words, "undone", shape, x, _TICK)


def _axis(begin: datetime, end: datetime, spans: Sequence[_Span]) -> _Axis:
    whole = max(end - begin, timedelta(milliseconds=1))
    waits = [(each.since, each.until) for each in spans if each.attempt is None]
    cuts = [(since, until) for since, until in waits if until - since > _LONG * whole]
    rest = whole - sum((until - since for since, until in cuts), timedelta(0))
    return _Axis(begin, rest / (1 - _CUT * len(cuts)), cuts)


def _ticks(run: RunDetail, axis: _Axis) -> Iterator[Stage]:
    """Yield the instants before the first attempt."""
    summary = run.summary
    is_retry = summary.cause == Cause.RETRY
    own = ", the time of the run that it repeats" if is_retry else ""
    at = format_timestamp(summary.created_at) if is_retry else _beside(summary.created_at, summary.scheduled_at)
    if at != _ON_TIME:  # else both are the begin of the axis
        yield axis.tick("scheduled", f"{format_timestamp(summary.scheduled_at)}{own}", summary.scheduled_at)
        yield axis.tick("created", at, summary.created_at)
    published = next((each for each in run.stages if each.name == "published"), None)
    if published is not None and published.at is not None:
        since = max(summary.created_at, summary.scheduled_at)
        claimed = {run.attempt: run.claimed_from} | {each.attempt: each.claimed_from for each in run.attempts}
        record = (claimed.get(published.attempt or 0) or "").partition("@")[0]
        words = f"{_beside(published.at, since, 'after its time')}, the broker's clock, {record}"
        yield axis.tick(_NAMES["published"], words, published.at, "hollow")


def _spans(run: RunDetail, attempts: Sequence[PastAttempt], first: datetime, now: datetime) -> Iterator[_Span]:
    """Yield the attempts, and the waits before each of them."""
    summary, before, wait = run.summary, first, "wait"
    for each in attempts:
        began = each.started_at or each.finished_at
        if began > before:
            yield _Span(wait, duration(began - before), "ahead", before, began)
        is_whole = summary.finished_at == each.finished_at and began <= first  # then the title has its duration
        took = "" if each.started_at is None or is_whole else duration(each.finished_at - each.started_at)
        parts = (took, state(each.outcome), "" if each.error_type else answer_of(run.handler, each.result))
        family, words = family_of(each.outcome), ", ".join(filter(None, parts))
        yield _Span(f"attempt {each.attempt}", words, family, began, each.finished_at, each.attempt)
        before, wait = each.finished_at, "back-off"
    if summary.finished_at is not None:
        return
    if summary.started_at is not None and summary.status in {*OWNED, "waiting"} and summary.started_at >= before:
        yield _Span(wait, duration(summary.started_at - before), "ahead", before, summary.started_at)
        words = f"{duration(between(summary.started_at, now))} so far"
        yield _Span(f"attempt {summary.attempt}", words, "moving", summary.started_at, now, summary.attempt)
    elif now > before:
        if wait == "back-off" and summary.publish_at is not None and before < summary.publish_at < now:
            yield _Span(wait, duration(summary.publish_at - before), "ahead", before, summary.publish_at)
            before, wait = summary.publish_at, "wait"
        yield _Span(wait, f"{duration(now - before)} so far", "ahead", before, now)


def _steps(axis: _Axis, found: Sequence[StepTime]) -> Iterator[Stage]:
    """Yield the steps of an attempt; if they are many, those before the last ones are one row."""
    many = max(len(found) - _STEPS, 0)
    if many:
        failed = sum(each.error_type is not None for each in found[:many])
        words = f"{number(many - failed)} saved" + (f", {number(failed)} failed" if failed else "")
        since, until = min(each.began_at for each in found[:many]), found[many - 1].ended_at
        yield axis.bar(_Span(f"{number(many)} earlier steps", words, "bad" if failed else "good", since, until), "step")
    for each in found[many:]:
        took, family = duration(each.ended_at - each.began_at), "bad" if each.error_type else "good"
        words = ", ".join(filter(None, (took, each.error_type)))
        yield axis.bar(_Span(each.name, words, family, each.began_at, each.ended_at), "step")


def _saved(run: RunDetail, axis: _Axis, attempt: _Span) -> Iterator[Stage]:
    """Yield the save of the newest checkpoint or progress, which have one time; a step has its own."""
    own = run.checkpoint is not None and not has_steps(run.checkpoint)
    names = [name for name, is_there in (("checkpoint", own), ("progress", run.progress is not None)) if is_there]
    if names and attempt.attempt and run.progress_at is not None and attempt.since <= run.progress_at <= attempt.until:
        words = f"newest {duration(run.progress_at - attempt.since)} after the attempt's start"
        yield axis.tick(" or ".join(names), words, run.progress_at)


def _marks(axis: _Axis, lines: Sequence[Mark]) -> Iterator[Mark]:
    """Yield the log lines on the axis, those that fall together as one."""
    placed = [each._replace(x=round(axis.place(each.at), 2)) for each in sorted(lines, key=lambda each: each.at)]
    for _, group in groupby((each for each in placed if 0 <= each.x <= 100), lambda each: min(each.x, 99) // _FOLD):
        together = list(group)
        worst = max(together, key=lambda each: _FAMILIES.index(each.family))
        yield worst._replace(many=len(together))


def _beside(written: datetime, due: datetime, after: str = "after") -> str:
    span = written - due
    if abs(span) < timedelta(milliseconds=1):
        return _ON_TIME
    return f"{duration(abs(span))} {'ahead' if span < timedelta(0) else after}"
