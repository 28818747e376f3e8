"""Discrete-event simulation of the runs that are due at one instant. Pure.

Schedulers write batches of runs before they are due. From that instant on relays publish them, and executors claim and
start them. A service has one core, since Python has one lock. PostgreSQL and the brokers have cores of their own. On a
single machine all share its cores.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count

from tidewheel.control.capacity.costs import Costs

LOOKAHEAD_SECONDS = 5.0
_FIRED = 2000  # timers of a transaction: TIDEWHEEL_FIRE_BATCH
_PUBLISHED = 1000  # messages between two looks of the relay
_CLAIMED = 1000  # runs of a claim
_DELAYED_SECONDS = 0.3  # of the first ends of a burst (docs/adr/0026)
_DELAYED_ENDS = 3000  # ends that are written at the latest
_ENDS_BESIDE_STARTS = 0.2  # ends for each start while starts wait: measured with 100,000 runs
_HOP_SECONDS = 0.01  # from the acknowledgement to the executor: latency's median, less the work


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The installation that works off the burst.

    Args:
        schedulers: Processes.
        relays: Processes.
        executors: Processes.
        slots: Of each executor.
        seconds: A handler's duration.
        postgres: Cores of PostgreSQL.
        brokers: Cores of all brokers.
        shared: Cores of the one machine that everything shares; None where each has its own.
    """

    schedulers: int = 1
    relays: int = 1
    executors: int = 2
    slots: int = 100
    seconds: float = 0.0
    postgres: int = 2
    brokers: int = 2
    shared: int | None = None


@dataclass(frozen=True, slots=True)
class Lateness:
    """Seconds from the due instant to the handlers' starts."""

    p50: float
    p99: float
    last: float
    published: float


def simulate(runs: int, fleet: Fleet, costs: Costs) -> Lateness:
    """Return the lateness of runs that are due at once."""
    return _Simulation(runs, fleet, costs).run()


class _Clock:
    """Events in the order of their times."""

    def __init__(self) -> None:
        self.now = -LOOKAHEAD_SECONDS
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def at(self, time: float, then: Callable[[], None]) -> None:
        heappush(self._events, (time, next(self._numbers), then))

    def run(self) -> None:
        while self._events:
            self.now, _, then = heappop(self._events)
            then()


class _Cores:
    """Cores that work through their queue in its order."""

    def __init__(self, clock: _Clock, cores: int) -> None:
        self._clock, self._free = clock, cores
        self._queue: deque[tuple[float, Callable[[], None]]] = deque()

    def work(self, seconds: float, then: Callable[[], None]) -> None:
        """Continue with `then` after so many seconds on a core."""
        self._queue.append((seconds, then))
        self._begin()

    def _begin(self) -> None:
        while self._free and self._queue:
            seconds, then = self._queue.popleft()
            self._free -= 1
            self._clock.at(self._clock.now + seconds, partial(self._end, then))

    def _end(self, then: Callable[[], None]) -> None:
        self._free += 1
        then()
        self._begin()


