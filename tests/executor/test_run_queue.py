"""Starts of claimed attempts: many in one task, waiting ones in their own, never more than slots."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import pytest

from tests.executor.attempting import attempt_of
from tests.fixtures.services import until
from tidewheel.clock import monotonic_seconds
from tidewheel.executor.attempt import Attempt
from tidewheel.executor.chunk import Chunk
from tidewheel.executor.outcome import NOT_STARTED, Outcome, succeeded
from tidewheel.executor.run_queue import RunQueue
from tidewheel.executor.runners.runner import TargetDispatcher
from tidewheel.executor.slots import Slots
from tidewheel.runs import Lane
from tidewheel.schemas.generated import records
from tidewheel.schemas.generated.records import TargetKind

BRIEF: dict[str, Any] = {"target": "brief"}
SEEN: ContextVar[int | None] = ContextVar("seen", default=None)

Does = Callable[[Attempt], Coroutine[object, object, None]]


@dataclass
class Clock:
    """The queue's clock, which passes only while the thread is busy."""

    now: float = 0.0

    def busy_for(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("tidewheel.executor.run_queue.monotonic_seconds", lambda: made.now)
    return made


async def until_async(condition: Callable[[], object], what: str) -> None:
    await asyncio.to_thread(until, condition, what)


async def nothing(attempt: Attempt) -> None:
    """Succeed at once."""


class Runner:
    def __init__(self, does: Does) -> None:
        self._does = does

    async def run(self, attempt: Attempt) -> Outcome:
        await self._does(attempt)
        return succeeded(None)

    async def close(self) -> None:
        """Nothing is held."""


class Running:
    """A line whose attempts do what a test wants, and what became of them."""

    def __init__(self, does: Does, slots: int = 10) -> None:
        self.slots = Slots(slots)
        self.ended: list[Attempt] = []
        self.outcomes: dict[int, Outcome] = {}
        self.calls: list[int] = []
        work = TargetDispatcher({TargetKind.HANDLER: Runner(does)}, grace_seconds=1)
        self.line = RunQueue(
            self.slots,
            ["brief"],
            run=work.run,
            watch=work.watch,
            on_end=self.ended.append,
            chunks={"chunked": Chunk(most=5, wait=10)},
            run_chunk=self._call,
        )
        self.line.start()

    def attempts(self, count: int, **job: object) -> list[Attempt]:
        """Attempts, numbered from 1, whose slots are taken."""
        first = max(self.outcomes, default=0) + 1
        lane = Lane(str(job.get("lane", "standard")))
        assert self.slots.take_overcommit(lane, count).taken == count
        return [self.attempt(number, **job) for number in range(first, first + count)]

    def attempt(self, number: int, **job: object) -> Attempt:
        plain = attempt_of(BRIEF | job, number=number)
        return Attempt(plain.started, plain.request, plain.definition, self._note, on_release=self.line.release)

    async def run(self, count: int, **job: object) -> None:
        before = len(self.ended)
        self.line.add(self.attempts(count, **job))
        await self.all_ended(before + count)

    async def all_ended(self, count: int) -> None:
        await until_async(lambda: len(self.ended) == count, "all have ended")

    async def _call(self, attempts: Sequence[Attempt]) -> None:
        self.calls.append(len(attempts))

    def _note(self, attempt: Attempt, outcome: Outcome) -> None:
        self.outcomes[attempt.started.attempt] = outcome


async def test_attempts_that_never_wait_share_a_task_and_no_context() -> None:
    tasks: list[object] = []
    seen: list[int | None] = []

    async def does(attempt: Attempt) -> None:
        tasks.append(asyncio.current_task())
        seen.append(SEEN.get())
        SEEN.set(attempt.started.attempt)

    running = Running(does)
    attempts = running.attempts(5)
    running.line.add(attempts)
    await running.all_ended(5)
    assert running.ended == attempts
    await until_async(lambda: running.slots.free(Lane.CRITICAL) == 10, "the slots are free")
    assert SEEN.get() is None
    assert seen == [None] * 5
    assert len(set(tasks)) == 1


async def test_waiting_attempt_keeps_its_task_and_others_continue() -> None:
    tasks: dict[int, list[object]] = {}
    gate = asyncio.Event()

    async def does(attempt: Attempt) -> None:
        number = attempt.started.attempt
        tasks[number] = [asyncio.current_task()]
        SEEN.set(number)
        if number == 2:
            async with asyncio.timeout(30):
                await gate.wait()
        tasks[number].append(asyncio.current_task())
        assert SEEN.get() == number

    running = Running(does)
    running.line.add(running.attempts(4))
    await running.all_ended(3)
    assert [attempt.started.attempt for attempt in running.ended] == [1, 3, 4]
    assert running.slots.free(Lane.CRITICAL) == 9
    gate.set()
    await running.all_ended(4)
    assert running.slots.free(Lane.CRITICAL) == 10
    assert set(running.outcomes.values()) == {succeeded(None)}
    assert all(before is after for before, after in tasks.values())
    assert tasks[2][0] is tasks[1][0]
    assert tasks[2][0] is not tasks[3][0]


async def test_asyncio_timeout_hits_the_handler_that_set_it() -> None:
    async def does(attempt: Attempt) -> None:
        if attempt.started.attempt == 2:
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()

    running = Running(does)
    await running.run(3)
    assert [running.outcomes[number].error_type for number in (1, 2, 3)] == [None, "TimeoutError", None]


async def test_self_cancellation_does_not_reach_the_next_handler() -> None:
    async def does(attempt: Attempt) -> None:
        task = asyncio.current_task()
        assert task is not None
        if attempt.started.attempt > 1:
            await asyncio.sleep(0)
            return
        task.cancel()
        if taken_back:
            task.uncancel()

    for taken_back in (False, True):
        running = Running(does)
        await running.run(3)
        assert set(running.outcomes.values()) == {succeeded(None)}, taken_back


async def test_handler_that_waited_once_gets_its_own_tasks() -> None:
    tasks: list[object] = []

    async def does(attempt: Attempt) -> None:
        tasks.append(asyncio.current_task())
        if attempt.started.attempt == 1:
            await asyncio.sleep(0)

    running = Running(does)
    await running.run(1)
    await running.run(3)
    assert len(set(tasks)) == 4


async def test_starts_are_bounded_by_slots_and_the_rest_is_released() -> None:
    begun: list[int] = []
    gate = asyncio.Event()

    async def does(attempt: Attempt) -> None:
        begun.append(attempt.started.attempt)
        await gate.wait()

    running = Running(does, slots=3)
    running.slots.set_overcommit(7)
    running.line.add(running.attempts(10))
    await running.all_ended(7)
    assert begun == [1, 2, 3]
    assert {running.outcomes[number] for number in range(4, 11)} == {NOT_STARTED}
    gate.set()
    await running.all_ended(10)
    assert running.slots.free(Lane.CRITICAL) == 3


async def test_the_critical_lane_goes_first() -> None:
    order: list[str] = []

    async def does(attempt: Attempt) -> None:
        order.append(attempt.definition.lane)

    running = Running(does, slots=20)
    running.line.add([*running.attempts(3), *running.attempts(2, lane="critical")])
    await running.all_ended(5)
    assert order == ["critical"] * 2 + ["standard"] * 3


@pytest.mark.parametrize("waits", [False, True])
async def test_overcommit_needs_that_no_attempt_waits(waits: bool) -> None:  # noqa: FBT001
    async def does(attempt: Attempt) -> None:
        if waits and attempt.started.attempt == 2:
            await asyncio.sleep(0)

    running = Running(does, slots=5)
    assert running.slots.free_overcommit(Lane.STANDARD) == 5
    await running.run(5)
    await until_async(lambda: running.slots.free(Lane.STANDARD) == 5, "the slots are free")
    assert (running.slots.free_overcommit(Lane.STANDARD) > 5) is not waits


async def test_drain_yields_to_the_event_loop(clock: Clock) -> None:
    async def does(attempt: Attempt) -> None:
        clock.busy_for(0.002)

    running = Running(does, slots=60)
    running.line.add(running.attempts(50))
    turns = 0
    while len(running.ended) < 50:
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 10


async def test_contexts_do_not_leak_after_a_wait() -> None:
    seen: list[int | None] = []

    async def does(attempt: Attempt) -> None:
        seen.append(SEEN.get())
        SEEN.set(attempt.started.attempt)
        if attempt.started.attempt == 1:
            await asyncio.sleep(0.01)

    running = Running(does, slots=1)
    running.line.add(running.attempts(1, target="apart"))  # in a task of its own from the start
    running.line.add([running.attempt(number) for number in range(2, 6)])
    await running.all_ended(5)
    assert seen == [None] * 5


async def test_full_lane_is_not_overcommitted() -> None:
    gate = asyncio.Event()

    async def does(attempt: Attempt) -> None:
        if attempt.definition.lane is records.Lane.STANDARD:
            await gate.wait()

    running = Running(does, slots=20)
    waiting = running.attempts(18, target="apart")
    running.line.add(waiting)
    until_calm = monotonic_seconds() + 1.1  # longer than nothing is claimed ahead after one has waited
    await until_async(lambda: monotonic_seconds() > until_calm, "a while has passed")
    running.outcomes[100] = succeeded(None)
    await running.run(1, lane="critical")
    assert running.slots.free_overcommit(Lane.STANDARD) == 0
    gate.set()
    await running.all_ended(19)


async def test_existing_slots_stay_with_their_attempts() -> None:
    gate = asyncio.Event()

    async def does(attempt: Attempt) -> None:
        await gate.wait()

    running = Running(does, slots=20)
    running.line.add(running.attempts(16))
    assert running.slots.take(Lane.STANDARD, 10) == 2
    assert running.slots.take(Lane.CRITICAL, 2) == 2
    running.line.add([running.attempt(100 + number, lane="critical") for number in range(2)])
    running.line.add([running.attempt(200 + number) for number in range(2)])
    until_late = monotonic_seconds() + 0.5  # than what finds no slot goes back
    await until_async(lambda: monotonic_seconds() > until_late, "a while has passed")
    assert running.outcomes == {}
    gate.set()
    await running.all_ended(20)
    assert set(running.outcomes.values()) == {succeeded(None)}


async def test_late_overcommitted_attempts_are_released(clock: Clock) -> None:
    async def does(attempt: Attempt) -> None:
        if attempt.started.attempt > 1:
            clock.busy_for(0.03)

    running = Running(does, slots=20)
    running.line.add(running.attempts(1))
    await until_async(lambda: running.slots.free_overcommit(Lane.STANDARD) > 50, "more may be claimed")
    await running.run(50)
    assert sum(outcome is NOT_STARTED for outcome in running.outcomes.values()) > 0
    assert running.slots.free(Lane.CRITICAL) == 20


async def test_pause_of_the_process_releases_nothing(clock: Clock) -> None:
    async def does(attempt: Attempt) -> None:
        clock.busy_for(0.4 if attempt.started.attempt == 2 else 0.0005)

    running = Running(does, slots=100)
    running.line.add(running.attempts(1))
    await until_async(lambda: running.slots.free_overcommit(Lane.STANDARD) > 250, "more may be claimed")
    await running.run(250)  # all but the first within a few turns
    assert set(running.outcomes.values()) == {succeeded(None)}


def test_busy_processor_lowers_the_overcommit(clock: Clock) -> None:
    async def does(attempt: Attempt) -> None:
        clock.busy_for(0.0001)

    async def ahead(others: float) -> int:
        running = Running(does, slots=100)
        most = count = 0
        for _ in range(6):
            free = running.slots.free_overcommit(Lane.STANDARD)
            running.line.add(running.attempts(free))
            count += free
            while len(running.ended) < count:
                clock.busy_for(others)
                await asyncio.sleep(0)
            most = max(most, running.slots.free_overcommit(Lane.STANDARD))
        return most

    assert asyncio.run(ahead(0.05)) * 2 < asyncio.run(ahead(0))


async def test_overcommit_grows_by_steps(clock: Clock) -> None:
    """Each step is twice the one before; one that counted as no change kept it at the first for ever."""
    running, seen = Running(nothing), list[int]()
    for round_ in range(1, 5):
        free = running.slots.free_overcommit(Lane.STANDARD)
        seen.append(free)
        await running.run(free)
        await until_async(lambda free=free: running.slots.free_overcommit(Lane.STANDARD) > free, f"more in {round_}")
    assert seen == [9, 29, 49, 89]


async def test_claim_under_way_starts_no_chunk_early() -> None:
    running = Running(nothing, slots=4)
    attempts = running.attempts(4, target="chunked")
    running.line.add(attempts[:2])
    for _ in range(10):  # turns of the loop, more than the queue takes
        await asyncio.sleep(0)
    assert not running.calls, "the claim under way has the other two slots"
    running.line.add(attempts[2:])
    await running.all_ended(4)
    assert running.calls == [4]


async def test_stopping_queue_starts_chunks_that_are_gathered_later() -> None:
    gate = asyncio.Event()

    async def does(attempt: Attempt) -> None:
        await gate.wait()

    running = Running(does, slots=1)
    running.line.add(running.attempts(1))
    running.line.add([running.attempt(2, target="chunked")])
    stopping = asyncio.create_task(running.line.wait_until_empty(30))
    await asyncio.sleep(0)
    gate.set()
    await stopping
    assert running.calls == [1]
