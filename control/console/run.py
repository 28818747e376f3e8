"""One run: what happened, how far it is, why it waits, and the waterfall of its stages."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import ClassVar

from starlette.requests import Request

from tidewheel.control.api.authorization import Caller
from tidewheel.control.api.request_input import TenantQuery, Whole, read_query
from tidewheel.control.client.connection import Connection
from tidewheel.control.console.job_lead import is_stuck
from tidewheel.control.console.run_log import Log, attempts_with_logs, is_over, more_of, read_log, run_id_of
from tidewheel.control.console.sentences import about_run
from tidewheel.control.console.urls import Urls
from tidewheel.control.console.view import Failed, View, in_snapshot, page_now, part, part_of
from tidewheel.control.console.words import between, family_of, state, target
from tidewheel.control.explain.job_timeline import why_late
from tidewheel.control.reads.fleet import AbleExecutors, able_executors
from tidewheel.control.reads.stored import read_run_payload
from tidewheel.control.reads.waits import WaitCode
from tidewheel.control.words import duration
from tidewheel.errors import UnknownRun
from tidewheel.jobs.values import RESERVED, format_timestamp
from tidewheel.nouns.freezes.model import FreezeChange
from tidewheel.nouns.freezes.reads import freeze_changes
from tidewheel.nouns.jobs.versions import job_at
from tidewheel.nouns.runs.model import PastAttempt, RunDetail
from tidewheel.nouns.runs.operations import Runs
from tidewheel.runs import DEAD_LETTERED, FINAL, OWNED, Cause
from tidewheel.transitions.parents import read_neighbours

_THINNEST = 0.15  # percent: a pixel of a wide page
_TICK = 0.4
_ATTEMPTS = 12
_NAMES = {"published": "sent to Kafka", "begun": "handler's start", "announced": "completion event"}

_NEIGHBOURS = 12  # parents or children that are shown
_LONG_WAIT = timedelta(seconds=1)
_OPEN_ROWS = 5  # attempts that are not folded


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of a run; its bar has places in percent of the axis.

    Args:
        words: Its duration or its instant, and what came of it.
        shape: `bar`, `tick`, or `hollow` for another clock than the database's.
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
    """The stages of a run in the order of time.

    Args:
        total: From its time to its end, or to now.
        slowest: The stage that took the longest, all of its name together; None if none has a duration.
        left_out: The number of earlier attempts without a row.
        missing: The names of the stages that the run has passed, but that have no recorded time.
    """

    stages: Sequence[Stage]
    total: timedelta
    slowest: str | None
    slowest_took: timedelta
    left_out: int
    missing: Sequence[str]


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
    stages = [*_ticks(run, axis), *(axis.bar(each) for each in spans)]
    known = {each.name for each in run.stages if each.known}
    passed = dict.fromkeys(each.name for each in run.stages if each.name in _NAMES)
    missing = [_NAMES[name] for name in passed if name not in known]
    took: dict[str, timedelta] = {}
    for each in spans:
        took[each.name] = took.get(each.name, timedelta(0)) + each.took
    slowest = max(took, key=lambda name: took[name], default=None)
    if slowest is not None and not took[slowest]:
        slowest = None
    return Timing(stages, end - begin, slowest, took[slowest] if slowest else timedelta(0), left_out, missing)


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
    published = next((each for each in run.stages if each.name == "published"), None)
    if published is not None and published.at is not None:
        since = max(summary.created_at, summary.scheduled_at)
        words = f"{_beside(published.at, since, 'after its time')}, the broker's clock"
        yield axis.tick(_NAMES["published"], words, published.at, "hollow")


def _spans(run: RunDetail, attempts: Sequence[PastAttempt], first: datetime, now: datetime) -> Iterator[_Span]:
    """Yield the attempts, and the waits before each of them."""
    summary, before, wait = run.summary, first, "wait"
    for each in attempts:
        began = each.started_at or each.finished_at
        if began > before:
            yield _Span(wait, duration(began - before), "ahead", before, began)
        took = "" if each.started_at is None else f"{duration(each.finished_at - each.started_at)}, "
        words = f"{took}{state(each.outcome)}" + (f", {each.error_type}" if each.error_type else "")
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


class RunQuery(TenantQuery):
    """Query of the page of a run."""

    attempt: Whole | None = None  # the one whose output is shown; by default the newest with output


@dataclass(frozen=True, slots=True)
class RunPage:
    """The page of a run."""

    template: ClassVar[str] = "run.html"
    place: ClassVar[str] = "runs"

    def read(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> View:
        """Read the run, its payload, and the output of an attempt."""
        query, run_id = read_query(request, RunQuery), run_id_of(request)
        now = page_now(connection)
        run = Runs(connection).detail(run_id)
        is_stored = not (run.archived or run.copied)
        with_logs: Sequence[int] = attempts_with_logs(run) if is_stored else ()
        picked = query.attempt or (with_logs[0] if with_logs else None)

        def read_output() -> Log | None:
            try:
                return None if picked is None else read_log(connection, run, picked)
            except UnknownRun:  # dropped meanwhile
                return None

        def read_target() -> str:
            return target(in_snapshot(connection, job_at, caller.tenant, run.summary.key, run.summary.job_version))

        def read_able() -> AbleExecutors | None:
            why = run.summary.why
            if not caller.all_tenants or why is None or why.code is not WaitCode.SLOT:
                return None
            with connection.snapshot(all_tenants=True) as reading:
                return able_executors(reading, run.summary.queue, run.handler)

        def read_thaw() -> FreezeChange | None:
            summary = run.summary
            since = max(summary.created_at, summary.scheduled_at)
            starts = (*(each.started_at for each in run.attempts), summary.started_at)
            until = next((each for each in starts if each is not None), None)
            if until is None or until - since < _LONG_WAIT:
                return None
            found = in_snapshot(connection, freeze_changes, caller.tenant, since, until)
            names = partial(FreezeChange.names, queue=summary.queue, key=summary.key, labels=run.labels)
            return next((each for each in found if not each.begins and names(each)), None)

        neighbours = payload = None
        if is_stored:
            payload = part_of(connection, read_run_payload, caller.tenant, run_id)
            if run.workflow_run_id:
                neighbours = part_of(connection, read_neighbours, run_id, tenant=caller.tenant)
        sentence = about_run(run, now, None if isinstance(neighbours, Failed) else neighbours)
        log = part(read_output) if is_stored else None
        follows = picked is not None and is_stored and not is_over(run, picked)
        return View(
            {
                "now": now, "run": run, "summary": run.summary, "sentence": sentence,
                "family": "bad" if run.status in DEAD_LETTERED else "trouble" if is_stuck(run, now) else "",
                "timing": timing(run, now), "thaw": part(read_thaw) if is_stored else None,
                "why_late": None if run.late is None else part_of(connection, why_late, caller.tenant, run),
                "is_final": run.summary.status in FINAL, "able": part(read_able),
                "newest": run.attempts[: -_OPEN_ROWS - 1 : -1], "older": run.attempts[: -_OPEN_ROWS][::-1],
                "payload": payload, "neighbours": neighbours,
                "target": part(read_target) if run.handler.startswith(RESERVED) else None,
                "most": _NEIGHBOURS, "picked": picked, "with_logs": with_logs, "log": log,
                "more": more_of(urls, run_id, log) if follows and isinstance(log, Log) else None,
            }
        )  # fmt: skip
