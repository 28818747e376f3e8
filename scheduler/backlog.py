"""Measure what is due and not done, and announce runs that no live executor can handle.

The scheduler that owns shard 0 measures for the whole installation, so each number is exported once. It does so on a
thread of its own, every five seconds and for one part in a hundred of the time at most. A scrape costs no statement.

Runs that no executor can handle have not failed and do not use up an attempt: in a rolling deploy the new job exists
before the new executor. Each tenant's queue and handler is announced at most every ten minutes, by whichever scheduler
finds it. The gauge always reports how many runs wait.
"""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import cast
from uuid import UUID

import psycopg
from psycopg.rows import class_row

from tidewheel.errors import Unavailable
from tidewheel.jobs.values import RESERVED, format_timestamp
from tidewheel.outbox import SLICES, OutboxLane, OutboxRow, append, slice_lane_of
from tidewheel.postgres.held_lock import find_lock_holders
from tidewheel.postgres.low_water import FullScanPacer
from tidewheel.postgres.pg_binary import integers
from tidewheel.postgres.session import Conn, Session, read_rows, readable_rows, rows_of
from tidewheel.postgres.session_kinds import BackgroundQuery
from tidewheel.postgres.statements import Statements
from tidewheel.process.metrics import metrics
from tidewheel.runs import OWNED, Move, sources
from tidewheel.schedules.schedule import TICK, FixedDelay
from tidewheel.schedules.timer_state import timer_state
from tidewheel.transitions.decision_inputs import DecisionInputs, read_decision_inputs
from tidewheel.transitions.events import lifecycle_row
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.timers import LockedTimer

_LOG = logging.getLogger("tidewheel.scheduler")

_SQL = Statements("tidewheel.scheduler")

_EVERY_SECONDS = 5.0
_SHARE = 100
_COUNTED_KEYS = 10_000
_COUNTED = 100_000  # more wait in a lane or in the outbox: "at least"
_LATE = timedelta(seconds=1)  # timers fire ahead of their time
_TIMERS = 1000  # of each shard that are counted
_EXAMINED = 10  # of each shard whose instants are counted
_INSTANTS = 10_000  # of a timer that are counted
_BEHIND = 2  # instants without a record that make a job count as behind
_LEASE = timedelta(seconds=30)  # of an executor in another language, which records none

_LOOK_SECONDS = 10.0  # between two looks for runs that no executor can handle
_MIN_AGE = timedelta(seconds=10)  # ten times as long as an executor that has the handler needs
_DEAD_AFTER = timedelta(seconds=60)  # an executor without a heartbeat for so long claims nothing
_ANNOUNCE_EVERY = timedelta(minutes=10)
_KEEP = timedelta(days=1)
_SCAN_RUNS = 10_000  # runs of each queue and lane that are checked


