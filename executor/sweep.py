"""The sweep: claims from the table what has been due for a while and Kafka has not brought.

It bounds every stall of Kafka, serves a queue that has no topics yet, finds a run whose message was lost, and takes
what another executor has fetched and has no slot for. No message is published twice for it.

A look finds what is due and too young as well, and the next look comes when the oldest of that has waited long enough:
so a run waits for a free slot hardly longer than `every`, though nobody looks more often.

While messages fill every slot, a lane is looked at all the same, but rarely: what has been due for very long is given
the next slots that come free, a few at a time, so that it does not wait until the messages end.

Definitions and inputs are read when there are slots: who is full reads what is due, and not what it would need for it.
"""

import logging
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import cast
from uuid import UUID

import psycopg
from psycopg.rows import class_row

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import Unavailable, UndecodableMessage
from tidewheel.executor.claim import Claimer
from tidewheel.executor.claim_batch import Begin
from tidewheel.executor.slots import Slots
from tidewheel.postgres.low_water import LowWaterMarks
from tidewheel.postgres.session import Session
from tidewheel.postgres.statements import Statements
from tidewheel.process.service import Shutdown, run_loop
from tidewheel.runs import Lane, Move, sources
from tidewheel.schemas.generated.records import JobDefinition, RunRequest
from tidewheel.transitions.claim import Claim
from tidewheel.transitions.run_messages import Definitions, build_requests

_LOG = logging.getLogger("tidewheel.executor")

_READ_CLOCK = Statements("tidewheel")["read_clock"]
_FIND_DUE_RUNS = Statements("tidewheel.executor")["find_due_runs"]

_GLANCE_SECONDS = 0.05  # while messages come: a slot that stays free for so long is not about to be filled by one
_FULL_SECONDS = 0.5  # between two looks at the wish to stop while there is no free slot
_CHAIN_SECONDS = 1.0  # then the next glance tells whether messages would bring the rest
_SOON_SECONDS = 0.005  # between two looks while more is waiting than there are slots for
_MOST_MISSES = 10  # 5 s between two looks
_PATIENCE = 10  # times `every`: at each turn messages wait 20 to 50 ms for what is claimed ahead to be worked off
_TURN = 10  # at most one of so many slots for each turn
_CHOICE = 4  # times what a turn has slots for: others may be after the longest due
_UNREADABLE = 4  # more are read than there are slots: one that cannot be read keeps no slot from the next
_MOST = 500


@dataclass(frozen=True, slots=True)
class DueRun:
    """An open run that is due, as the sweep finds it."""

    run_id: UUID
    job_id: UUID
    shard: int
    queue: str
    lane: str
    cause: str
    job_version: int
    attempt: int
    scheduled_at: datetime
    publish_at: datetime
    due_for: timedelta = timedelta(0)


Readable = Mapping[UUID, tuple[RunRequest, JobDefinition]]


class Turns:
    """When each lane has its turn although no slot stays free: `_PATIENCE` intervals after it was served.

    One that starts nothing is tried again after an interval, and then ever more rarely: who is full asks no more often
    than who is idle.
    """

    def __init__(self, every: timedelta, now: float) -> None:
        self.patience = every * _PATIENCE
        self._every, self._patience = every.total_seconds(), self.patience.total_seconds()
        self._at = dict.fromkeys(Lane, now + self._patience)
        self._waits: dict[Lane, float] = {}  # of lanes whose last turn started nothing

    def whose(self, now: float) -> Lane | None:
        """The lane whose turn it is; of several the one that has waited longest."""
        lane = min(self._at, key=self._at.__getitem__)
        return lane if self._at[lane] <= now else None

    def served(self, lane: Lane, now: float) -> None:
        """Nothing of it was due, or some of that was started."""
        self._at[lane] = now + self._patience
        self._waits.pop(lane, None)

    def missed(self, lane: Lane, now: float) -> None:
        """Nothing was started of what was due: no slot came free, or others were quicker."""
        self._waits[lane] = min(self._waits[lane] * 2, self._patience) if lane in self._waits else self._every
        self._at[lane] = now + self._waits[lane]

    def has_missed(self, lane: Lane) -> bool:
        """Whether its last turn started nothing."""
        return lane in self._waits


