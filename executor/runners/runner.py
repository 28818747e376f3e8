"""The form of a runner, the dispatch of an attempt with its timeouts, and Retry-After.

A timeout that expires cancels the attempt's task, which then reports it, however the handler reacts to being cancelled.
A coroutine that ignores the cancellation is fenced off after a grace: its attempt is over, and its slot is free when
its code has ended.

The grammar of Retry-After is checked before Python's readers see the text: `float` accepts `inf`, `1e9` and `1_000`,
and `parsedate_to_datetime` accepts nearly any words and reads a date without a zone as local time.

Source: RFC 9110, sections 5.6.7 (HTTP-date), 6.6.1 (Date) and 10.2.3 (Retry-After).
"""

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Protocol

from tidewheel.clock import SystemClock, monotonic_seconds
from tidewheel.distribution import require
from tidewheel.errors import SettingsError
from tidewheel.executor.attempt import Attempt
from tidewheel.executor.outcome import CANCELLED, NOT_STARTED, Outcome, failed, from_exception, timed_out
from tidewheel.jobs.targets import TARGETS
from tidewheel.process import tracing
from tidewheel.process.failpoint import failpoint
from tidewheel.runs import AttemptOutcome
from tidewheel.schemas.generated.records import TargetKind
from tidewheel.settings.executor import ExecutorSettings
from tidewheel.transitions.finished import Timeout

if TYPE_CHECKING:
    from tidewheel.process.spans import Attempt as AttemptSpan
    from tidewheel.process.spans import Spans

_LONGEST = timedelta(days=1)
_SECONDS = re.compile(r"(\d+)(?:\.\d+)?", re.ASCII)  # the fraction departs from the RFC: some rate limiters send one
_LONGEST_DIGITS = 5  # a day has 86,400 seconds
_DAYS = "Mon|Tue|Wed|Thu|Fri|Sat|Sun"
_MONTHS = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
_TIME = r"\d\d:\d\d:\d\d"
_HTTP_DATE = re.compile(
    rf"(?:{_DAYS}), \d\d (?:{_MONTHS}) \d{{4}} {_TIME} GMT"
    rf"|(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day, \d\d-(?:{_MONTHS})-\d\d {_TIME} GMT"
    rf"|(?:{_DAYS}) (?:{_MONTHS}) [ \d]\d {_TIME} \d{{4}}",
    re.ASCII,
)


class Runner(Protocol):
    """Runs attempts of one kind of target."""

    async def run(self, attempt: Attempt) -> Outcome:
        """Run an attempt and return its outcome.

        A cancellation of the task means that the attempt's time is over or that it is requested to stop: clean up and
        re-raise. Any other exception is the attempt's failure. Look at `attempt.lease` right before each write to the
        target: once it is over, nothing may be sent, and `NOT_STARTED` is the outcome if nothing was.
        """
        ...

    async def close(self) -> None:
        """Release connections and threads."""
        ...


class DeferredRunner:
    """Loads a runner with its first attempt, in a thread: most executors never need its modules.

    An attempt that waits for the load has not started: its time does not count, and a stop releases it as not started.
    If `load` raises, the attempts that wait fail, and the next one calls it again.
    """

    def __init__(self, load: Callable[[], Runner]) -> None:
        self._load = load
        self._loading: asyncio.Task[Runner | Outcome] | None = None
        self._runner: Runner | None = None

    async def run(self, attempt: Attempt) -> Outcome:
        """Run an attempt and return its outcome."""
        loaded = self._runner or await self._wait_for_load(attempt)
        return loaded if isinstance(loaded, Outcome) else await loaded.run(attempt)

    async def close(self) -> None:
        """Release what was loaded."""
        if self._loading is not None:
            await self._loading
        if self._runner is not None:
            await self._runner.close()

    async def _wait_for_load(self, attempt: Attempt) -> Runner | Outcome:
        if self._loading is None:
            self._loading = asyncio.create_task(self._load_once())
        loading = asyncio.shield(self._loading)  # other attempts wait for it too
        attempt.wait_for_worker(loading.cancel)
        loaded = await loading
        attempt.restart_clock(asyncio.get_running_loop())
        return loaded

    async def _load_once(self) -> Runner | Outcome:
        """Return the runner, or the outcome of the attempts that wait for it."""
        try:
            self._runner = loaded = await asyncio.to_thread(self._load)
            return loaded
        except Exception as error:  # noqa: BLE001 - whatever the import of a library raises
            return replace(from_exception(error), not_started=True)
        finally:
            self._loading = None


