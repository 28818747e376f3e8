"""Run one attempt on the event loop: its target, its timeouts by monotonic clock, and its report.

A timeout that expires cancels the attempt's task, which then reports it, however the handler reacts to being cancelled.
A coroutine that ignores the cancellation is fenced off after a grace: its attempt is over, and its slot is free when
its code has ended.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tidewheel.clock import monotonic_seconds
from tidewheel.executor.attempt import Attempt
from tidewheel.executor.outcome import CANCELLED, NOT_STARTED, Outcome, failed, from_exception, timed_out
from tidewheel.executor.runners.runner import Runner
from tidewheel.process import tracing
from tidewheel.process.failpoint import failpoint
from tidewheel.runs import AttemptOutcome
from tidewheel.schemas.generated.records import TargetKind
from tidewheel.transitions.retry import Timeout

if TYPE_CHECKING:
    from tidewheel.process.spans import Spans


class TargetDispatcher:
    """Runs attempts with the runner of their target's kind.

    Args:
        grace_seconds: Between cancelling an attempt's task and fencing the attempt off.
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


async def _traced(spans: "Spans", runner: Runner, attempt: Attempt) -> Outcome:
    """Run an attempt within a span, which its target sees as the parent."""
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
    with spans.attempt(attempt.run_id, attempt.started.attempt, attempt.request.traceparent, name, about) as span:
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
            attempt.reset_heartbeat(attempt.last_heartbeat or began)
            self._heartbeat = loop.call_later(seconds - elapsed, self._check_heartbeat, seconds)

    def end(self) -> None:
        """Cancel the timers: the attempt has ended."""
        self._attempt.detach_clock()
        self.pause()
        for handle in (self._schedule_to_close, self._heartbeat, self._fence):
            if handle is not None:
                handle.cancel()

    def pause(self) -> None:
        """Stop start_to_close and heartbeat: waiting for a thread or a process is not the attempt's time."""
        self._attempt.reset_heartbeat(None)
        if self._start_to_close is not None:
            self._start_to_close.cancel()
            self._start_to_close = None

    def restart(self) -> None:
        """Give the attempt its full time from now on."""
        if self._start_to_close is None and not self._attempt.reported:
            self._attempt.reset_heartbeat(monotonic_seconds())
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
