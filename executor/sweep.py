"""Sweep: claim due runs from the table that no message has brought for a while.

It bounds every outage of Kafka, serves a queue without topics, and finds a run whose message was lost. It also claims
runs whose messages another executor has fetched without having a slot. No message is published twice for it.

A poll also finds runs that are due but too young. The next poll comes when the oldest of these has waited long enough.
So a run waits for a free slot hardly longer than `every`, without more polls.

While messages fill every slot, each lane is still polled, but rarely. Runs that have been due for very long get the
next free slots, a few at a time, so that they do not wait until the messages end.

Definitions and inputs are read only when there are slots: a full executor reads the due rows alone.

Tenants take turns (`due_tenants.py`). While large attempts fill the executor, only tenants with less than their share
of bytes have one (`slots.py`). Where a relay holds runs back, a run is due for the sweep after 0.25 s.
"""

import logging
import random
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

import psycopg
from psycopg.rows import class_row

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import Unavailable, UndecodableMessage
from tidewheel.executor.claim import Claimer
from tidewheel.executor.due_tenants import DueTenants
from tidewheel.executor.run_messages import StartRuns
from tidewheel.executor.slots import HeldBytes, Slots
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.low_water import LowWaterMarks
from tidewheel.postgres.session import Session, readable_rows
from tidewheel.postgres.statements import Statements
from tidewheel.process.fallbacks import Step, work
from tidewheel.process.service import Shutdown, run_loop
from tidewheel.runs import Lane, Move, sources
from tidewheel.schemas.generated.records import JobDefinition, RunRequest
from tidewheel.transitions.claim import Claim
from tidewheel.transitions.messages import DEFINITIONS, build_requests_within

_LOG = logging.getLogger("tidewheel.executor")

_FIND_DUE_RUNS = Statements("tidewheel.executor")["find_due_runs"]

_QUICK_POLL_SECONDS = 0.05  # while messages arrive: a slot that stays free this long is not about to be filled by one
_FULL_SECONDS = 0.5  # between two checks for a shutdown while no slot is free
_BURST_SECONDS = 1.0  # of polls without waiting; then slots must stay free again before the next one
_SOON_SECONDS = 0.005  # between two polls while more runs wait than there are slots
_LINGER_SECONDS = 0.02  # the same where few slots come free: a poll costs as much for one run as for dozens
_MAX_MISSES = 10  # 5 s between two polls
_OVERDUE = 10  # times `every`: each service of overdue runs delays messages by 20 to 50 ms
_SHARE = 10  # at most one of so many slots for each service of overdue runs
_CHOICE = 4  # times the slots of one service: other executors may claim the oldest runs too
_UNREADABLE = 4  # read in addition to the slots, so that an unreadable run keeps no slot from the next
_MAX_FOUND = 500
_READ_BYTES = 16 << 20  # of messages: those of 500 runs with the largest payloads have 125 MiB


@dataclass(frozen=True, slots=True)
class DueRun:
    """A due open run, as the sweep reads it."""

    run_id: UUID
    job_id: UUID
    tenant: str
    shard: int
    queue: str
    lane: str
    cause: str
    job_version: int
    attempt: int
    scheduled_at: datetime
    publish_at: datetime
    created_at: datetime
    concurrency_key: str | None
    age: timedelta = timedelta(0)


Readable = Mapping[UUID, tuple[RunRequest, JobDefinition]]


