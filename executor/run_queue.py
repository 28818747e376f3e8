"""Queue of claimed attempts; starts them on the event loop.

Most coroutines of a busy executor end without waiting for anything. Such attempts need no task each: one drain task
runs them one after another, each in a context of its own. If one waits, it keeps the task: whatever it has created in
asyncio by then (a timeout, a task group) refers to it. Another task continues with the queue, and from then on that
handler gets a task for each attempt.

Such attempts need no slot each either. While nothing waits, the executor may overcommit: claim more than it has slots,
up to what it works off in 0.1 s. Starts stay bounded: none happens while as many attempts wait as there are slots.
Overcommitted attempts that find no slot within 0.25 s are released, uncounted, to executors that have one.
"""

import asyncio
import logging
import math
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from functools import partial
from types import coroutine

from tidewheel.clock import monotonic_seconds
from tidewheel.executor.attempt import LOSSES, Attempt
from tidewheel.executor.chunk import Chunk
from tidewheel.executor.outcome import NOT_STARTED
from tidewheel.executor.runners.chunk_calls import Gathering
from tidewheel.executor.runners.runner import Timeouts
from tidewheel.executor.slots import Slots
from tidewheel.runs import Lane
from tidewheel.schemas.generated import records

_DRAIN_SECONDS = 0.005  # of one drain; then the loop serves everything else
_OVERCOMMIT_SECONDS = 0.1  # the time in which overcommitted attempts are worked off
_MAX_OVERCOMMIT = 2000  # two claims: one is worked off while the next is in progress
_COOLDOWN_SECONDS = 1.0  # without overcommit after an attempt has waited
_LATE_SECONDS = 0.25  # the longest wait of an overcommitted attempt for a slot, or for a queue that does not progress

_LOG = logging.getLogger("tidewheel.executor")

Run = Coroutine[object, object, None]


