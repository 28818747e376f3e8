"""The lease of an executor, until which its attempts may have effects, and its heartbeat.

The heartbeat has a thread of its own, so that a blocked event loop does not cost the lease.

Every attempt keeps the lease under which it was claimed. A heartbeat in time extends that lease. A heartbeat that comes
too late starts another lease, and the old one stays over. So a process that was stopped sends nothing of what it had
claimed before, however soon its heartbeat renews the lease. The clock goes on while the process is stopped, and while
the machine is suspended.
"""

import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import cast
from uuid import UUID

import psycopg

from tidewheel.clock import boot_seconds, monotonic_seconds
from tidewheel.errors import Unavailable
from tidewheel.message_signatures import MessageKeys
from tidewheel.postgres.pg_binary import integers, uuids
from tidewheel.postgres.session import Conn, Session
from tidewheel.postgres.statements import Statements
from tidewheel.process.clock_skew import ClockSkew
from tidewheel.process.health import health
from tidewheel.process.metrics import metrics
from tidewheel.process.service import Backoff, Shutdown
from tidewheel.runs import OWNED
from tidewheel.transitions.cancellation import Signal

_LOG = logging.getLogger("tidewheel.executor")

_SQL = Statements("tidewheel.executor")

_SIGNALS_SECONDS = 0.5
_GAPS_SECONDS = 60.0  # four scrapes of a Prometheus at its usual interval
# With the 3 s of a connection attempt, a live executor's heartbeat comes before a reaper counts again (docs/adr/0007).
_LONGEST_PAUSE_SECONDS = 1.0
_STRAY_AFTER = timedelta(seconds=10)  # a committed claim is in memory long before

# Returns False if there is no such attempt here.
OnSignal = Callable[[UUID, int, Signal], bool]


class LeaseOver(Exception):
    """The lease of an attempt was over before its request was complete; `begun` if a part was sent."""

    def __init__(self, *, begun: bool = False) -> None:
        self.begun = begun
        super().__init__("the lease was over")


class Lease:
    """A lease until an instant of `boot_seconds`; read by every thread, changed by the heartbeat only."""

    __slots__ = ("_until",)

    def __init__(self, until: float) -> None:
        self._until = until

    @property
    def until(self) -> float:
        """Its end, by `boot_seconds`."""
        return self._until

    def is_over(self) -> bool:
        """Return True if nothing may be sent any more. One look at the clock: 0.1 us."""
        return boot_seconds() > self._until

    def extend(self, until: float) -> None:
        """Set a later end; called for a lease that is not over."""
        self._until = until

    def end(self) -> None:
        """End it for good: another executor may own its attempts."""
        self._until = -math.inf


ENDLESS = Lease(math.inf)  # of an attempt without an executor, as in a unit test


def read_owned(connection: Conn, executor_id: UUID, fences: Sequence[tuple[UUID, int]]) -> set[tuple[UUID, int]]:
    """Return those of these attempts that the executor still owns."""
    columns = {
        "run_ids": uuids(run_id for run_id, _ in fences),
        "attempts": integers(attempt for _, attempt in fences),
        "executor_id": executor_id,
        "states": OWNED,
    }
    rows = connection.execute(_SQL["read_owned_attempts"], columns, binary=True).fetchall()
    return {(cast("UUID", row[2]), cast("int", row[3])) for row in rows}


