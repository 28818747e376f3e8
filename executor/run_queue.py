"""The line of attempts that are claimed and have not begun, and how they begin; nearly all of it on the event loop.

Most coroutines of a busy executor end without having waited for anything. Such attempts need no task each: one task
works them off, one after another, each in a context of its own. The first time that one waits, the task is its own from
there on, for what it has asked asyncio for by then (a timeout, a task group) names that task; another task goes on with
the line, and the handler gets a task each time from then on.

Nor do they need a slot each: while nothing waits, as much may be claimed beyond the slots as is worked off in a moment.
What begins is bounded all the same: nothing does while as many wait as there are slots. What finds none within a moment
goes back, uncharged, to executors that have one.
"""

import asyncio
import logging
import math
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Mapping
from contextlib import suppress
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from functools import partial
from types import coroutine

from tidewheel.clock import monotonic_seconds
from tidewheel.executor.attempt import Attempt
from tidewheel.executor.outcome import NOT_BEGUN
from tidewheel.executor.runners.python import LOSSES
from tidewheel.executor.slots import Slots
from tidewheel.executor.timeouts import Timeouts
from tidewheel.runs import Lane
from tidewheel.schemas.generated import records

_TURN_SECONDS = 0.005  # then the loop sees to everything else
_AHEAD_SECONDS = 0.1  # what is claimed ahead is worked off within this
_MOST_AHEAD = 2000  # two claims: one is worked off while the next is under way
_CALM_SECONDS = 1.0  # for so long after an attempt has waited, nothing is claimed ahead
_PATIENCE_SECONDS = 0.25  # of what was claimed ahead: for a slot, and for a line that does not get through

_LOG = logging.getLogger("tidewheel.executor")

Run = Coroutine[object, object, None]