class Sweep:
    """The thread that sweeps for one executor."""

    def __init__(
        self,
        session: Session,
        *,
        claimer: Claimer,
        slots: Slots,
        queues: Sequence[str],
        handlers: frozenset[str],
        begin: Begin,
        idle: Callable[[], bool],
        crowded: Callable[[], bool],
        every: timedelta,
        stop: Shutdown,
    ) -> None:
        self._session, self._claimer, self._slots = session, claimer, slots
        self._queues, self._handlers, self._begin = queues, sorted(handlers), begin
        self._idle, self._crowded, self._every, self._stop = idle, crowded, every, stop
        self._definitions = Definitions()
        self._marks = LowWaterMarks[tuple[str, Lane]]()
        self._misses, self._chain_until = 0, 0.0
        self._turns = Turns(every, monotonic_seconds())
        self._thread = threading.Thread(target=self._run, name="sweep", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def join(self) -> None:
        """Wait until it has stopped."""
        self._thread.join(timeout=30)
        self._session.close()
        self._claimer.close()

    def _run(self) -> None:
        run_loop(self._stop, "sweep", self.step)

    def step(self) -> float:
        """One look; returns how long to wait for the next, in seconds."""
        limits = self._limits() if self._wait_for_slots() else []
        pause = self._look(limits) if limits else _GLANCE_SECONDS
        if not self._crowded():
            self._take_turn()
        return pause

    def _look(self, limits: Sequence[tuple[str, Lane, int]]) -> float:
        """Claim what there are slots for; returns how long to wait for the next look, in seconds."""
        found = self._find(limits)
        due = [run for run in found if run.due_for >= self._every]
        lanes, swept = _by_lane(due), 0
        for lane in dict.fromkeys(lane for _, lane, _ in limits):
            runs = lanes.get(lane, [])
            started = self._start(lane, self._slots.take(lane, len(runs)), runs)
            swept += started
            if started or not runs:
                self._turns.served(lane, monotonic_seconds())
        return self._pause(limits, found, due, swept)

    def _take_turn(self) -> None:
        """Give the next slots to a few of what has been due for very long, in the lane that went without longest."""
        lane = self._turns.whose(monotonic_seconds())
        if lane is None:
            return
        most = max(self._slots.total // _TURN, 1)
        late = self._find_late(lane, min(most * _CHOICE, _MOST))
        taken = self._slots.take_next(lane, min(len(late), most), _FULL_SECONDS) if late else 0
        if self._start(lane, taken, late) or not late:
            self._turns.served(lane, monotonic_seconds())
        else:
            self._turns.missed(lane, monotonic_seconds())

    def _find_late(self, lane: Lane, most: int) -> list[DueRun]:
        """What has been due for very long, the longest first."""
        found = self._find([(queue, lane, most) for queue in self._queues])
        late = _by_lane([run for run in found if run.due_for >= self._turns.patience]).get(lane, [])
        if self._turns.has_missed(lane):
            random.shuffle(late)  # every executor finds the same, and all but one would start nothing again
        return late

    def _wait_for_slots(self) -> bool:
        """Wait a while until any slot is free; returns whether one is."""
        return self._slots.wait_free(Lane.CRITICAL, _FULL_SECONDS) and not self._crowded()

    def _limits(self) -> list[tuple[str, Lane, int]]:
        """How many of each queue and lane there are slots for that no message is about to take."""
        if self._idle() or monotonic_seconds() < self._chain_until:
            free = {lane: self._slots.free(lane) for lane in Lane}
        else:
            self._slots.watch()
            self._stop.wait(_GLANCE_SECONDS)
            free = {lane: self._slots.spare(lane) for lane in Lane}
        return [(queue, lane, min(free[lane], _MOST)) for lane in Lane for queue in self._queues if free[lane] > 0]

    def _pause(
        self, limits: Sequence[tuple[str, Lane, int]], found: Sequence[DueRun], due: Sequence[DueRun], swept: int
    ) -> float:
        """How long to wait for the next look."""
        now = monotonic_seconds()
        if due and not swept:
            # Others were quicker, or a message took the slot; or nobody can claim these: it is tried ever more rarely.
            self._misses = min(self._misses + 1, _MOST_MISSES)
            return min(_SOON_SECONDS * (1 << self._misses), self._every.total_seconds())
        self._misses = 0
        if swept and any(sum(run.lane == lane for run in due) >= limit for _, lane, limit in limits):
            # More is waiting than there were slots for, and messages do not bring it: for a while it is taken as slots
            # come free, without a glance at each.
            if now >= self._chain_until:
                self._chain_until = now + _CHAIN_SECONDS
            return _SOON_SECONDS
        young = max((run.due_for for run in found if run.due_for < self._every), default=timedelta(0))
        return max((self._every - young).total_seconds(), _GLANCE_SECONDS)

    def _find(self, wanted: Sequence[tuple[str, Lane, int]]) -> list[DueRun]:
        """What is due."""
        lanes = [(queue, lane) for queue, lane, _ in wanted]
        columns = {
            "queues": [queue for queue, _, _ in wanted],
            "lanes": [lane for _, lane, _ in wanted],
            "limits": [limit for _, _, limit in wanted],
            "marks": self._marks.scan_from(lanes),
            "sources": sources(Move.CLAIM),
            "handlers": self._handlers,
        }
        with self._session.transaction() as connection:
            clock = connection.execute(_READ_CLOCK, binary=True).fetchone()
            with connection.cursor(row_factory=class_row(DueRun), binary=True) as cursor:
                found = cursor.execute(_FIND_DUE_RUNS, columns).fetchall()
            earliest: dict[tuple[str, Lane], datetime | None] = dict.fromkeys(lanes)
            for run in reversed(found):  # the longest due first, lane by lane
                earliest[run.queue, Lane(run.lane)] = run.publish_at
            self._marks.record(earliest, cast("datetime", clock[0] if clock else None))
        return found

    def _start(self, lane: Lane, taken: int, runs: Sequence[DueRun]) -> int:
        """Claim as many as slots were taken for, and have them begun; returns how many, the other slots are free."""
        if not taken:
            return 0
        started = 0
        try:
            readable = self._read(runs[: taken + _UNREADABLE])
            chosen = [run for run in runs if run.run_id in readable][:taken]
            claims = [Claim(run.run_id, run.attempt + 1, run.job_version, "sweep") for run in chosen]
            claimed = self._claimer.claim(claims, way="sweep").started
            started = len(claimed)
            self._begin([(one, *readable[one.run_id]) for one in claimed])
        except psycopg.Error as error:
            raise Unavailable(str(error)) from error
        finally:
            self._slots.give_back(lane, taken - started)
        if started:
            _LOG.info("swept %d runs", started)
        return started

    def _read(self, runs: Sequence[DueRun]) -> Readable:
        """The messages of those that can be read: what is claimed must be begun."""
        with self._session.transaction() as connection:
            requests = build_requests(connection, runs)
        found: dict[UUID, tuple[RunRequest, JobDefinition]] = {}
        for run_id, request in requests.items():
            try:
                found[run_id] = request, self._definitions.of(request.definition)
            except UndecodableMessage as error:
                _LOG.error("run %s cannot be read and stays open: %s", run_id, error, extra={"run_id": str(run_id)})
        return found


def _by_lane(runs: Sequence[DueRun]) -> dict[Lane, list[DueRun]]:
    """Of each lane the longest due first, whatever its queue."""
    lanes: dict[Lane, list[DueRun]] = {}
    for run in sorted(runs, key=lambda run: run.due_for, reverse=True):
        lanes.setdefault(Lane(run.lane), []).append(run)
    return lanes
