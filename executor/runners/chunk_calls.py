"""Calls of chunk handlers: gather their runs, and run them together until the call has ended.

Runs of one tenant and version number wait for each other. A run that has failed or was lost runs alone: so a run that
ends its process takes no other with it twice. At-most-once runs run alone, or a neighbour's exception would be their
end. Two open runs of an ordering key are never claimed, and so never gathered.

A run is decided once: by its handler, a timeout or a request. That is reported at once, and the call goes on for the
others. Their slots are free when the call has ended. A timeout or a request that leaves no run to decide cancels a
coroutine, and so does the last time limit of all. A thread cannot be stopped from outside: it sees `item.cancelled`.

One timer a call, at the next limit of an undecided run: a decided run has none.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from typing import cast

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import AttemptOver
from tidewheel.executor.attempt import LOSSES, Attempt
from tidewheel.executor.chunk import Chunk, Item
from tidewheel.executor.context import Context
from tidewheel.executor.handlers import ChunkHandler, invalid_payload, left_out, raised
from tidewheel.executor.outcome import CANCELLED, NOT_STARTED, RELEASED, Outcome, from_exception, timed_out
from tidewheel.executor.output_capture import current
from tidewheel.executor.runners.runner import attempt_span
from tidewheel.process import tracing
from tidewheel.process.failpoint import failpoint
from tidewheel.runs import Lane
from tidewheel.transitions.finished import Timeout

_BUSY_SECONDS = 0.005  # with payloads; then the loop serves everything else
_TICK_SECONDS = 0.01  # between two looks at the time limits of a call

# Handler, tenant, lane whose slots the runs take, and job_version, so that no job is in a chunk with two versions.
_Key = tuple[str, str, Lane, int]


class Gathering:
    """The chunks of one executor that wait for further runs; used on the event loop."""

    def __init__(self, chunks: Mapping[str, Chunk], start: Callable[[list[Attempt]], object]) -> None:
        self._chunks, self._start_call = chunks, start
        self._waiting: dict[_Key, tuple[list[Attempt], asyncio.TimerHandle]] = {}

    def takes(self, attempt: Attempt, lane: Lane) -> bool:
        """Take an attempt of a chunk handler, unless it needs a worker process; return False for any other."""
        definition = attempt.definition
        name = definition.target.handler or ""
        if (chunk := self._chunks.get(name)) is None or attempt.started.lost_attempts >= LOSSES:
            return False
        started = attempt.started
        if started.failed_attempts or started.lost_attempts or definition.at_most_once:
            self._start_call([attempt])
            return True
        key = name, definition.tenant, lane, attempt.request.job_version
        if key not in self._waiting:
            self._waiting[key] = [], asyncio.get_running_loop().call_later(chunk.wait_seconds, self._start, key)
        attempts, _ = self._waiting[key]
        attempts.append(attempt)
        if len(attempts) >= chunk.most:
            self._start(key)
        return True

    def start_if(self, is_full: Callable[[Lane], bool]) -> None:
        """Start the chunks of the lanes that no further run can join."""
        for key in [key for key in self._waiting if is_full(key[2])]:
            self._start(key)

    def _start(self, key: _Key) -> None:
        attempts, timer = self._waiting.pop(key)
        timer.cancel()
        self._start_call(attempts)


class _Log(logging.LoggerAdapter[logging.Logger]):
    """A logger whose lines are a run's, though its call has others."""

    def __init__(self, attempt: Attempt, logger: "logging.LoggerAdapter[logging.Logger]") -> None:
        super().__init__(logger.logger, logger.extra)
        self._attempt = attempt

    def log(self, level: int, msg: object, *args: object, stacklevel: int = 1, **kwargs: object) -> None:
        """Log a line, as `logging` does, with the place of the caller."""
        writer = current.set(self._attempt)
        try:
            super().log(level, msg, *args, stacklevel=stacklevel + 1, **kwargs)  # type: ignore[arg-type]  # as they come
        finally:
            current.reset(writer)