class _Simulation:
    """One burst."""

    def __init__(self, runs: int, fleet: Fleet, costs: Costs) -> None:
        self._fleet, self._costs = fleet, costs.burst
        self.clock = _Clock()
        shared = _Cores(self.clock, fleet.shared) if fleet.shared else None
        self._shared = shared
        self._postgres = shared or _Cores(self.clock, fleet.postgres)
        self._brokers = shared or _Cores(self.clock, fleet.brokers)
        self._left, self._ready = runs, 0
        self._published = 0.0
        self._executors = [_Executor(self, self._own()) for _ in range(fleet.executors)]
        self._next_executor = 0
        self._relays: deque[_Cores] = deque(self._own() for _ in range(fleet.relays))
        self._events = self._relays[0]
        self.starts: list[float] = []

    def run(self) -> Lateness:
        """Return the lateness of all."""
        for _ in range(self._fleet.schedulers):
            self._fire(self._own())
        self.clock.at(0.0, self._publish)
        self.clock.run()
        starts = sorted(self.starts)
        return Lateness(
            p50=starts[len(starts) // 2], p99=starts[len(starts) * 99 // 100], last=starts[-1],
            published=self._published,
        )  # fmt: skip

    def steps(self, cores: _Cores, stage: str, runs: int, then: Callable[[], None], *, part: float = 0.5) -> None:
        """Work off a batch in the service, then in PostgreSQL; `part` of what a run costs the stage."""
        cores.work(
            self._seconds(stage, runs, part),
            lambda: self._postgres.work(self._seconds(f"postgres_{stage}", runs, part), then),
        )

    def _seconds(self, stage: str, runs: int, part: float) -> float:
        return part * self._costs[stage] * runs

    def _own(self) -> _Cores:
        """Return the one core of a service, or those that all share."""
        return self._shared or _Cores(self.clock, 1)

    @property
    def fleet(self) -> Fleet:
        """The installation."""
        return self._fleet

    def _fire(self, cores: _Cores) -> None:
        batch = min(_FIRED, self._left)
        if not batch:
            return
        self._left -= batch

        def written() -> None:
            self._ready += batch
            self._publish()
            self._fire(cores)

        self.steps(cores, "scheduler", batch, written, part=1.0)

    def _publish(self) -> None:
        while self.clock.now >= 0 and self._ready and self._relays:
            relay, batch = self._relays.popleft(), min(_PUBLISHED, self._ready)
            self._ready -= batch
            # Half of a run's messages: its event is the other half.
            self.steps(relay, "relay", batch, partial(self._produce, relay, batch))

    def report(self, ends: int) -> None:
        """Publish the events of ends; nothing waits for them, but they take their part of the cores."""
        broker = self._seconds("broker", ends, 0.5)
        self.steps(self._events, "relay", ends, lambda: self._brokers.work(broker, _nothing))

    def _produce(self, relay: _Cores, batch: int) -> None:
        self._relays.append(relay)

        def acknowledged() -> None:
            self._published = self.clock.now
            each, more = divmod(batch, len(self._executors))
            for number in range(len(self._executors)):
                executor = self._executors[(self._next_executor + number) % len(self._executors)]
                messages = each + (number < more)
                if messages:
                    self.clock.at(self.clock.now + _HOP_SECONDS, partial(executor.receive, messages))
            self._next_executor += more

        self._brokers.work(self._seconds("broker", batch, 0.5), acknowledged)
        self._publish()


class _Executor:
    """One executor: claims and starts on one side, ends on the other; both share its core and its slots."""

    def __init__(self, simulation: _Simulation, cores: _Cores) -> None:
        self._simulation, self._cores = simulation, cores
        self._messages, self._claiming = 0, False
        self._ended, self._first_end, self._ending = 0, -1.0, False
        self._started, self._written = 0, 0
        self._slots = [0.0] * simulation.fleet.slots
        heapify(self._slots)

    def receive(self, messages: int) -> None:
        """Take messages from Kafka."""
        self._messages += messages
        self._claim()

    def _claim(self) -> None:
        if self._claiming or not self._messages:
            return
        batch = min(_CLAIMED, self._messages)
        self._messages -= batch
        self._claiming = True
        began = self._simulation.clock.now
        # A start costs as much as an end (docs/adr/0026).
        self._simulation.steps(self._cores, "executor", batch, lambda: self._start(batch, began))

    def _start(self, batch: int, began: float) -> None:
        clock, seconds = self._simulation.clock, self._simulation.fleet.seconds
        last = clock.now
        for number in range(batch):
            # Handlers start one after the other, while the next ones are claimed.
            ready = began + (clock.now - began) * (0.5 + 0.5 * (number + 1) / batch)
            at = max(ready, self._slots[0])
            heapreplace(self._slots, at + seconds)
            self._simulation.starts.append(at)
            last = max(last, at)

        def next_claim() -> None:
            self._started += batch
            self._claiming = False
            self._claim()
            self._write()

        clock.at(last, next_claim)
        clock.at(last + seconds, lambda: self._end(batch))

    def _end(self, runs: int) -> None:
        clock = self._simulation.clock
        self._ended += runs
        if self._first_end < 0:
            self._first_end = clock.now
            clock.at(clock.now + _DELAYED_SECONDS, self._write)
        self._write()

    def _write(self) -> None:
        late = self._simulation.clock.now >= self._first_end + _DELAYED_SECONDS
        if self._ending or not self._ended or not (late or self._ended >= _DELAYED_ENDS):
            return
        batch = min(_CLAIMED, self._ended)
        if self._claiming:
            batch = min(batch, int(self._started * _ENDS_BESIDE_STARTS) - self._written)
        if batch <= 0:
            return
        self._ended -= batch
        self._written += batch
        self._ending = True

        def written() -> None:
            self._ending = False
            self._simulation.report(batch)
            self._write()

        self._simulation.steps(self._cores, "executor", batch, written)


def _nothing() -> None:
    return