class RunQueue:
    """Starts attempts in order, those of the critical lane first.

    Attempts of the handlers in `chunks` wait for others, and `run_chunk` runs them in one call. The `inline` handlers
    are coroutines of this process: each may end without waiting. `run` reports an attempt's end and raises nothing.
    `on_end` is called for each attempt whose code has ended, from any thread.
    """

    def __init__(
        self,
        slots: Slots,
        inline: Iterable[str],
        *,
        run: Callable[[Attempt], Run],
        watch: Callable[[Attempt, "asyncio.Task[None]", float], Timeouts],
        on_end: Callable[[Attempt], None],
        chunks: Mapping[str, Chunk],
        run_chunk: Callable[[Sequence[Attempt]], Run],
    ) -> None:
        self._slots, self._inline = slots, set(inline) - chunks.keys()
        self._run, self._watch, self._on_end, self._run_chunk = run, watch, on_end, run_chunk
        self._gathering = Gathering(chunks, lambda attempts: self._spawn(self._call_chunk(attempts)))
        self._queues = (_Queue(Lane.CRITICAL), _Queue(Lane.STANDARD))  # STANDARD for all other lanes
        self._tasks: set[asyncio.Task[None]] = set()
        self._drainer: asyncio.Task[None] | None = None
        self._late_check_set = self._stopping = False
        self._overcommit, self._overcommit_from = 0, 0.0
        self._drain_ended: float | None = None  # end of the last drain, if more attempts could have started at once
        self._started = 0
        self._late: tuple[float, int] | None = None  # since when the queue is late, and the number started by then
        self._loop: asyncio.AbstractEventLoop
        self._context: Context  # of no attempt: a task that is created in an attempt's context must not inherit it

    def start(self) -> None:
        """Set the running loop."""
        self._loop, self._context = asyncio.get_running_loop(), copy_context()

    def add(self, attempts: Iterable[Attempt]) -> None:
        """Queue attempts whose slots are taken; called from the claiming threads."""
        self._loop.call_soon_threadsafe(self._add, attempts)

    def release(self, attempt: Attempt) -> None:
        """Free the slot of an attempt whose code has ended; called from any thread."""
        queue = self._queue_of(attempt)
        queue.running.discard(attempt)
        self._on_end(attempt)
        self._slots.release(queue.lane, 1)
        if any(queue.attempts for queue in self._queues):
            with suppress(RuntimeError):  # the loop is closed: no attempt starts any more
                self._loop.call_soon_threadsafe(self._schedule)

    async def wait_until_empty(self, seconds: float) -> None:
        """Wait until all attempts have ended, up to this time; no other attempt comes."""
        self._stopping = True
        self._gathering.start_if(lambda _: True)
        until = monotonic_seconds() + seconds
        while self._tasks and (left := until - monotonic_seconds()) > 0:
            await asyncio.wait(set(self._tasks), timeout=left)

    def _add(self, attempts: Iterable[Attempt]) -> None:
        now = monotonic_seconds()
        for attempt in attempts:
            self._queue_of(attempt).attempts.append((attempt, now))
        self._schedule()

    def _queue_of(self, attempt: Attempt) -> "_Queue":
        critical, others = self._queues
        return critical if attempt.definition.lane is records.Lane.CRITICAL else others

    def _schedule(self) -> None:
        if self._drainer is not None:
            return
        if self._next_queue() is not None:
            self._drainer = self._spawn(self._drain())
        elif not self._late_check_set and any(queue.attempts for queue in self._queues):
            self._late_check_set = True
            self._loop.call_later(_LATE_SECONDS, self._check_late)

    def _next_queue(self) -> "_Queue | None":
        for queue in self._queues:
            if queue.attempts and self._may_start(queue.lane):
                return queue
        return None

    def _may_start(self, lane: Lane) -> bool:
        critical, others = self._queues
        return self._slots.may_start(lane, len(critical.running), len(others.running))

    async def _drain(self) -> None:
        """Run queued attempts one after another, until one waits or the drain's time is over."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine of a task
        ended: Counter[Lane] = Counter()
        now = began = monotonic_seconds()
        try:
            while (
                now - began < _DRAIN_SECONDS and not _is_cancelled(task) and (queue := self._next_queue()) is not None
            ):
                attempt, _ = queue.attempts.popleft()
                self._started += 1
                if attempt.definition.target.handler not in self._inline or attempt.started.lost_attempts >= LOSSES:
                    self._note_running(attempt)
                    if not self._gathering.takes(attempt, queue.lane):
                        self._spawn(self._run_in_own_task(attempt))
                    continue
                context, run = copy_context(), self._run(attempt)
                try:
                    waits_for = context.run(run.send, None)
                except StopIteration:
                    self._on_end(attempt)
                    ended[queue.lane] += 1
                    now = monotonic_seconds()
                    continue
                except BaseException:
                    # No attempt raises here. If one did, its slot would still be freed.
                    ended[queue.lane] += 1
                    self._on_end(attempt)
                    raise
                self._inline.discard(attempt.definition.target.handler)
                self._note_running(attempt)
                self._end_drain(ended, began)
                await self._run_to_its_end(attempt, task, now, _rest(run, context, waits_for))
                return
        finally:
            if self._drainer is task:
                self._end_drain(ended, began)

    async def _run_in_own_task(self, attempt: Attempt) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine of a task
        await self._run_to_its_end(attempt, task, monotonic_seconds(), self._run(attempt))

    async def _run_to_its_end(
        self, attempt: Attempt, task: "asyncio.Task[None]", began: float, run: Awaitable[None]
    ) -> None:
        timeouts = self._watch(attempt, task, began)
        try:
            await run
        finally:
            timeouts.end()
        if not attempt.on_thread:
            attempt.release()

    async def _call_chunk(self, attempts: Sequence[Attempt]) -> None:
        """Run attempts of one queue in one call, and free their slots when it has ended."""
        try:
            await self._run_chunk(attempts)
        finally:
            queue = self._queue_of(attempts[0])
            queue.running.difference_update(attempts)
            for attempt in attempts:
                self._on_end(attempt)
            self._slots.release(queue.lane, len(attempts))
            self._schedule()

    def _note_running(self, attempt: Attempt) -> None:
        self._queue_of(attempt).running.add(attempt)
        self._stop_overcommit()

    def _stop_overcommit(self) -> None:
        self._overcommit_from = monotonic_seconds() + _COOLDOWN_SECONDS
        self._set_overcommit(0)

    def _end_drain(self, ended: Mapping[Lane, int], began: float) -> None:
        """Free the slots of attempts that ended without waiting, and let another task continue."""
        self._drainer = None
        for lane, count in ended.items():
            self._slots.release(lane, count)
        self._gathering.start_if(lambda lane: self._stopping or not self._may_start(lane))
        # From the end of one drain to the next: with a busy processor one drain alone overstates the throughput.
        now = monotonic_seconds()
        count, seconds = sum(ended.values()), now - (began if self._drain_ended is None else self._drain_ended)
        self._release_late(now)
        self._drain_ended = None if self._next_queue() is None else now
        if count and now >= self._overcommit_from and self._may_start(Lane.STANDARD):
            # At most doubled at once: a few quick attempts predict little.
            limit = min(2 * max(self._overcommit, self._slots.total), _MAX_OVERCOMMIT)
            self._set_overcommit(min(int(_OVERCOMMIT_SECONDS * count / max(seconds, 1e-6)), limit))
        self._schedule()

    def _set_overcommit(self, count: int) -> None:
        # Each change wakes the claiming threads, so small ones are skipped.
        # A growth step is not small, nor is the step to the maximum.
        is_close = 0 < count < _MAX_OVERCOMMIT and self._overcommit / 2 < count < self._overcommit * 2
        if count != self._overcommit and not is_close:
            self._overcommit = count
            self._slots.set_overcommit(count)

    def _check_late(self) -> None:
        self._late_check_set = False
        self._release_late(monotonic_seconds())
        self._schedule()

    def _release_late(self, now: float) -> None:
        """Release overcommitted attempts if the queue progresses more slowly than expected."""
        before = now - _LATE_SECONDS
        if not any(queue.attempts and queue.attempts[0][1] <= before for queue in self._queues):
            self._late = None
            return
        released, limit = 0, self._late_limit(now)
        for queue in reversed(self._queues):
            blocked = not self._may_start(queue.lane)
            # Of a blocked queue only attempts that have just arrived stay; of the others those that can start soon.
            while queue.attempts and (queue.attempts[0][1] <= before if blocked else len(queue.attempts) > limit):
                attempt, _ = queue.attempts.popleft() if blocked else queue.attempts.pop()
                attempt.report_not_started(NOT_STARTED)
                self._on_end(attempt)
                self._slots.release(queue.lane, 1)
                released += 1
        if released:
            self._stop_overcommit()
            _LOG.info("released %d runs that were claimed beyond the free slots", released)

    def _late_limit(self, now: float) -> float:
        """Return how many attempts may stay in a late queue that progresses: those it starts soon.

        At first all: the process may have had no processor, and then it is as fast as before.
        """
        since, started = self._late = self._late or (now, self._started)
        seconds = now - since
        if seconds < _LATE_SECONDS:
            return math.inf
        self._late = now, self._started
        return max(self._slots.total, _LATE_SECONDS * (self._started - started) / seconds)

    def _spawn(self, run: Run) -> "asyncio.Task[None]":
        task = self._loop.create_task(run, context=self._context.copy())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


@dataclass(slots=True)
class _Queue:
    """Attempts of the critical lane or of all others: running ones, and queued ones with their time."""

    lane: Lane
    running: set[Attempt] = field(default_factory=set[Attempt])  # without those that end without waiting
    attempts: deque[tuple[Attempt, float]] = field(default_factory=deque[tuple[Attempt, float]])


def _is_cancelled(task: "asyncio.Task[None]") -> bool:
    """Return True if a handler has cancelled its task without waiting: the next one must not see that."""
    # In Python 3.11 a cancellation is thrown in at the next suspension even after `uncancel`.
    return bool(task.cancelling() or getattr(task, "_must_cancel", False))


@coroutine
def _rest(run: Run, context: Context, waits_for: object) -> Generator[object, object, None]:
    """Continue a run that was started in a context and waits; awaited by the task that started it."""
    while True:
        try:
            sent = yield waits_for
        except GeneratorExit:
            context.run(run.close)
            raise
        except BaseException as error:  # noqa: BLE001 - a task is cancelled by an exception thrown in here
            step = partial(run.throw, error)
        else:
            step = partial(run.send, sent)
        try:
            waits_for = context.run(step)
        except StopIteration:
            return
