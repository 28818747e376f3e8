"""Keeps the lease of this executor's attempts alive, and reads which of them are to stop.

A thread of its own, so that a blocked event loop does not cost the lease.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import cast
from uuid import UUID

import psycopg

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import Unavailable
from tidewheel.postgres.pg_arrays import integers, uuids
from tidewheel.postgres.session import Conn, Session
from tidewheel.postgres.statements import Statements
from tidewheel.process.clock_skew import ClockSkew
from tidewheel.process.health import health
from tidewheel.process.service import Backoff, Shutdown
from tidewheel.runs import OWNED
from tidewheel.transitions.cancel_signals import Signal

_LOG = logging.getLogger("tidewheel.executor")

_SQL = Statements("tidewheel.executor")
_BEAT = _SQL["beat_executor"]
_LEAVE = _SQL["leave_executor"]
_READ_SIGNALS = _SQL["read_signals"]
_DROP_SIGNALS = _SQL["drop_terminates"]

_SIGNALS_SECONDS = 0.5
_STRAY_AFTER = timedelta(seconds=10)  # a claim that has committed is begun long before

# Tells whether there is such an attempt here.
OnSignal = Callable[[UUID, int, Signal], bool]


class Heartbeat:
    """The thread that beats."""

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
        skew: ClockSkew,
        on_reentry: Callable[[], None] = lambda: None,
    ) -> None:
        self._session, self._every, self._on_signal, self._busy = session, every, on_signal, busy
        self._skew, self._on_reentry = skew, on_reentry
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
        self._next_beat = 0.0
        self._beaten = monotonic_seconds()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self, stop: Shutdown) -> None:
        """Enter the executor; returns when it is entered, or asked to stop before."""
        self._thread.start()
        while not self._entered.wait(_SIGNALS_SECONDS) and not stop.requested():
            pass

    def beat_now(self) -> None:
        """ProgressReport at once: the lease was lost and must be entered again."""
        self._next_beat = 0.0
        self.wake.set()

    @property
    def entered(self) -> bool:
        """Whether it was ever entered."""
        return self._entered.is_set()

    def silent_seconds(self) -> float:
        """For how long nothing of this executor has been heard, as far as it can know itself."""
        return monotonic_seconds() - self._beaten

    def is_silent(self) -> bool:
        """Whether that is longer than the lease: others may have taken it for lost."""
        return monotonic_seconds() - self._beaten > self._lease_seconds

    def stopping(self) -> None:
        """Say from now on that this executor is on its way out."""
        self._columns["stopping"] = True
        self.beat_now()

    def leave(self, *, clean: bool) -> None:
        """Shutdown beating; with `clean` the row goes too, for nothing is left that a reaper would have to find."""
        self._stop.request()
        self._thread.join(timeout=10)
        if clean:
            try:
                with self._session.transaction() as connection:
                    connection.execute(_LEAVE, self._columns)
            except (Unavailable, psycopg.Error) as error:
                _LOG.info("the executor's row stays until a reaper finds it: %s", error)
        self._session.close()

    def _run(self) -> None:
        backoff = Backoff(self._stop, "heartbeat")
        while not self._stop.requested():
            health.turns("heartbeat")
            try:
                self._round()
            except (Unavailable, psycopg.Error) as error:
                backoff.wait(error)
                continue
            backoff.reset()
            self.wake.wait(_SIGNALS_SECONDS)
            self.wake.clear()
        health.ends()

    def _round(self) -> None:
        begun = monotonic_seconds()
        beat = begun >= self._next_beat
        if not beat and not self._busy():
            return
        with self._session.transaction() as connection:
            if beat:
                self._beat(connection)
            rows = connection.execute(_READ_SIGNALS, self._columns, binary=True).fetchall()
        if beat:
            self._beaten = begun  # before it was written: what was heard of it since is not sooner than that
            self._next_beat = monotonic_seconds() + self._every.total_seconds()
            self._entered.set()
        self._pass_on(rows)

    def _pass_on(self, rows: Sequence[tuple[object, ...]]) -> None:
        """Tell the attempts; a `terminate` that was acted upon goes: its run is over, and nobody else takes it away."""
        acted: list[tuple[UUID, int]] = []
        for run_id, attempt, kind, stray in rows:
            assert isinstance(run_id, UUID)  # noqa: S101 - the column's type
            assert isinstance(attempt, int)  # noqa: S101 - the column's type
            # One that is not here is over, unless its claim has been committed and it is not begun yet.
            here = self._on_signal(run_id, attempt, Signal(str(kind)))
            if kind == Signal.TERMINATE and (here or stray):
                acted.append((run_id, attempt))
        if acted:
            columns = {"run_ids": uuids(run for run, _ in acted), "attempts": integers(number for _, number in acted)}
            with self._session.transaction() as connection:
                connection.execute(_DROP_SIGNALS, {**columns, "terminate": Signal.TERMINATE})

    def _beat(self, connection: Conn) -> None:
        asked = monotonic_seconds()
        row = connection.execute(_BEAT, self._columns, binary=True).fetchone()
        assert row is not None  # noqa: S101 - entered or beaten
        self._skew.record(cast("datetime", row[0]), since=asked)
        if self.entered and (row[1] == 0 or self.is_silent()):
            # Its lease was ended: what it had claimed is somebody else's, and what has not begun must not. Of one that
            # stood still inside a claim the row stays, and its attempts were taken all the same.
            what = "was ended" if row[1] == 0 else "was over"
            _LOG.warning("the lease of executor %s %s; entered again", self._columns["executor_id"], what)
            self._on_reentry()