class Heartbeat:
    """The thread that renews the lease."""

    def __init__(
        self,
        session: Session,
        *,
        executor_id: UUID,
        name: str,
        queues: Sequence[str],
        handlers: Sequence[str],
        slots: int,
        group_protocol: str,
        every: timedelta,
        lease: timedelta,
        on_signal: OnSignal,
        busy: Callable[[], bool],
        keys: MessageKeys,
        skew: ClockSkew,
        on_entry: Callable[[Conn], None] = lambda _: None,
        on_reentry: Callable[[Conn], None] = lambda _: None,
    ) -> None:
        self._session, self._every, self._on_signal, self._busy = session, every, on_signal, busy
        self._keys, self._skew, self._on_entry, self._on_reentry = keys, skew, on_entry, on_reentry
        self._lease_seconds = lease.total_seconds()
        self._columns: dict[str, object] = {
            "executor_id": executor_id,
            "name": name,
            "queues": list(queues),
            "handlers": list(handlers),
            "slots": slots,
            "group_protocol": group_protocol,
            "lease": lease,
            "stopping": False,
            "stray_after": _STRAY_AFTER,
            "states": OWNED,
        }
        self.wake = threading.Event()
        self._stop = Shutdown()
        self._stop.wakes(self.wake)
        self._entered = threading.Event()
        self._next_at = 0.0
        self._last_heartbeat = boot_seconds()
        self._lease, self._renews = Lease(self._last_heartbeat + self._lease_seconds), True
        self._gaps: deque[tuple[float, float]] = deque()  # ends and lengths of the gaps between heartbeats
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self, stop: Shutdown) -> None:
        """Register the executor; return when it is registered, or a shutdown is requested before."""
        self._thread.start()
        while not self._entered.wait(_SIGNALS_SECONDS) and not stop.requested():
            pass

    def send_now(self) -> None:
        """Send a heartbeat at once: the lease was lost and the executor must be registered again."""
        self._next_at = 0.0
        self.wake.set()

    @property
    def entered(self) -> bool:
        """True if it was ever registered."""
        return self._entered.is_set()

    def silent_seconds(self) -> float:
        """Return the age of the last heartbeat."""
        return boot_seconds() - self._last_heartbeat

    def lease(self) -> Lease:
        """Return the lease under which runs are claimed now."""
        return self._lease

    def stopping(self) -> None:
        """Record that this executor is shutting down."""
        self._columns["stopping"] = True
        self.send_now()

    def leave(self, *, clean: bool) -> None:
        """Stop beating; with `clean` delete the row too, since no attempt is left for a reaper."""
        self._stop.request()
        self._thread.join(timeout=10)
        if clean:
            try:
                with self._session.transaction() as connection:
                    connection.execute(_SQL["delete_executor"], self._columns)
            except (Unavailable, psycopg.Error) as error:
                _LOG.info("this executor's row could not be deleted; a reaper deletes it later: %s", error)
        self._session.close()

    def _run(self) -> None:
        backoff = Backoff(self._stop, "heartbeat", longest=_LONGEST_PAUSE_SECONDS)
        while not self._stop.requested():
            health.report("heartbeat")
            self._report_lease()
            try:
                self._cycle()
            except (Unavailable, psycopg.Error) as error:
                backoff.wait(error)
                continue
            backoff.reset()
            self.wake.wait(_SIGNALS_SECONDS)
            self.wake.clear()
        health.remove_loop()

    def _cycle(self) -> None:
        now = boot_seconds()
        due = now >= self._next_at
        if not due and not self._busy():
            return
        with self._session.transaction() as connection:
            if due:
                self._send(connection)
            rows = connection.execute(_SQL["read_signals"], self._columns, binary=True).fetchall()
        if due:
            renewed = self._renew(now)
            self._next_at = boot_seconds() + self._every.total_seconds() if renewed else 0.0
            self._entered.set()
        self._deliver(rows)

    def _deliver(self, rows: Sequence[tuple[object, ...]]) -> None:
        """Deliver signals, and delete a delivered `terminate`: its run is over, so no end deletes it."""
        acted: list[tuple[UUID, int]] = []
        for run_id, attempt, kind, stray in rows:
            assert isinstance(run_id, UUID)  # noqa: S101 - the column's type
            assert isinstance(attempt, int)  # noqa: S101 - the column's type
            # An attempt that is not here is over, unless its claim is committed and it is not in memory yet.
            here = self._on_signal(run_id, attempt, Signal(str(kind)))
            if kind == Signal.TERMINATE and (here or stray):
                acted.append((run_id, attempt))
        if acted:
            columns = {"run_ids": uuids(run for run, _ in acted), "attempts": integers(number for _, number in acted)}
            with self._session.transaction() as connection:
                connection.execute(_SQL["drop_terminates"], {**columns, "terminate": Signal.TERMINATE})

    def _renew(self, now: float) -> bool:
        """Extend the lease from the time before the write, or start another: a reaper sees it no earlier.

        Return False for a lease that was over before COMMIT had ended: a reaper that saw the counter unchanged may have
        taken its attempts meanwhile. It stays over, and the next heartbeat starts another.
        """
        self._gaps.append((now, now - self._last_heartbeat))
        self._last_heartbeat, until = now, now + self._lease_seconds
        if not self._renews:
            self._lease, self._renews = Lease(until), True
        elif self.entered and self._lease.is_over():
            return False
        else:
            self._lease.extend(until)
        return True

    def _report_lease(self) -> None:
        """Update the gauge of the longest gap of the last minute: a scrape would miss one that is over."""
        while self._gaps and self._gaps[0][0] < boot_seconds() - _GAPS_SECONDS:
            self._gaps.popleft()
        longest = max([self.silent_seconds(), *(gap for _, gap in self._gaps)])
        metrics.set("lease_used_ratio", longest / self._lease_seconds)

    def _send(self, connection: Conn) -> None:
        sent_at = monotonic_seconds()
        row = connection.execute(_SQL["heartbeat_executor"], self._columns, binary=True).fetchone()
        assert row is not None  # noqa: S101 - inserted or updated
        self._skew.record(cast("datetime", row[0]), since=sent_at)
        self._keys.refresh(connection)  # so that a new key is known before a relay signs with it
        if not self.entered:
            self._on_entry(connection)
        if self.entered and (row[1] == 0 or self._lease.is_over()):
            # Its lease was ended: its attempts may run elsewhere, so those that have not started must not start here.
            # If it was suspended inside a claim, its row stays, but its attempts were taken all the same.
            self._lease.end()
            self._renews = False
            what = "was ended" if row[1] == 0 else "was over"
            _LOG.warning("the lease of executor %s %s; registered again", self._columns["executor_id"], what)
            self._on_reentry(connection)
