"""Promote runs that wait for a key with a rate, remove the rows of idle keys, and repair keys.

An end passes its place on itself. This module does what no end does: a rate frees a start at a time, and an end may
find all waiting runs locked by other transactions. Both set `wake_at`.

The repair walks all keys, some a second. It removes keys that nothing has used for ten minutes. It sets `running` to
the number of runs that hold a place where the two differ: a manual change, or a partial restore.
"""

import logging
import math
from collections.abc import Sequence
from datetime import timedelta
from typing import cast

from tidewheel.ids import FIRST_KEY_ID
from tidewheel.postgres.session import Session
from tidewheel.postgres.statements import Statements
from tidewheel.process.metrics import metrics
from tidewheel.runs import Gate
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.run_keys import settle_keys

_LOG = logging.getLogger("tidewheel.scheduler")

_SQL = Statements("tidewheel.scheduler")
_FIND_WOKEN_KEYS = _SQL["find_woken_keys"]
_SCAN_KEYS = _SQL["scan_keys"]
_REMOVE_IDLE_KEYS = _SQL["remove_idle_keys"]
_LOCK_KEYS = _SQL["lock_keys"]
_REPAIR_KEYS = _SQL["repair_keys"]

_MAX_WOKEN = 500  # keys in one transaction: about twenty milliseconds
_MAX_SCANNED = 1000
_IDLE_AFTER = timedelta(minutes=10)


class KeyDuties:
    """The scheduler's duties for concurrency keys."""

    def __init__(self, session: Session, installation: Installation) -> None:
        self._session, self._installation = session, installation
        self._after = FIRST_KEY_ID

    def promote(self, shards: Sequence[int]) -> tuple[int, float]:
        """Give free places of keys to waiting runs.

        Args:
            shards: The keys whose ids fall into these shards.

        Returns:
            The number of promoted runs, and the seconds until the next key is due.

        Raises:
            Unavailable: The database does not answer.
        """
        columns: dict[str, object] = {"shards": list(shards), "count": self._installation.shards, "limit": _MAX_WOKEN}
        with self._session.transaction() as connection:
            found = connection.execute(_FIND_WOKEN_KEYS, columns, binary=True).fetchall()
            rows = cast("list[tuple[int, float]]", found)
            due = [key for key, seconds in rows if seconds <= 0]
            promoted = settle_keys(connection, self._installation, woken=due).promoted
        if due:
            return promoted, 0.0
        return promoted, min((seconds for _, seconds in rows), default=math.inf)

    def repair(self) -> int:
        """Walk some keys; return the number of runs that got a place.

        Raises:
            Unavailable: The database does not answer.
        """
        columns: dict[str, object] = {
            "after": self._after,
            "limit": _MAX_SCANNED,
            "idle_after": _IDLE_AFTER,
            "holds": Gate.HOLDS_KEY,
        }
        with self._session.transaction() as connection:
            rows = cast("list[tuple[int, bool, bool]]", connection.execute(_SCAN_KEYS, columns, binary=True).fetchall())
            self._after = rows[-1][0] if len(rows) == _MAX_SCANNED else FIRST_KEY_ID
            if idle := [key for key, is_idle, _ in rows if is_idle]:
                connection.execute(_REMOVE_IDLE_KEYS, {**columns, "key_ids": idle})
        wrong = [key for key, _, is_wrong in rows if is_wrong]
        if not wrong:
            return 0
        with self._session.transaction() as connection:
            connection.execute(_LOCK_KEYS, {"key_ids": wrong})
            repaired = connection.execute(_REPAIR_KEYS, {**columns, "key_ids": wrong}).rowcount
            promoted = settle_keys(connection, self._installation, woken=wrong).promoted
        if repaired:
            metrics.count("keys_repaired", repaired)
            _LOG.error("the scheduler repaired the counters of %d concurrency keys; check for manual changes", repaired)
        return promoted