def target_kinds(settings: ExecutorSettings) -> list[TargetKind]:
    """Return the types of targets that an executor runs."""
    if unknown := next((name for name in settings.targets if name not in TARGETS), None):
        near = get_close_matches(unknown, TARGETS, n=1)
        remedy = f"did you mean {near[0]!r}?" if near else f"write one or more of {', '.join(TARGETS)}"
        raise SettingsError(f"TIDEWHEEL_TARGETS: there is no target type {unknown!r}; {remedy}")
    if not settings.targets:
        raise SettingsError(f"TIDEWHEEL_TARGETS: the list is empty; write one or more of {', '.join(TARGETS)}")
    kinds = [TargetKind(kind) for kind in TARGETS if kind in settings.targets]
    for kind in kinds:
        allow, extra = TARGETS[kind].allow, TARGETS[kind].extra
        if allow and not getattr(settings, allow):
            variable = f"TIDEWHEEL_{allow.upper()}"
            message = f"TIDEWHEEL_TARGETS names {kind}, but {variable} is empty; name what jobs may use, or * for all"
            raise SettingsError(message)
        if extra:
            require(extra, f"TIDEWHEEL_TARGETS with {kind}")
    return kinds


def capabilities(kinds: Iterable[TargetKind]) -> frozenset[str]:
    """Return the names by which an executor registers these types, beside its handlers."""
    return frozenset(name for kind in kinds if (name := TARGETS[kind].requires))


class TargetDispatcher:
    """Runs attempts with the runner of their target's kind.

    The grace lies between cancelling an attempt's task and fencing the attempt off.
    """

    def __init__(self, runners: Mapping[TargetKind, Runner], *, grace_seconds: float) -> None:
        self._runners, self._grace_seconds = runners, grace_seconds

    def watch(self, attempt: Attempt, task: "asyncio.Task[None]", began: float) -> "Timeouts":
        """Start the timeouts of an attempt that has a task of its own."""
        loop = asyncio.get_running_loop()
        return Timeouts(attempt, loop, task.cancel, began=began, grace_seconds=self._grace_seconds)

    async def run(self, attempt: Attempt) -> None:
        """Run one attempt and report its end."""
        if attempt.cancelled.is_set() or attempt.lease.is_over():
            attempt.report(CANCELLED if attempt.cancelled.is_set() else NOT_STARTED)
            return
        failpoint("attempt.before_effect")
        if not attempt.start():  # it was released because it waited too long for this loop
            return
        if attempt.started.schedule_to_close_at is not None:
            attempt.note_start(monotonic_seconds())
        runner = self._runners.get(attempt.definition.target.kind)
        try:
            if runner is None:
                outcome = _unsupported(attempt)
            elif tracing.spans is None:
                outcome = await runner.run(attempt)
            else:
                outcome = await _traced(tracing.spans, runner, attempt)
        except asyncio.CancelledError as error:
            # Requested by this executor, or raised by the handler's own code, which is a failure like any other.
            outcome = CANCELLED if attempt.cancelled.is_set() else from_exception(error)
        except BaseException as error:  # noqa: BLE001 - a runner's fault ends its attempt, never the executor
            outcome = from_exception(error)
        if attempt.stop_outcome is not None and outcome.kind is not AttemptOutcome.SUCCEEDED:
            outcome = attempt.stop_outcome
        failpoint("attempt.after_effect")
        attempt.report(outcome)


def attempt_span(spans: "Spans", attempt: Attempt, *, alone: bool = True) -> AbstractContextManager["AttemptSpan"]:
    """Return the span of an attempt, to be entered when its target starts."""
    definition = attempt.definition
    about: dict[str, str | int | bool] = {
        "messaging.system": "kafka",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "tidewheel.run_id": str(attempt.run_id),
        "tidewheel.attempt": attempt.started.attempt,
        "tidewheel.job.key": definition.job_key,
        "tidewheel.tenant": definition.tenant,
        "tidewheel.queue": definition.queue,
        "tidewheel.lane": definition.lane.value,
        "tidewheel.cause": attempt.request.cause.value,
    }
    name = f"process {definition.target.handler or definition.target.kind.value}"
    traceparent = attempt.request.traceparent
    return spans.attempt(attempt.run_id, attempt.started.attempt, traceparent, name, about, alone=alone)


async def _traced(spans: "Spans", runner: Runner, attempt: Attempt) -> Outcome:
    """Run an attempt within a span, which its target sees as the parent."""
    with attempt_span(spans, attempt) as span:
        attempt.span = span.traceparent
        outcome = await runner.run(attempt)
        span.end(outcome.kind.value, outcome.error_type, outcome.error_message)
        return outcome


