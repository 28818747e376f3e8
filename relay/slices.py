"""Outbox slices of this relay: its share by rendezvous hashing, each secured by a row.

A row of `relay_slices` names the member that publishes the slice, and holds while that member's heartbeats are recent.
So it keeps one relay at a time on a slice, and so the first copies of a run's events in order. A role without rights on
the table takes no slice. A relay whose own heartbeat is overdue holds none. Messages that a frozen relay publishes when
it wakes are repeats, which receivers drop by id.

Relays of 0.1 know the advisory lock of a slice alone. So this one takes that too, unless a stranger has it.
"""

import logging
from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta
from typing import cast

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
_UNLOCK_SLICE = _SQL["unlock_slice"]
_LOCK_SLICE = _SQL["lock_slice"]
_TAKE_SLICE = _SQL["take_slice"]
_RELEASE_SLICE = _SQL["release_slice"]
_FIND_SLICES = _SQL["find_slices"]

_REFRESH_SECONDS = 1.0
_IDLE_TIMEOUT = "15s"  # a frozen relay keeps no lock that one of 0.1 needs; the relay uses the session every second


class Slices:
    """The slices that this process publishes."""

    def __init__(self, url: str, membership: Membership, *, timeout: timedelta) -> None:
        self._url, self._membership, self._timeout = url, membership, timeout
        self._connection: Conn | None = None
        self._held: list[int] = []
        self._locked: set[int] = set()
        self._next_refresh = 0.0

    def held(self) -> list[int]:
        """Return the slices that this relay holds now; raise Unavailable if it can hold none."""
        if self._membership.is_overdue():
            self.release()
            message = "this relay's heartbeat is overdue: another relay may take its slices"
            raise Unavailable(message)
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
        """Keep the slices during a wait. Never raises."""
        with suppress(Unavailable):
            self.held()

    def release(self) -> None:
        """Publish no slice any more. Never raises."""
        connection, self._connection, self._held = self._connection, None, []
        self._locked.clear()
        self._next_refresh = 0.0
        if connection is not None:
            connection.close()

    def _refresh(self) -> None:
        if self._connection is None or self._connection.closed:
            self.release()
            self._connection = connect(self._url, "tidewheel-relay-slices", autocommit=True)
            self._connection.execute("SELECT set_config('idle_session_timeout', %s, false)", [_IDLE_TIMEOUT])
        connection = self._connection
        taken = {cast("int", number) for (number,) in connection.execute(_FIND_SLICES, self._of()).fetchall()}
        mine = rendezvous(SLICES, self._membership.live(), self._membership.member_id)
        kept = [number for number in self._held if number in mine and number in taken and self._excludes(number)]
        self._free(connection, taken.union(self._held).difference(mine))
        gained = [number for number in mine if number not in kept and self._take(connection, number)]
        held = sorted(kept + gained)
        if held != self._held:
            _LOG.info("this relay holds slices %s", held)
            metrics.set("slices_owned", len(held))
        self._held = held

    def _take(self, connection: Conn, number: int) -> bool:
        if not self._excludes(number):
            self._free(connection, [number])
            return False
        with connection.transaction():
            connection.execute(_LOCK_SLICE, self._of(number))
            taken = connection.execute(_TAKE_SLICE, self._of(number)).rowcount == 1
        if not taken:
            self._free(connection, [number])
        return taken

    def _excludes(self, number: int) -> bool:
        """Keep relays of 0.1 from a slice; return False if one of them has it."""
        if number in self._locked or self._connection is None:
            return number in self._locked
        row = self._connection.execute(_TRY_LOCK_SLICE, self._of(number)).fetchone()
        locked, excludes = cast("tuple[bool, bool]", row)
        if locked:
            self._locked.add(number)
        return excludes

    def _free(self, connection: Conn, numbers: Iterable[int]) -> None:
        for number in numbers:
            connection.execute(_RELEASE_SLICE, self._of(number))
            if number in self._locked:
                connection.execute(_UNLOCK_SLICE, self._of(number))
                self._locked.remove(number)

    def _of(self, number: int | None = None) -> dict[str, object]:
        return {"slice": number, "member_id": self._membership.member_id, "timeout": self._timeout}
