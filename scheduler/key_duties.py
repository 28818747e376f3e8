"""Promote runs that wait for a key with a rate, and queue the runs that a tenant's rate holds.

An end passes its place on itself. This module does what no end does: a rate frees a start at a time, and an end may
find all waiting runs locked by other transactions. Both set `wake_at`.
"""

import math
from collections.abc import Sequence
from typing import cast

from tidewheel.clock import monotonic_seconds
from tidewheel.postgres.session import Session
from tidewheel.postgres.statements import Statements
from tidewheel.transitions.held_runs import MAX_RELEASED, find_held_tenants, pace
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.order_keys import wake_orders
from tidewheel.transitions.run_keys import settle_keys

_SQL = Statements("tidewheel.scheduler")
_FIND_WOKEN_KEYS = _SQL["find_woken_keys"]
_PROBE_KEYS = _SQL["probe_keys"]

_MAX_WOKEN = 500  # keys in one transaction: about twenty milliseconds
_STEP_SECONDS = 0.05


class KeyDuties:
    """The scheduler's duties for concurrency keys, in the session that fires."""

    def __init__(self, session: Session, installation: Installation) -> None:
        self._session, self._installation = session, installation
        self._to_pace: list[str] = []

    def promote(self, shards: Sequence[int]) -> tuple[int, float]:
        """Give free places of keys to waiting runs.

        Args:
            shards: The keys whose ids fall into these shards.

        Returns:
            The number of promoted runs, and the seconds until the next key is due.
        """
        columns: dict[str, object] = {"shards": list(shards), "count": self._installation.shards, "limit": _MAX_WOKEN}
        with self._session.transaction() as connection:
            due = [row[0] for row in connection.execute(_FIND_WOKEN_KEYS, columns, binary=True).fetchall()]
            if due:
                return settle_keys(connection, self._installation, woken=cast("list[int]", due)).promoted, 0.0
            found = connection.execute(_PROBE_KEYS, columns, binary=True).fetchone()
        return 0, max(cast("float", found[0]), 0.0) if found else math.inf

    def wake(self) -> int:
        """Queue the next runs of ordering keys that other transactions held; return their number."""
        with self._session.transaction() as connection:
            return wake_orders(connection, self._installation)

    def pace(self) -> tuple[int, bool]:
        """Queue held runs of tenants with a rate at their places, for up to `_STEP_SECONDS`.

        Returns:
            The number of runs, and True if there is more to queue: the next call goes on where this one stops.
        """
        if not self._to_pace:
            with self._session.transaction() as connection:
                self._to_pace = find_held_tenants(connection)
        until = monotonic_seconds() + _STEP_SECONDS
        queued = 0
        while self._to_pace and monotonic_seconds() < until:
            with self._session.transaction() as connection:
                released = pace(connection, self._installation, self._to_pace[-1])
            queued += released
            if released < MAX_RELEASED:
                self._to_pace.pop()
        return queued, bool(self._to_pace)