class BacklogMetrics(BackgroundQuery[None]):
    """Measures on its own thread and connection, which it closes."""

    def __init__(self, session: Session, installation: Installation) -> None:
        super().__init__(session, "metrics")
        self._pacer = FullScanPacer(_EVERY_SECONDS, share=_SHARE)
        self._shards = range(installation.shards)
        self._slice_lanes = {slice_lane_of(part, lane): lane for lane in OutboxLane for part in range(SLICES)}
        self._lanes: set[tuple[str, str]] = set()
        self._measures = False
        self._holders: set[tuple[int | None, str | None, str]] = set()

    def step(self, *, measures: bool) -> None:
        """Start a measurement when one is due; reset the gauges when another scheduler measures from now on."""
        self.take()
        if self.busy:
            return
        if measures and self._pacer.start():
            self.start(self._scan)
        elif self._measures and not measures:
            self._reset()
        self._measures = measures

    def _scan(self) -> None:
        try:
            self.measure()
        except (Unavailable, psycopg.Error) as error:
            _LOG.warning("the backlog cannot be measured: %s; the scheduler tries again later", error)
        self._pacer.finish()

    def measure(self) -> None:
        """Measure now."""
        with self._session.transaction() as connection:
            self._measure_runs(connection)
            self._measure_outbox(connection)
            self._measure_timers(connection)
            row = connection.execute(_SQL["measure_blocked_keys"], {"limit": _COUNTED_KEYS}, binary=True).fetchone()
            _set_blocked_keys(*cast("tuple[int, timedelta]", row))
            self._warn_of_lock_holders(connection)
            row = connection.execute(_SQL["measure_lock_waits"], binary=True).fetchone()
            _set_lock_waits(*cast("tuple[int, timedelta]", row))
            row = connection.execute(_SQL["measure_leases"], binary=True).fetchone()
            metrics.set("lease_used_ratio", cast("tuple[float]", row)[0])

    def _measure_runs(self, connection: Conn) -> None:
        columns = {"sources": sources(Move.CLAIM), "owned": OWNED, "lease": _LEASE, "limit": _COUNTED}
        rows = connection.execute(_SQL["measure_runs"], columns, binary=True).fetchall()
        orphaned = 0
        empty = self._lanes - {(str(queue), str(lane)) for queue, lane, *_ in rows}
        for queue, lane, due, age, orphans in [*rows, *((*lane, 0, timedelta(0), 0) for lane in empty)]:
            metrics.set("runs_due", cast("int", due), str(queue), str(lane))
            metrics.set("runs_due_oldest_seconds", cast("timedelta", age).total_seconds(), str(queue), str(lane))
            orphaned += cast("int", orphans)
            self._lanes.add((str(queue), str(lane)))
        metrics.set("runs_orphaned", orphaned)

    def _warn_of_lock_holders(self, connection: Conn) -> None:
        found = find_lock_holders(connection)
        for holder in found:
            if (holder.process, holder.prepared, holder.what) not in self._holders:
                _LOG.warning("%s, a lock that only services need; `tidewheel doctor` shows the remedy", holder.text)
        self._holders = {(holder.process, holder.prepared, holder.what) for holder in found}

    def _measure_outbox(self, connection: Conn) -> None:
        columns = {"slice_lanes": integers(self._slice_lanes), "limit": _COUNTED // SLICES}
        due: Counter[OutboxLane] = Counter()
        oldest: dict[OutboxLane, float] = {}
        for slice_lane, count, age in connection.execute(_SQL["measure_outbox"], columns, binary=True):
            lane = self._slice_lanes[cast("int", slice_lane)]
            due[lane] += cast("int", count)
            oldest[lane] = max(oldest.get(lane, 0.0), cast("timedelta", age).total_seconds())
        _set_outbox(due, oldest)

    def _measure_timers(self, connection: Conn) -> None:
        shards = {"shards": integers(self._shards), "late": _LATE}
        row = connection.execute(_SQL["measure_timers"], shards | {"limit": _TIMERS}, binary=True).fetchone()
        overdue, age, now = cast("tuple[int, timedelta, datetime]", row)
        timers: Sequence[LockedTimer] = ()
        if overdue:
            columns = shards | {"limit": _EXAMINED}
            timers = read_rows(connection, rows_of(LockedTimer._make), _SQL["read_overdue_timers"], columns)
        inputs = read_decision_inputs(connection, timers)
        missing = [_missing(timer, inputs, now) for timer in timers]
        behind = sum(count >= _BEHIND for count in missing)
        _set_timers(overdue, age, missing=sum(missing) + overdue - len(missing), behind=behind)

    def _reset(self) -> None:
        for queue, lane in self._lanes:
            metrics.set("runs_due", 0, queue, lane)
            metrics.set("runs_due_oldest_seconds", 0, queue, lane)
        metrics.set("runs_orphaned", 0)
        metrics.set("lease_used_ratio", 0)
        _set_blocked_keys(0, timedelta(0))
        _set_lock_waits(0, timedelta(0))
        _set_outbox({}, {})
        _set_timers(0, timedelta(0), missing=0, behind=0)


def _set_blocked_keys(count: int, age: timedelta) -> None:
    metrics.set("ordering_keys_blocked", count)
    metrics.set("ordering_keys_blocked_oldest_seconds", age.total_seconds())


def _set_lock_waits(count: int, age: timedelta) -> None:
    metrics.set("lock_waits", count)
    metrics.set("lock_waits_oldest_seconds", age.total_seconds())


def _set_outbox(due: Mapping[OutboxLane, int], oldest: Mapping[OutboxLane, float]) -> None:
    for lane in OutboxLane:
        metrics.set("outbox_due", due.get(lane, 0), lane)
        metrics.set("outbox_oldest_seconds", oldest.get(lane, 0.0), lane)


def _set_timers(overdue: int, age: timedelta, *, missing: int, behind: int) -> None:
    metrics.set("timers_overdue", overdue)
    metrics.set("timers_overdue_oldest_seconds", age.total_seconds())
    metrics.set("occurrences_missing", missing)
    metrics.set("jobs_behind", behind)


def _missing(timer: LockedTimer, inputs: DecisionInputs, now: datetime) -> int:
    """Count the instants of a timer that have passed without a record; 1 if that cannot be computed."""
    try:
        live = timer_state(timer, inputs.day_sets, inputs.of(timer)).live
        if isinstance(live, FixedDelay):
            return 1
        return max(live.count(timer.scheduled_at - TICK, now, _INSTANTS)[0], 1)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - a schedule that cannot be read is quarantined by firing, which logs it
        return 1


@dataclass(frozen=True, slots=True)
class Unhandled:
    """Runs of one tenant that no live executor can handle."""

    tenant: str
    queue: str
    handler: str  # or a capability
    runs: int  # among those checked
    run_id: UUID  # the run that has waited longest
    since: datetime

    @property
    def reason(self) -> str:
        """The reason for logs and events."""
        if self.handler.startswith(RESERVED):
            kind = self.handler.removeprefix(RESERVED)
            return f"no executor of queue {self.queue} runs {kind} targets (TIDEWHEEL_TARGETS)"
        return f"no executor of queue {self.queue} has handler {self.handler}"


def find_unhandled(connection: Conn, *, min_age: timedelta = _MIN_AGE) -> list[Unhandled]:
    """Return the runs that are due for longer than `min_age` and that no live executor can handle."""
    columns = {"min_age": min_age, "silent_for": _DEAD_AFTER, "sources": sources(Move.CLAIM), "limit": _SCAN_RUNS}
    with connection.cursor(row_factory=class_row(Unhandled), binary=True) as cursor:
        return readable_rows(cursor.execute(_SQL["find_unhandled"], columns))


class UnhandledWatch(BackgroundQuery[bool]):
    """Checks for unhandled runs, on its own thread and connection, which it closes."""

    def __init__(self, session: Session, installation: Installation, *, min_age: timedelta = _MIN_AGE) -> None:
        super().__init__(session, "unhandled")
        self._installation, self._min_age = installation, min_age
        self._pacer = FullScanPacer(_LOOK_SECONDS, at_once=False)  # executors that start at the same time get a moment

    def step(self) -> bool:
        """Start a check when one is due; return True if the last check has announced something.

        A check may meet all deleted entries of the open runs' index, and firing must not wait for that.
        """
        announced = self.take()
        if not self.busy and self._pacer.start():
            self.start(self._scan)
        return bool(announced)

    def _scan(self) -> bool:
        announced = False
        try:
            announced = bool(self.check())
        except (Unavailable, psycopg.Error) as error:
            _LOG.warning("the check for unhandled runs failed: %s; the scheduler repeats it later", error)
        self._pacer.finish()
        return announced

    def check(self) -> list[Unhandled]:
        """Check now; return the announcements."""
        with self._session.transaction() as connection:
            found = find_unhandled(connection, min_age=self._min_age)
            announced = self._announce(connection, found) if found else []
        metrics.set("runs_without_executor", sum(each.runs for each in found))
        for each in announced:
            _LOG.warning("%s: %d runs wait without using up attempts; start such an executor", each.reason, each.runs)
        return announced

    def _announce(self, connection: Conn, found: Sequence[Unhandled]) -> list[Unhandled]:
        columns = {
            "tenants": [each.tenant for each in found],
            "queues": [each.queue for each in found],
            "handlers": [each.handler for each in found],
            "quiet_for": _ANNOUNCE_EVERY,
        }
        noted = connection.execute(_SQL["announce_unhandled"], columns, binary=True).fetchall()
        if not noted:
            return []
        connection.execute(_SQL["purge_unhandled"], {"kept_for": _KEEP})
        due = {(str(tenant), str(queue), str(handler)) for tenant, queue, handler, _ in noted}
        announced = [each for each in found if (each.tenant, each.queue, each.handler) in due]
        rows = self._events(connection, announced, cast("datetime", noted[0][3]))
        append(connection, rows, shards=self._installation.shards)
        return announced

    def _events(self, connection: Conn, announced: Sequence[Unhandled], now: datetime) -> list[OutboxRow]:
        runs = {"run_ids": [each.run_id for each in announced]}
        jobs = {row[0]: row[1:] for row in connection.execute(_SQL["read_unhandled_jobs"], runs, binary=True)}
        events: list[OutboxRow] = []
        for each in announced:
            if each.run_id not in jobs:
                continue  # its run has ended since
            job_id, key, shard, version = jobs[each.run_id]
            event = lifecycle_row(
                self._installation,
                kind="job.no_executor",
                tenant=each.tenant,
                job_id=cast("UUID", job_id),
                job_key=str(key),
                job_version=cast("int", version),
                shard=cast("int", shard),
                now=now,
                reason=each.reason,
                detail={
                    "queue": each.queue,
                    "handler": each.handler,
                    "runs": str(each.runs),
                    "run_id": str(each.run_id),
                    "due_since": format_timestamp(each.since),
                },
            )
            events.append(event)
        return events
