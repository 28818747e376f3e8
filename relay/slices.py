"""Which outbox slices this relay carries: its share by rendezvous, made sure of by advisory locks.

The lock, not the membership, is what keeps one relay at a time on a slice, and so the first copies of a run's events in
order. The session that holds the locks is ended by the server when it falls silent, so that a relay that was stopped in
its tracks does not keep its slices for ever; what it publishes when it wakes is a repeat, which receivers drop by id.
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

_LOOK_SECONDS = 1.0
_SILENCE = "15s"  # as long as an executor's lease; the session is pinged every second


class Slices:
    """The slices held by this process."""

    def __init__(self, url: str, membership: Membership) -> None:
        self._url, self._membership = url, membership
        self._connection: Conn | None = None
        self._held: list[int] = []
        self._next_look = 0.0

    def held(self) -> list[int]:
        """The slices that are this relay's now.

        Raises:
            Unavailable: The session that held them is gone; none is held.
        """
        if monotonic_seconds() >= self._next_look:
            try:
                self._look()
            except psycopg.Error as error:
                self.release()
                message = f"the session that holds the slices was lost: {error}"
                raise Unavailable(message) from error
            self._next_look = monotonic_seconds() + _LOOK_SECONDS
        return self._held

    def keep(self) -> None:
        """Ping the session that holds them, while nothing else does; never raises."""
        with suppress(Unavailable):
            self.held()

    def release(self) -> None:
        """Let go of all of them; never raises."""
        connection, self._connection, self._held = self._connection, None, []
        self._next_look = 0.0
        if connection is not None:
            connection.close()

    def _look(self) -> None:
        if self._connection is None or self._connection.closed:
            self._held = []
            self._connection = connect(self._url, "tidewheel-relay-slices", autocommit=True)
            self._connection.execute("SELECT set_config('idle_session_timeout', %s, false)", [_SILENCE])
        self._connection.execute(_PING)
        mine = rendezvous(SLICES, self._membership.live(), self._membership.member_id)
        for number in [number for number in self._held if number not in mine]:
            self._connection.execute(_RELEASE_SLICE, {"slice": number})
        kept = [number for number in self._held if number in mine]
        gained = [number for number in mine if number not in kept and self._try(self._connection, number)]
        held = sorted(kept + gained)
        if held != self._held:
            _LOG.info("carrying slices %s", held)
            metrics.set("slices_owned", len(held))
        self._held = held

    @staticmethod
    def _try(connection: Conn, number: int) -> bool:
        return connection.execute(_TRY_LOCK_SLICE, {"slice": number}).fetchone() == (True,)
