"""Outbox slices of this relay: its share by rendezvous hashing, each secured by an advisory lock.

The lock, not the membership, keeps one relay at a time on a slice, and so the first copies of a run's events in order.
The server ends the session that holds the locks when it is idle for 15 s. So a frozen relay does not keep its slices
for ever. Messages that it publishes when it wakes are repeats, which receivers drop by id.
"""

import logging
from contextlib import suppress

import psycopg

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import Unavailable
from tidewheel.membership import Membership, rendezvous
from tidewheel.outbox import SLICES
from tidewheel.postgres.session import Conn, connect
from tidewheel.postgres.statements import Statements
from tidewheel.process.metrics import metrics

_LOG = logging.getLogger("tidewheel.relay")

_SQL = Statements("tidewheel.relay")
_TRY_LOCK_SLICE = _SQL["try_lock_slice"]
_RELEASE_SLICE = _SQL["release_slice"]
_PING = _SQL["ping"]

_REFRESH_SECONDS = 1.0
_IDLE_TIMEOUT = "15s"  # as long as an executor's lease; the relay pings the session every second


class Slices:
    """The slices that this process has locked."""

    def __init__(self, url: str, membership: Membership) -> None:
        self._url, self._membership = url, membership
        self._connection: Conn | None = None
        self._held: list[int] = []
        self._next_refresh = 0.0

    def held(self) -> list[int]:
        """Return the slices that this relay holds now.

        Raises:
            Unavailable: The session that held the locks is lost. No slice is held.
        """
        if monotonic_seconds() >= self._next_refresh:
            try:
                self._refresh()
            except psycopg.Error as error:
                self.release()
                message = f"the session that holds the slices was lost: {error}"
                raise Unavailable(message) from error
            self._next_refresh = monotonic_seconds() + _REFRESH_SECONDS
        return self._held

    def keep(self) -> None:
        """Ping the session that holds the locks, during a wait. Never raises."""
        with suppress(Unavailable):
            self.held()

    def release(self) -> None:
        """Release all slices. Never raises."""
        connection, self._connection, self._held = self._connection, None, []
        self._next_refresh = 0.0
        if connection is not None:
            connection.close()

    def _refresh(self) -> None:
        if self._connection is None or self._connection.closed:
            self._held = []
            self._connection = connect(self._url, "tidewheel-relay-slices", autocommit=True)
            self._connection.execute("SELECT set_config('idle_session_timeout', %s, false)", [_IDLE_TIMEOUT])
        self._connection.execute(_PING)
        mine = rendezvous(SLICES, self._membership.live(), self._membership.member_id)
        for number in [number for number in self._held if number not in mine]:
            self._connection.execute(_RELEASE_SLICE, {"slice": number})
        kept = [number for number in self._held if number in mine]
        gained = [number for number in mine if number not in kept and self._try(self._connection, number)]
        held = sorted(kept + gained)
        if held != self._held:
            _LOG.info("this relay holds slices %s", held)
            metrics.set("slices_owned", len(held))
        self._held = held

    @staticmethod
    def _try(connection: Conn, number: int) -> bool:
        return connection.execute(_TRY_LOCK_SLICE, {"slice": number}).fetchone() == (True,)