class LaneSchedule:
    """Schedule on which each lane's overdue runs are served although no slot stays free.

    A lane is served `_OVERDUE` intervals after the last time. A service that starts nothing is repeated after one
    interval, and then ever more rarely: a full executor polls no more often than an idle one.
    """

    def __init__(self, every: timedelta, now: float) -> None:
        self.overdue = every * _OVERDUE
        self._every, self._overdue_seconds = every.total_seconds(), self.overdue.total_seconds()
        self._at = dict.fromkeys(Lane, now + self._overdue_seconds)
        self._waits: dict[Lane, float] = {}  # of lanes whose last service started nothing

    def next_lane(self, now: float) -> Lane | None:
        """Return the lane to serve now; of several the one that has waited longest."""
        lane = min(self._at, key=self._at.__getitem__)
        return lane if self._at[lane] <= now else None

    def served(self, lane: Lane, now: float) -> None:
        """Record that runs of a lane were started, or none was due."""
        self._at[lane] = now + self._overdue_seconds
        self._waits.pop(lane, None)

    def missed(self, lane: Lane, now: float) -> None:
        """Record that no due run of a lane was started: no slot came free, or other executors were faster."""
        self._waits[lane] = min(self._waits[lane] * 2, self._overdue_seconds) if lane in self._waits else self._every
        self._at[lane] = now + self._waits[lane]

    def has_missed(self, lane: Lane) -> bool:
        """Return True if the last service of a lane started nothing."""
        return lane in self._waits


