"""Drain the releases of the shards of this scheduler: runs of workflows whose parents have ended.

Releases of other schedulers' shards wait for their owner, or for its successor after its last heartbeat. A drain that
fails is repeated one release at a time. One that fails alone is postponed by a minute, and the others go on. After five
failures it is quarantined: `tidewheel doctor` shows it, and a resume of its occurrence drains it again. A drain that
waits for a lock is repeated as well, for its thread also fires. A release that waits alone is postponed by a second.
"""

import logging
from collections.abc import Sequence
from datetime import timedelta

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import Unavailable
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.session import RowsLocked, Session
from tidewheel.postgres.statements import Statements
from tidewheel.process.failpoint import failpoint
from tidewheel.process.metrics import metrics
from tidewheel.transitions.drain import Drained, drain
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.releases import fail_release, postpone_releases

_LOG = logging.getLogger("tidewheel.scheduler")

_FIND_DUE_RELEASES = Statements("tidewheel.scheduler")["find_due_releases"]
_SET_WAITS = Statements("tidewheel.transitions")["set_waits"]

_STEP_SECONDS = 0.05  # of one step; then the scheduler does its other duties
_POSTPONED = timedelta(minutes=1)
_ONE_BY_ONE = 50  # releases tried alone after a failure
_LOCK_TIMEOUT = "50ms"
_LOCKED = timedelta(seconds=1)  # until the next drain of a release that has waited alone
_ALONE_TIMEOUT = "10ms"
_ALONE_SECONDS = 0.2  # of one pass over releases that are tried alone


class Releases:
    """Drains releases, a bounded batch at a time."""

    def __init__(self, session: Session, installation: Installation) -> None:
        self._session, self._installation = session, installation

    def step(self, shards: Sequence[int]) -> tuple[int, bool]:
        """Drain for up to `_STEP_SECONDS`; return the number of runs, and True if there is more to drain."""
        until, runs, more = monotonic_seconds() + _STEP_SECONDS, 0, bool(shards)
        while more and monotonic_seconds() < until:
            done = self._drain(shards)
            runs, more = runs + done.runs, done.more
        return runs, more

    def _drain(self, shards: Sequence[int]) -> Drained:
        try:
            with self._session.transaction() as connection:
                connection.execute(_SET_WAITS, {"lock_timeout": _LOCK_TIMEOUT})
                done = drain(connection, self._installation, shards)
        except RowsLocked:
            return self._drain_apart(shards)
        except Unavailable:
            raise
        except Exception as error:  # noqa: BLE001 - draining one at a time finds the one that fails
            _LOG.warning("draining releases failed (%s); the scheduler drains them one by one", error)
            return self._drain_apart(shards)
        if done.releases:
            failpoint("draining.after_commit")
        return done

    def _drain_apart(self, shards: Sequence[int]) -> Drained:
        with self._session.transaction() as connection:
            columns = {"shards": list(shards), "limit": _ONE_BY_ONE}
            ids = [row[0] for row in connection.execute(_FIND_DUE_RELEASES, columns) if isinstance(row[0], int)]
        total, until = Drained(more=True), monotonic_seconds() + _ALONE_SECONDS
        for one in ids:
            if monotonic_seconds() > until:
                break
            try:
                with self._session.transaction() as connection:
                    connection.execute(_SET_WAITS, {"lock_timeout": _ALONE_TIMEOUT})
                    done = drain(connection, self._installation, shards, ids=[one])
                total.releases += done.releases
                total.runs += done.runs
            except RowsLocked:
                self._postpone(one, _LOCKED)
            except Unavailable:
                raise
            except Exception as error:  # noqa: BLE001 - the others go on
                self._fail(one, error)
        return total

    def _fail(self, release: int, error: Exception) -> None:
        with self._session.transaction() as connection:
            connection.execute(_SET_WAITS, {"lock_timeout": _LOCK_TIMEOUT})
            quarantined = fail_release(connection, release, error, _POSTPONED)
        if quarantined:
            metrics.count("releases_quarantined")
            _LOG.error("release %d cannot be drained and is quarantined; see tidewheel doctor", release, exc_info=error)
        else:
            text = "the scheduler cannot drain release %d; the scheduler tries it again in a minute"
            _LOG.error(text, release, exc_info=error)

    def _postpone(self, release: int, by: timedelta) -> None:
        with self._session.transaction() as connection:
            connection.execute(_SET_WAITS, {"lock_timeout": _LOCK_TIMEOUT})
            postpone_releases(connection, [release], read_now(connection) + by)
