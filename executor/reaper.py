"""Reaper: end the attempts of executors that missed their lease.

An executor is lost only after this process itself has seen its counter unchanged for the whole lease, by its own
monotonic clock, counting only time in which the database answered. So a database restart, a long fail-over or a
suspended reaper ends no run. Every executor runs a reaper, and deleting the row decides which one acts. Another attempt
follows a lost one, except for an at-most-once run: its end is unknown. Attempts are ended together, or one by one if
the row of one cannot be read: the lease then stays.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import cast
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import Unavailable, UndecodableMessage
from tidewheel.postgres.session import Conn, Session, read_ids, read_rows
from tidewheel.postgres.statements import Statements
from tidewheel.process.failpoint import failpoint
from tidewheel.process.logs import OnceAMinute
from tidewheel.process.metrics import metrics
from tidewheel.process.service import Shutdown, run_loop
from tidewheel.runs import OWNED, AttemptOutcome, RunState
from tidewheel.transitions.finish import finish_runs
from tidewheel.transitions.finished import UNKNOWN_OUTCOME, RunEnd
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.messages import DEFINITIONS, read_definitions
from tidewheel.transitions.places import FreedPlace
from tidewheel.transitions.requeue import Requeue, requeue_runs
from tidewheel.transitions.run_keys import settle_keys

_LOG = logging.getLogger("tidewheel.executor")

_SQL = Statements("tidewheel.executor")

_POLL_SECONDS = 1.0
_ORPHANS_SECONDS = 60.0
# Two polls further apart than this have a break between them: this process was suspended, or a reap waited for a lock.
# The watch cannot distinguish the two, for a process can be suspended while it waits.
_GAP_SECONDS = 3.0
# After a break nothing counts for a third of the lease, which is an executor's interval of heartbeats, or for this
# time: an executor whose heartbeat failed repeats it within 4 s of the database's return (docs/adr/0007).
_GRACE_SECONDS = 5.0
_GRACE_FRACTION = 3


@dataclass(slots=True)
class Watched:
    """A counter, and the seconds for which the database answered while it had this value."""

    counter: int
    answered: float = 0.0


@dataclass(frozen=True, slots=True)
class Leased:
    """An attempt owned by an executor that missed its lease."""

    run_id: UUID
    job_id: UUID
    job_version: int
    attempt: int
    lost_attempts: int
    state: str | None  # None if another transaction holds the row


class Watch:
    """Counters of all executors as this process has seen them; pure, so that tests need not wait."""

    def __init__(self, lease: timedelta) -> None:
        self._lease_seconds = lease.total_seconds()
        self._seen: dict[UUID, Watched] = {}
        self._server_start: object = None
        self._last_poll: float | None = None  # None after a failed poll
        self._returned_at = float("-inf")  # the first poll after the last break

    def interrupt(self) -> None:
        """Record a break: the database did not answer."""
        self._last_poll = None

    def observe(
        self, counters: dict[UUID, int], server_start: object, now: float, leases: Mapping[UUID, float] | None = None
    ) -> list[tuple[UUID, int]]:
        """Record the counters; return the executors that missed their whole lease, with their counter.

        Times are monotonic seconds. The longer of an executor's own lease and this process's applies: a reaper with a
        short lease must not end the attempts of an executor that is configured to send heartbeats less often.
        """
        answered = self._answered(server_start, now)
        since_return = now - self._returned_at
        known, self._seen = self._seen, {}
        missed: list[tuple[UUID, int]] = []
        for executor, counter in counters.items():
            lease = max(self._lease_seconds, (leases or {}).get(executor, 0.0))
            after_grace = since_return - max(lease / _GRACE_FRACTION, _GRACE_SECONDS)
            watched = known.get(executor)
            if watched is None or watched.counter != counter:
                watched = Watched(counter)
            else:
                watched.answered += max(0.0, min(answered, after_grace))
            self._seen[executor] = watched
            if watched.answered >= lease and after_grace >= 0:
                missed.append((executor, counter))
        return missed

    def _answered(self, server_start: object, now: float) -> float:
        """Return the seconds since the last poll, 0 after a break."""
        last, self._last_poll = self._last_poll, now
        same_server = server_start == self._server_start
        self._server_start = server_start
        if last is not None and same_server and now - last <= _GAP_SECONDS:
            return now - last
        if self._seen:  # else nothing is known from before, and every lease begins with this poll
            self._returned_at = now
        return 0.0


class Reaper:
    """The thread that watches executors and ends leases."""

    def __init__(
        self, session: Session, installation: Installation, *, lease: timedelta, max_lost: int, stop: Shutdown
    ) -> None:
        self._session, self._installation, self._max_lost = session, installation, max_lost
        self._watch = Watch(lease)
        self._locked: set[UUID] = set()  # silent executors with an attempt that another transaction holds
        self._orphans: set[UUID] = set()
        self._lines = OnceAMinute()
        self._next_orphans = monotonic_seconds() + _ORPHANS_SECONDS
        self._thread = threading.Thread(target=run_loop, args=(stop, "reaper", self.step), name="reaper", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def join(self) -> None:
        """Wait until it has stopped."""
        self._thread.join(timeout=30)
        self._session.close()

    def step(self) -> float:
        """Poll the counters once; return the seconds until the next poll."""
        try:
            with self._session.transaction() as connection:
                rows = connection.execute(_SQL["watch_executors"], binary=True).fetchall()
        except Unavailable:
            self._watch.interrupt()
            raise
        counters = {cast("UUID", executor): cast("int", counter) for executor, counter, _, _ in rows}
        leases = {cast("UUID", executor): cast("float", lease) for executor, _, _, lease in rows}
        server_start = rows[0][2] if rows else None
        now = monotonic_seconds()
        for executor_id, counter in self._watch.observe(counters, server_start, now, leases):
            self._reap_or_wait(executor_id, counter)
        if now >= self._next_orphans:
            self._next_orphans = now + _ORPHANS_SECONDS
            self._find_orphans()
        return _POLL_SECONDS

    def _reap_or_wait(self, executor_id: UUID, counter: int) -> None:
        columns: dict[str, object] = {"executor_id": executor_id, "heartbeat_count": counter}
        try:
            self._all_or_each(executor_id, partial(self._reap, columns, executor_id))
        except Unavailable as error:
            # A timer or a job that an end needs is locked. Other silent executors are reaped in this step. A wait above
            # 3 s is a break.
            _LOG.info("executor %s is not reaped yet: %s", executor_id, error)

    def _all_or_each(self, executor_id: UUID, reap: Callable[[UUID | None], None]) -> None:
        """End the attempts of an executor together, or one by one if one of them fails."""
        try:
            reap(None)
        except (Unavailable, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001 - ending one at a time finds the one that fails
            if self._lines.is_due(executor_id):
                text = "ending the attempts of executor %s failed (%s); this executor ends them one by one"
                _LOG.warning(text, executor_id, error)
            for row in self._session.within(self._lock_owned, executor_id, None):
                self._reap_alone(row.run_id, reap)

    def _reap_alone(self, run_id: UUID, reap: Callable[[UUID | None], None]) -> None:
        try:
            reap(run_id)
        except (Unavailable, MemoryError):
            raise
        except Exception:  # noqa: BLE001 - the other attempts must not wait for it
            if self._lines.is_due(run_id):
                text = "this executor cannot end the lost attempt of run %s, and tries again each second"
                _LOG.exception(text, run_id, extra={"run_id": str(run_id)})

    def _reap(self, columns: Mapping[str, object], executor_id: UUID, only: UUID | None) -> None:
        """End the attempts of a silent executor, or only that of one run, and its lease once it has none."""
        with self._session.transaction() as connection:
            locked = connection.execute(_SQL["lock_missed_lease"], columns).fetchone() is not None
            # An executor that was suspended inside a claim holds its row locked; its attempts go back all the same.
            if not locked and connection.execute(_SQL["is_lease_missed"], columns).fetchone() is None:
                return
            lost, busy = self._send_back(connection, executor_id, only)
            ended = locked and not busy and only is None
            if ended:
                connection.execute(_SQL["end_lease"], columns)
            failpoint("reap.before_commit")
        failpoint("reap.after_commit")
        metrics.count("leases_lost", lost)
        self._log_reaped(executor_id, lost, busy, ended=ended)

    def _log_reaped(self, executor_id: UUID, lost: int, busy: int, *, ended: bool) -> None:
        if lost or ended:
            _LOG.warning("executor %s missed its lease; attempts ended as lost: %d", executor_id, lost)
        if busy and executor_id not in self._locked:
            self._locked.add(executor_id)
            _LOG.info(
                "executor %s missed its lease, but other transactions lock %d of its runs, which end as lost later",
                executor_id,
                busy,
            )
        if not busy:
            self._locked.discard(executor_id)

    def _find_orphans(self) -> None:
        """Send back attempts whose executor has no row, if two polls find them; no code path should leave any."""
        found = self._session.within(read_ids, _SQL["find_orphans"], {"states": OWNED})
        for executor_id in found & self._orphans:
            _LOG.error("executor %s has attempts but no lease; this executor ends them as lost", executor_id)
            self._all_or_each(executor_id, partial(self._reap_orphans, executor_id))
        self._orphans = found - self._orphans

    def _reap_orphans(self, executor_id: UUID, only: UUID | None) -> None:
        self._session.within(self._send_back, executor_id, only)

    def _lock_owned(self, connection: Conn, executor_id: UUID, only: UUID | None) -> list[Leased]:
        columns = {"executor_id": executor_id, "states": OWNED, "only": only}
        return read_rows(connection, class_row(Leased), _SQL["lock_leased_runs"], columns)

    def _send_back(self, connection: Conn, executor_id: UUID, only: UUID | None) -> tuple[int, int]:
        """End all attempts of an executor, or one run's; return the numbers of ended and locked ones."""
        owned = self._lock_owned(connection, executor_id, only)
        rows = [row for row in owned if row.state is not None]
        at_most_once = self._at_most_once(connection, rows)
        ends: list[RunEnd] = []
        requeues: list[Requeue] = []
        for row in rows:
            if (end := self._end(row, executor_id, at_most_once=row.run_id in at_most_once)) is not None:
                ends.append(end)
            else:
                requeues.append(Requeue(row.run_id, row.attempt, executor_id, AttemptOutcome.LOST, error_type="Lost"))
        freed: list[FreedPlace] = []
        finish_runs(connection, self._installation, ends, freed_keys=freed)
        requeue_runs(connection, self._installation, requeues, freed_keys=freed)
        settle_keys(connection, self._installation, freed=freed)
        return len(rows), len(owned) - len(rows)

    def _end(self, row: Leased, executor_id: UUID, *, at_most_once: bool) -> RunEnd | None:
        """Return the end of a lost attempt's run; None if the run goes on."""
        if row.state == RunState.CANCELLING:
            return RunEnd(row.run_id, row.attempt, RunState.CANCELLED, executor_id, reason="lost")
        failed = RunEnd(row.run_id, row.attempt, RunState.FAILED, executor_id, outcome=AttemptOutcome.LOST)
        if at_most_once:
            message = "the executor was lost during the attempt, which may have had its effect"
            return failed._replace(reason=UNKNOWN_OUTCOME, error_type=UNKNOWN_OUTCOME, error_message=message)
        if row.lost_attempts + 1 >= self._max_lost:
            message = f"the executor was lost {row.lost_attempts + 1} times during attempts of this run"
            return failed._replace(reason="max_lost", error_type="Lost", error_message=message)
        return None

    def _at_most_once(self, connection: Conn, rows: Sequence[Leased]) -> set[UUID]:
        if not rows:
            return set()
        stored = read_definitions(connection, [(row.job_id, row.job_version) for row in rows])
        once: set[UUID] = set()
        for row in rows:
            try:
                definition = DEFINITIONS.of(stored[row.job_id, row.job_version])
            except (KeyError, UndecodableMessage) as error:
                text = "the definition of run %s cannot be read: %s; its attempt ends as lost, as with at_least_once"
                _LOG.error(text, row.run_id, error, extra={"run_id": str(row.run_id)})
                continue
            if definition.at_most_once:
                once.add(row.run_id)
        return once