class Timeouts:
    """The timeouts of an attempt since its monotonic start, until `end`; used on the event loop."""

    __slots__ = ("_attempt", "_fence", "_grace_seconds", "_heartbeat", "_loop", "_schedule_to_close", "_start_to_close")

    def __init__(
        self,
        attempt: Attempt,
        loop: asyncio.AbstractEventLoop,
        cancel_task: Callable[[], object],
        *,
        began: float,
        grace_seconds: float,
    ) -> None:
        self._attempt, self._loop, self._grace_seconds = attempt, loop, grace_seconds
        self._fence: asyncio.TimerHandle | None = None
        self._start_to_close: asyncio.TimerHandle | None = None
        self._schedule_to_close: asyncio.TimerHandle | None = None
        self._heartbeat: asyncio.TimerHandle | None = None
        elapsed = monotonic_seconds() - began
        self._start_clock(elapsed)
        attempt.attach(cancel_task, self)
        attempt.note_start(began)
        if attempt.closes_at is not None:
            whole = (attempt.definition.schedule_to_close_ms or 0) / 1000
            left = attempt.closes_at - monotonic_seconds()
            self._schedule_to_close = loop.call_later(left, self._expire, Timeout.SCHEDULE_TO_CLOSE, whole)
        # Other targets send heartbeats from outside, with the task token, while they wait: PostgreSQL keeps those.
        seconds = attempt.heartbeat_seconds
        if seconds is not None and attempt.definition.target.kind is TargetKind.HANDLER:
            attempt.last_heartbeat = attempt.last_heartbeat or began
            self._heartbeat = loop.call_later(seconds - elapsed, self._check_heartbeat, seconds)

    def end(self) -> None:
        """Cancel the timers: the attempt has ended."""
        self._attempt.detach()
        self.pause()
        for handle in (self._schedule_to_close, self._heartbeat, self._fence):
            if handle is not None:
                handle.cancel()

    def pause(self) -> None:
        """Stop start_to_close and heartbeat: waiting for a thread or a process is not the attempt's time."""
        self._attempt.last_heartbeat = None
        if self._start_to_close is not None:
            self._start_to_close.cancel()
            self._start_to_close = None

    def restart(self) -> None:
        """Give the attempt its full time from now on."""
        if self._start_to_close is None and not self._attempt.reported:
            self._attempt.last_heartbeat = monotonic_seconds()
            self._start_clock(0.0)

    def _start_clock(self, elapsed: float) -> None:
        seconds = self._attempt.start_to_close_seconds
        self._start_to_close = self._loop.call_later(seconds - elapsed, self._expire, Timeout.START_TO_CLOSE, seconds)

    def _check_heartbeat(self, seconds: float) -> None:
        last = self._attempt.last_heartbeat
        left = seconds if last is None else last + seconds - monotonic_seconds()
        if left > 0:
            self._heartbeat = self._loop.call_later(left, self._check_heartbeat, seconds)
        else:
            self._expire(Timeout.HEARTBEAT, seconds)

    def _expire(self, which: Timeout, seconds: float) -> None:
        attempt, outcome = self._attempt, timed_out(which, seconds)
        # Other runners clean up and end by themselves. Only a user's coroutine can ignore its cancellation.
        if attempt.expire(outcome) and attempt.definition.target.kind is TargetKind.HANDLER:
            self._fence = self._loop.call_later(self._grace_seconds, attempt.report, outcome)


def _unsupported(attempt: Attempt) -> Outcome:
    kind = attempt.definition.target.kind
    return failed("UnsupportedTarget", f"this executor's release has no target {kind}; upgrade it", permanent=True)


def retry_after(headers: Mapping[str, str]) -> timedelta | None:
    """Return the delay in a response's headers, at most a day; None if it is missing or malformed.

    A date is compared with the response's Date.

    >>> [retry_after({"retry-after": text}) for text in ("90", "1.5", "inf", "1e9", "1_000", "-5")]
    [datetime.timedelta(seconds=90), datetime.timedelta(seconds=1, microseconds=500000), None, None, None, None]
    """
    value = headers.get("retry-after", "").strip(" \t")
    if seconds := _SECONDS.fullmatch(value):
        whole = seconds[1].lstrip("0")
        return min(timedelta(seconds=float(value)), _LONGEST) if len(whole) <= _LONGEST_DIGITS else _LONGEST
    if (until := _instant(value)) is None:
        return None
    served_at = _instant(headers.get("date", "")) or SystemClock().now()
    return min(max(until - served_at, timedelta(0)), _LONGEST)


def _instant(text: str) -> datetime | None:
    if not _HTTP_DATE.fullmatch(text):
        return None
    try:
        return parsedate_to_datetime(text).replace(tzinfo=UTC)  # the third form has no zone, and is in GMT as well
    except ValueError:  # a day or an hour that does not exist
        return None