class _RunningItem(Item[object]):
    """An item of a call; it makes its context when the handler first reads it."""

    __slots__ = ("running",)

    def __init__(self, payload: object, attempt: Attempt) -> None:
        super().__init__(payload)
        self.running = attempt

    @property
    def context(self) -> Context:
        if self._context is None:
            attempt = self.running
            left = attempt.left_seconds + monotonic_seconds() - attempt.began_at
            made = Context.of_attempt(
                attempt.started,
                attempt.request,
                attempt.definition,
                traceparent=attempt.traceparent,
                deadline_seconds=min(left, attempt.start_to_close_seconds),
                cancelled=attempt.cancelled,
                channel=attempt,
            )
            self._context = replace(made, logger=_Log(attempt, made.logger), _began=attempt.began_at)
        return self._context

    @property
    def cancelled(self) -> bool:
        return self.running.cancelled.is_set()

    def decide(self, outcome: Outcome) -> None:
        """Report the end of the attempt; the first one counts. Its result is not kept."""
        if self.running.report(outcome):
            self.outcome = outcome if outcome.result is None else replace(outcome, result=None)

    _end = decide


class ChunkCall:
    """One call of a chunk handler, with the runs that were gathered for it."""

    def __init__(self, handler: ChunkHandler, attempts: Sequence[Attempt]) -> None:
        self._handler, self._attempts = handler, attempts
        self._items: list[_RunningItem] = []
        self._cancel: Callable[[], object] | None = None  # of the coroutine, or of the wait for a thread; called once
        self._checks = self._stopped = False  # a check is scheduled, for a stop that has decided a run
        self._watching: asyncio.Handle | None = None
        self._loop = asyncio.get_running_loop()

    async def run(self, threads: ThreadPoolExecutor) -> None:
        """Make the call, and return when its code has ended and each run is decided."""
        for attempt in self._attempts:
            attempt.note_start(attempt.claimed_at)  # the wait for others and for a thread counts
        try:
            if self._handler.is_async:
                await self._on_loop()
            else:
                work = self._on_thread if tracing.spans is None else partial(copy_context().run, self._on_thread)
                future = threads.submit(work)
                self._cancel = future.cancel  # no effect once the thread has begun
                self._watch()
                await asyncio.wrap_future(future)
        except BaseException as error:  # noqa: BLE001 - a fault ends these attempts, never the executor
            for attempt in self._attempts:
                attempt.report(attempt.stop_outcome or raised(error))
        finally:
            if self._watching is not None:
                self._watching.cancel()
            for attempt in self._attempts:
                attempt.detach()

    async def _on_loop(self) -> None:
        since = monotonic_seconds()
        for _ in self._begin():
            if monotonic_seconds() - since > _BUSY_SECONDS:
                await asyncio.sleep(0)
                since = monotonic_seconds()
        if not self._items:
            return
        self._cancel = cast("asyncio.Task[None]", asyncio.current_task()).cancel
        self._watching = self._loop.call_soon(self._watch)  # not before the handler waits for the first time
        with self._recorded():
            try:
                outcome = left_out(await cast("Awaitable[object]", self._handler.function(self._items)))
            except BaseException as error:  # noqa: BLE001 - as in `Handler.call`; or `_stop` has requested it
                outcome = CANCELLED if self._cancel is None else self._raised(error)
            self._end(outcome)

    def _on_thread(self) -> None:
        for _ in self._begin():
            pass
        if not self._items:
            return
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._check_limits)
        with self._recorded():
            try:
                outcome = left_out(self._handler.function(self._items))
            except BaseException as error:  # noqa: BLE001 - as in `Handler.call`
                outcome = self._raised(error)
            self._end(outcome)

    def _begin(self) -> Iterator[None]:
        """Start the attempts that may start, one at each step, and make their items."""
        failpoint("attempt.before_effect")
        for attempt in self._attempts:
            if attempt.cancelled.is_set() or attempt.lease.is_over():
                attempt.report(CANCELLED if attempt.cancelled.is_set() else NOT_STARTED)
            elif attempt.left_seconds <= 0:
                attempt.report(timed_out(*_next_limit(attempt)[1:]))
            elif attempt.start():
                try:
                    payload = self._handler.read_payload(attempt.payload, attempt.payload_content_type)
                except ValueError as error:
                    attempt.report(invalid_payload(error))
                except Exception as error:  # noqa: BLE001 - of a model's own code
                    attempt.report(from_exception(error))
                else:
                    self._items.append(_RunningItem(payload, attempt))
            yield

    def _raised(self, error: BaseException) -> Outcome:
        """Return the outcome of the undecided runs; one that `complete_in` finds over fails no other."""
        return RELEASED if isinstance(error, AttemptOver) and len(self._items) > 1 else raised(error)

    def _end(self, outcome: Outcome) -> None:
        failpoint("attempt.after_effect")
        for item in self._items:
            if not item.running.reported:
                item.decide(item.running.stop_outcome or outcome)

    @contextmanager
    def _recorded(self) -> Generator[None]:
        """Capture the output of a call with one run, and record a span for each run."""
        items, alone, spans = self._items, len(self._items) == 1, tracing.spans
        token = current.set(items[0].running if alone else None)
        try:
            with ExitStack() as stack:
                found = [stack.enter_context(attempt_span(spans, one.running, alone=alone)) for one in items if spans]
                for item, span in zip(items, found, strict=False):  # none while traces are off
                    item.running.span = span.traceparent
                yield
                for item, span in zip(items, found, strict=False):
                    ended = item.outcome or item.running.stop_outcome or CANCELLED
                    span.end(ended.kind.value, ended.error_type, ended.error_message)
        finally:
            current.reset(token)

    # How runs are stopped, on the event loop.

    def _watch(self) -> None:
        """Start the time limits; from now on a request reaches its run."""
        for attempt in self._attempts:
            attempt.attach(partial(self._stop, attempt))
            if attempt.cancelled.is_set():  # since its start
                self._stop(attempt)
        self._check_limits()

    def _check_limits(self) -> None:
        """Stop the runs whose time is over. A coroutine with no run to decide has the last of all limits."""
        now, last, ends = monotonic_seconds(), 0.0, list[float]()
        for attempt in self._attempts:
            at, timeout, seconds = _next_limit(attempt)
            if attempt.reported or attempt.stop_outcome is not None:
                last = max(last, at if attempt.began_at else 0.0)
            elif at > now:
                ends.append(at)
            else:
                attempt.expire(timed_out(timeout, seconds))
        if self._watching is not None:
            self._watching.cancel()  # of the wait for a thread
        if (next_at := min(ends, default=last)) > now:
            self._watching = self._loop.call_later(max(next_at - now, _TICK_SECONDS), self._check_limits)
        else:
            self._end_code()

    def _stop(self, attempt: Attempt) -> None:
        """Decide a run; when the executor ends, its coroutine decides it. End the call if no run is left."""
        outcome, on_thread = attempt.stop_outcome or CANCELLED, not self._handler.is_async
        self._stopped |= on_thread or not attempt.reported
        if outcome is not RELEASED or on_thread:
            attempt.report(outcome)
        if self._cancel is not None and not self._checks:  # once for all that are stopped together
            self._checks = True
            self._loop.call_soon(self._check)

    def _check(self) -> None:
        """End the code if stops have left no run to decide."""
        stopped, self._stopped, self._checks = self._stopped, False, False
        if all(run.stop_outcome is not None or (stopped and run.reported) for run in self._attempts):
            self._end_code()

    def _end_code(self) -> None:
        cancel, self._cancel = self._cancel, None
        if cancel is not None:
            cancel()


def _next_limit(attempt: Attempt) -> tuple[float, Timeout, float]:
    """Return the end of the next time limit, with its seconds; a decided run has no heartbeat."""
    start = attempt.began_at or math.inf  # until it starts
    limits = [(start, Timeout.START_TO_CLOSE, attempt.start_to_close_seconds)]
    if attempt.heartbeat_seconds is not None and not attempt.reported:
        limits.append((attempt.last_heartbeat or start, Timeout.HEARTBEAT, attempt.heartbeat_seconds))
    if attempt.closes_at is not None:
        whole = (attempt.definition.schedule_to_close_ms or 0) / 1000
        limits.append((attempt.closes_at - whole, Timeout.SCHEDULE_TO_CLOSE, whole))
    return min((since + seconds, timeout, seconds) for since, timeout, seconds in limits)