class Sweep:
    """The thread that sweeps for one executor."""

    def __init__(
        self,
        session: Session,
        *,
        claimer: Claimer,
        slots: Slots,
        held: HeldBytes,
        queues: Sequence[str],
        handlers: frozenset[str],
        start: StartRuns,
        idle: Callable[[], bool],
        overloaded: Callable[[], bool],
        every: timedelta,
        stop: Shutdown,
    ) -> None:
        self._session, self._claimer, self._slots, self._held = session, claimer, slots, held
        self._queues, self._handlers, self._start_runs = queues, sorted(handlers), start
        self._idle, self._overloaded, self._every, self._stop = idle, overloaded, every, stop
        self._tenants = DueTenants(session, queues, self._handlers, every)
        self._cut = False  # the last look left runs out that may be due
        self._unreadable = 0  # rows of the last look that Python cannot hold
        self._marks = LowWaterMarks[tuple[str, Lane, str]]()
        self._misses, self._burst_until = 0, 0.0
        self._more = set[Lane]()  # lanes with more due runs than slots, which no message brings
        self._schedule = LaneSchedule(every, monotonic_seconds())
        self._thread = threading.Thread(target=run_loop, args=(stop, "sweep", self.step), name="sweep", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def join(self) -> None:
        """Wait until it has stopped."""
        self._thread.join(timeout=30)
        self._session.close()
        self._claimer.close()

    def step(self) -> float:
        """Poll once; return the seconds until the next poll."""
        lane = min(self._more, default=Lane.CRITICAL, key=[*Lane].index)
        is_free = self._slots.wait_free(lane, _FULL_SECONDS) or self._slots.free(Lane.CRITICAL) > 0
        limits = self._limits() if is_free and not self._overloaded() else []
        pause = self._poll(limits) if limits else _QUICK_POLL_SECONDS
        if not self._overloaded():
            self._serve_overdue()
        return pause

    def _poll(self, limits: Sequence[tuple[str, Lane, int]]) -> float:
        """Claim due runs for the free slots; return the seconds until the next poll."""
        found = self._find(limits)
        due = [run for run in found if self._left(run) <= timedelta(0)]
        lanes, swept = _by_lane(due), 0
        for lane in dict.fromkeys(lane for _, lane, _ in limits):
            runs = self._tenants.deal(lanes.get(lane, []))
            started = self._start(lane, self._slots.take(lane, len(runs)), runs)
            swept += started
            if started or not runs:
                self._schedule.served(lane, monotonic_seconds())
        return self._pause(limits, found, due, swept)

    def _serve_overdue(self) -> None:
        """Give the next free slots to a few overdue runs, of the lane that has waited longest."""
        lane = self._schedule.next_lane(monotonic_seconds())
        if lane is None:
            return
        limit = max(self._slots.total // _SHARE, 1)
        late = self._find_overdue(lane, min(limit * _CHOICE, _MAX_FOUND))
        taken = self._slots.take_next(lane, min(len(late), limit), _FULL_SECONDS) if late else 0
        if self._start(lane, taken, late) or not late:
            self._schedule.served(lane, monotonic_seconds())
        else:
            self._schedule.missed(lane, monotonic_seconds())

    def _find_overdue(self, lane: Lane, limit: int) -> list[DueRun]:
        """Return overdue runs in turns of their tenants, the oldest of each first."""
        found = self._find([(queue, lane, limit) for queue in self._queues])
        late = _by_lane([run for run in found if run.age >= self._schedule.overdue]).get(lane, [])
        if self._schedule.has_missed(lane):
            random.shuffle(late)  # every executor finds the same runs, and all but one would start nothing again
        return self._tenants.deal(late)

    def _limits(self) -> list[tuple[str, Lane, int]]:
        """Return the number of slots for each queue and lane that no message is about to fill."""
        if self._idle() or monotonic_seconds() < self._burst_until:
            free = {lane: self._slots.free(lane) for lane in Lane}
        else:
            self._slots.watch()
            self._stop.wait(_QUICK_POLL_SECONDS)
            free = {lane: self._slots.unused(lane) for lane in Lane}
        return [(queue, lane, min(free[lane], _MAX_FOUND)) for lane in Lane for queue in self._queues if free[lane] > 0]

    def _pause(
        self, limits: Sequence[tuple[str, Lane, int]], found: Sequence[DueRun], due: Sequence[DueRun], swept: int
    ) -> float:
        """Return the seconds until the next poll."""
        now = monotonic_seconds()
        if due and not swept:
            # Other executors were faster, a message took the slot, or these cannot be claimed: poll ever more rarely.
            self._misses = min(self._misses + 1, _MAX_MISSES)
            return min(_SOON_SECONDS * (1 << self._misses), self._every.total_seconds())
        self._misses = 0
        more = {lane for _, lane, limit in limits if self._cut or sum(run.lane == lane for run in due) >= limit}
        self._more -= {lane for _, lane, _ in limits}
        if not self._idle():
            self._more.clear()
        elif swept:
            self._more |= more
        if swept and more:
            # More runs wait than there were slots, and messages do not bring them. For a while they are claimed as
            # slots come free, without waiting whether these stay free.
            if now >= self._burst_until:
                self._burst_until = now + _BURST_SECONDS
            return _LINGER_SECONDS if self._more and swept * 4 < self._slots.total else _SOON_SECONDS
        if self._more:
            return _QUICK_POLL_SECONDS  # their slots are full: the next look waits for one
        young = [left for run in found if (left := self._left(run)) > timedelta(0)]
        return max(min(young, default=self._tenants.pause).total_seconds(), _QUICK_POLL_SECONDS)

    def _left(self, run: DueRun) -> timedelta:
        return self._tenants.left(run.queue, Lane(run.lane), run.age)

    def _find(self, limits: Sequence[tuple[str, Lane, int]]) -> list[DueRun]:
        """Return due runs, up to these limits in all."""
        self._tenants.refresh()
        parts, self._cut = self._tenants.parts(limits)
        if not parts:
            return []
        keys = [(part.queue, part.lane, part.tenant) for part in parts]
        left = self._claimer.left_out()
        columns = {
            "queues": [part.queue for part in parts],
            "lanes": [part.lane for part in parts],
            "tenants": [part.tenant for part in parts],
            "limits": [min(part.limit + len(left) + self._unreadable, _MAX_FOUND) for part in parts],
            "marks": self._marks.scan_from(keys),
            "sources": sources(Move.CLAIM),
            "handlers": self._handlers,
        }
        with self._session.transaction() as connection:
            now = read_now(connection)
            with connection.cursor(row_factory=class_row(DueRun), binary=True) as cursor:
                rows = readable_rows(cursor.execute(_FIND_DUE_RUNS, columns))
                self._unreadable = cursor.rowcount - len(rows)
            found = [run for run in rows if run.run_id not in left] if left else rows
            earliest: dict[tuple[str, Lane, str], datetime | None] = dict.fromkeys(keys)
            for run in reversed(found):  # the oldest first, tenant by tenant
                earliest[run.queue, Lane(run.lane), run.tenant] = run.publish_at
            if not self._unreadable:  # else the mark passes readable rows behind them
                self._marks.record(earliest, now)
        counts = Counter((run.queue, run.lane, run.tenant) for run in found)
        self._cut |= any(counts[key] >= part.limit for key, part in zip(keys, parts, strict=True))
        return found

    def _start(self, lane: Lane, taken: int, runs: Sequence[DueRun]) -> int:
        """Claim and start as many runs as slots were taken; return their number. The other slots are released."""
        if not taken:
            return 0
        started = 0
        try:
            room = self._held.room(lane)
            readable = self._read([run for run in runs if room.has(run.tenant)][: taken + _UNREADABLE])
            chosen = [run for run in runs if run.run_id in readable and room.take(*readable[run.run_id])][:taken]
            claims = [
                Claim(
                    run.run_id,
                    run.attempt + 1,
                    run.job_version,
                    "sweep",
                    run.concurrency_key is not None,
                    run.publish_at,
                    readable[run.run_id][1].tenant,
                )
                for run in chosen
            ]
            for claimed in self._claimer.claim_in_parts(claims, source="sweep"):
                started += len(claimed)
                self._start_runs([(one, *readable[one.run_id]) for one in claimed])
                self._count([readable[one.run_id][1] for one in claimed])
        except psycopg.Error as error:
            raise Unavailable(str(error)) from error
        finally:
            self._slots.release(lane, taken - started)
        if started:
            _LOG.info("the sweep started %d runs", started)
        return started

    def _count(self, started: Sequence[JobDefinition]) -> None:
        for (queue, lane), number in Counter((one.queue, Lane(one.lane)) for one in started).items():
            if not self._tenants.is_held(queue, lane):
                work.count(Step.DELIVER, number, fallback=True, queue=queue)

    def _read(self, runs: Sequence[DueRun]) -> Readable:
        """Return the messages of runs that can be read: a claimed run must start."""
        try:
            requests = self._session.within(build_requests_within, runs, _READ_BYTES)
        except (Unavailable, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001 - building one at a time finds the one that fails
            if len(runs) > 1:
                return self._read_each(runs)
            text = "the message of run %s cannot be built: %r; this executor leaves the run out for a minute"
            _LOG.error(text, runs[0].run_id, error, extra={"run_id": str(runs[0].run_id)})
            self._claimer.leave_out(runs[0].run_id)
            return {}
        found: dict[UUID, tuple[RunRequest, JobDefinition]] = {}
        for run_id, request in requests.items():
            try:
                found[run_id] = request, DEFINITIONS.of(request.definition)
            except UndecodableMessage as error:
                text = "the definition of run %s cannot be read: %s; the run stays open for a newer release"
                _LOG.error(text, run_id, error, extra={"run_id": str(run_id)})
                self._claimer.leave_out(run_id)
        return found

    def _read_each(self, runs: Sequence[DueRun]) -> Readable:
        """Return the messages of the first of these runs, up to a size, each read by itself."""
        found: dict[UUID, tuple[RunRequest, JobDefinition]] = {}
        left = _READ_BYTES
        for run in runs:
            for run_id, (request, definition) in self._read([run]).items():
                found[run_id] = request, definition
                left -= len(request.definition) + len(request.payload or b"")
            if left <= 0:
                break
        return found


def _by_lane(runs: Sequence[DueRun]) -> dict[Lane, list[DueRun]]:
    lanes: dict[Lane, list[DueRun]] = {}
    for run in sorted(runs, key=lambda run: run.age, reverse=True):
        lanes.setdefault(Lane(run.lane), []).append(run)
    return lanes