class Line:
    """Begins attempts in their order, those of the critical lane first.

    Args:
        slots: Of the executor.
        brief: Names of handlers that are coroutines of this process, of which each may end without waiting.
        run: Runs an attempt and reports its end; lets nothing pass.
        watch: Lets the timeouts of an attempt strike, which has this task of its own and has begun at that moment.
        on_end: Told of each attempt whose code has ended; called from every thread.
    """

    def __init__(
        self,
        slots: Slots,
        brief: Iterable[str],
        *,
        run: Callable[[Attempt], Run],
        watch: Callable[[Attempt, "asyncio.Task[None]", float], Timeouts],
        on_end: Callable[[Attempt], None],
    ) -> None:
        self._slots, self._brief = slots, set(brief)
        self._run, self._watch, self._on_end = run, watch, on_end
        self._queues = (_Queue(Lane.CRITICAL), _Queue(Lane.STANDARD))  # STANDARD stands for all the others
        self._tasks: set[asyncio.Task[None]] = set()
        self._worker: asyncio.Task[None] | None = None
        self._will_look = False
        self._ahead, self._calm_from = 0, 0.0
        self._turn_ended: float | None = None  # the last one, where more could have begun at once
        self._begun = 0
        self._late: tuple[float, int] | None = None  # since when the line is, and how many had begun by then
        self._loop: asyncio.AbstractEventLoop
        self._context: Context  # nobody's: what is begun from an attempt's own must not go on in it

    def start(self) -> None:
        """Take note of the running loop."""
        self._loop, self._context = asyncio.get_running_loop(), copy_context()

    def add(self, attempts: Iterable[Attempt]) -> None:
        """Begin these, whose slots are taken; called from the claiming threads."""
        self._loop.call_soon_threadsafe(self._add, attempts)

    def release(self, attempt: Attempt) -> None:
        """The code of an attempt has ended; called from every thread."""
        queue = self._queue_of(attempt)
        queue.begun.discard(attempt)
        self._on_end(attempt)
        self._slots.give_back(queue.lane, 1)
        if any(queue.attempts for queue in self._queues):
            with suppress(RuntimeError):  # the loop is closed: nothing begins any more
                self._loop.call_soon_threadsafe(self._go_on)

    async def wait_until_empty(self, seconds: float) -> None:
        """Let everything end, within its time."""
        until = monotonic_seconds() + seconds
        while self._tasks and (left := until - monotonic_seconds()) > 0:
            await asyncio.wait(set(self._tasks), timeout=left)

    def _add(self, attempts: Iterable[Attempt]) -> None:
        now = monotonic_seconds()
        for attempt in attempts:
            self._queue_of(attempt).attempts.append((attempt, now))
        self._go_on()

    def _queue_of(self, attempt: Attempt) -> "_Queue":
        critical, others = self._queues
        return critical if attempt.definition.lane is records.Lane.CRITICAL else others

    def _go_on(self) -> None:
        if self._worker is not None:
            return
        if self._first() is not None:
            self._worker = self._spawn(self._work_off())
        elif not self._will_look and any(queue.attempts for queue in self._queues):
            self._will_look = True
            self._loop.call_later(_PATIENCE_SECONDS, self._look)

    def _first(self) -> "_Queue | None":
        """Whose first attempt may begin now."""
        for queue in self._queues:
            if queue.attempts and self._may_begin(queue.lane):
                return queue
        return None

    def _may_begin(self, lane: Lane) -> bool:
        critical, others = self._queues
        return self._slots.may_begin(lane, len(critical.begun), len(others.begun))

    async def _work_off(self) -> None:
        """Work off the line, as long as nothing waits and it is this task's turn."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine of a task
        ended: Counter[Lane] = Counter()
        now = began = monotonic_seconds()
        try:
            while now - began < _TURN_SECONDS and not _is_cancelled(task) and (queue := self._first()) is not None:
                attempt, _ = queue.attempts.popleft()
                self._begun += 1
                if attempt.definition.target.handler not in self._brief or attempt.started.lost_attempts >= LOSSES:
                    self._note_begun(attempt)
                    self._spawn(self._run_apart(attempt))
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
                    # Nothing of an attempt's comes here; were it so, its slot must not be lost with it.
                    ended[queue.lane] += 1
                    self._on_end(attempt)
                    raise
                self._brief.discard(attempt.definition.target.handler)
                self._note_begun(attempt)
                self._end_turn(ended, began)
                await self._run_to_its_end(attempt, task, now, _rest(run, context, waits_for))
                return
        finally:
            if self._worker is task:
                self._end_turn(ended, began)

    async def _run_apart(self, attempt: Attempt) -> None:
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

    def _note_begun(self, attempt: Attempt) -> None:
        self._queue_of(attempt).begun.add(attempt)
        self._calm_down()

    def _calm_down(self) -> None:
        """Claim nothing ahead, and not for a while."""
        self._calm_from = monotonic_seconds() + _CALM_SECONDS
        self._allow_ahead(0)

    def _end_turn(self, ended: Mapping[Lane, int], began: float) -> None:
        """So many have ended without waiting: their slots are free, and it is another task's turn."""
        self._worker = None
        for lane, count in ended.items():
            self._slots.give_back(lane, count)
        # From one turn's end to the next: where the processor is short, a turn alone says little of what gets through.
        now = monotonic_seconds()
        count, seconds = sum(ended.values()), now - (began if self._turn_ended is None else self._turn_ended)
        self._hand_back_late(now)
        self._turn_ended = None if self._first() is None else now
        if count and now >= self._calm_from and self._may_begin(Lane.STANDARD):
            # By steps: a few quick ones tell little of what comes.
            most = min(2 * max(self._ahead, self._slots.total), _MOST_AHEAD)
            self._allow_ahead(min(int(_AHEAD_SECONDS * count / max(seconds, 1e-6)), most))
        self._go_on()

    def _allow_ahead(self, count: int) -> None:
        # Each change wakes the claiming threads: small ones are not worth it.
        # A step of growth is none, nor is the last one.
        is_close = 0 < count < _MOST_AHEAD and self._ahead / 2 < count < self._ahead * 2
        if count != self._ahead and not is_close:
            self._ahead = count
            self._slots.allow_ahead(count)

    def _look(self) -> None:
        """Nothing could begin for a while."""
        self._will_look = False
        self._hand_back_late(monotonic_seconds())
        self._go_on()

    def _hand_back_late(self, now: float) -> None:
        """Hand back what was claimed ahead, where the line has not moved as it was expected to."""
        before = now - _PATIENCE_SECONDS
        if not any(queue.attempts and queue.attempts[0][1] <= before for queue in self._queues):
            self._late = None
            return
        released, most = 0, self._most_of_late(now)
        for queue in reversed(self._queues):
            blocked = not self._may_begin(queue.lane)
            # What could begin soon stays; of what is blocked only what came just now.
            while queue.attempts and (queue.attempts[0][1] <= before if blocked else len(queue.attempts) > most):
                attempt, _ = queue.attempts.popleft() if blocked else queue.attempts.pop()
                attempt.report_unbegun(NOT_BEGUN)
                self._on_end(attempt)
                self._slots.give_back(queue.lane, 1)
                released += 1
        if released:
            self._calm_down()
            _LOG.info("handed on %d runs that were claimed ahead and found no slot", released)

    def _most_of_late(self, now: float) -> float:
        """How many may stay in a late line that moves: what it gets through soon, as it has since it was seen late.

        At first all: this process may have had no processor, and then it is as quick as before.
        """
        since, begun = self._late = self._late or (now, self._begun)
        seconds = now - since
        if seconds < _PATIENCE_SECONDS:
            return math.inf
        self._late = now, self._begun
        return max(self._slots.total, _PATIENCE_SECONDS * (self._begun - begun) / seconds)

    def _spawn(self, run: Run) -> "asyncio.Task[None]":
        task = self._loop.create_task(run, context=self._context.copy())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


@dataclass(slots=True)
class _Queue:
    """Attempts of the critical lane, or of the others: which have begun, and which are in the line, since when."""

    lane: Lane
    begun: set[Attempt] = field(default_factory=set[Attempt])  # and not ended; not those that ended without waiting
    attempts: deque[tuple[Attempt, float]] = field(default_factory=deque[tuple[Attempt, float]])


def _is_cancelled(task: "asyncio.Task[None]") -> bool:
    """Whether a handler has cancelled its task and waited for nothing: that was not for the next one."""
    # What `uncancel` takes back is still thrown in at the next suspension in Python 3.11.
    return bool(task.cancelling() or getattr(task, "_must_cancel", False))


@coroutine
def _rest(run: Run, context: Context, waits_for: object) -> Generator[object, object, None]:
    """The rest of a run that was begun in a context and waits; awaited by the task that has begun it."""
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
