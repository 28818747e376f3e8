"""Repair active runs whose holder is gone, and other leftovers of a crash or a manual change.

A run that ends transfers its place as active run in the same transaction, so there is little to repair:

- an active run all of whose waiters were locked by another transaction at that moment
- an active run that another transaction had locked when it became active: its end may not release it (ADR 0008)
- runs that ended, or active runs that were removed, by something other than Tidewheel
- signals for executors that have died

Each repair locks the active run first and checks under the lock that its holder is gone.
"""

import logging
from datetime import timedelta
from typing import cast
from uuid import UUID

from tidewheel.ids import first_ids, job_range
from tidewheel.postgres.session import Session
from tidewheel.postgres.statements import Statements
from tidewheel.process.metrics import metrics
from tidewheel.runs import RunState
from tidewheel.transitions.active_runs import NO_RUN, mark_waiters, release_stale_active_runs
from tidewheel.transitions.cancel_signals import Signal
from tidewheel.transitions.installation import Installation

_LOG = logging.getLogger("tidewheel.scheduler")

_SQL = Statements("tidewheel.scheduler")
_SCAN_ACTIVE_RUNS = _SQL["scan_active_runs"]
_LOCK_ACTIVE_RUNS = _SQL["lock_active_runs"]
_FIND_UNMARKED_WAITERS = _SQL["find_unmarked_waiters"]
_DROP_STALE_SIGNALS = _SQL["drop_stale_signals"]

_MAX_SCANNED = 1000  # active runs scanned in one step: about ten milliseconds
_STALE_AFTER = timedelta(minutes=1)  # a live executor reads its signals within seconds


class ActiveRunRepair:
    """Scans the active runs that have waiters, `_MAX_SCANNED` at a time, again and again."""

    def __init__(self, session: Session, installation: Installation) -> None:
        self._session, self._installation = session, installation
        self._after = NO_RUN

    def step(self) -> int:
        """Scan some active runs; return how many were transferred or released."""
        with self._session.transaction() as connection:
            columns: dict[str, object] = {"after": self._after, "limit": _MAX_SCANNED}
            rows = connection.execute(_SCAN_ACTIVE_RUNS, columns, binary=True).fetchall()
            self._after = cast("UUID", rows[-1][0]) if len(rows) == _MAX_SCANNED else NO_RUN
            gone = [cast("UUID", job) for job, held in rows if not held]
            if not gone:
                return 0
            locked = connection.execute(_LOCK_ACTIVE_RUNS, {"job_ids": gone}, binary=True).fetchall()
            freed = release_stale_active_runs(connection, self._installation, [cast("UUID", job) for (job,) in locked])
        metrics.count("active_runs_repaired", len(freed))
        return len(freed)

    def repair_shard(self, shard: int) -> int:
        """Mark active runs of one shard that have unmarked waiters; return the number of their jobs."""
        first, last = job_range(shard, self._installation.shards)
        columns: dict[str, object] = {"first": first, "last": last, "buffered": RunState.BUFFERED}
        with self._session.transaction() as connection:
            rows = connection.execute(_FIND_UNMARKED_WAITERS, columns, binary=True).fetchall()
            jobs = [(cast("UUID", job), str(tenant)) for job, tenant in rows]
            if jobs:
                mark_waiters(connection, jobs)
                release_stale_active_runs(connection, self._installation, [job for job, _ in jobs])
            stale: dict[str, object] = {"terminate": Signal.TERMINATE, "stale_after": _STALE_AFTER}
            connection.execute(_DROP_STALE_SIGNALS, stale)
        if jobs:
            metrics.count("active_runs_repaired", len(jobs))
            _LOG.error(
                "the scheduler repaired the active runs of %d jobs of shard %d, for which other runs waited: %s;"
                " check for manual changes or a partial restore",
                len(jobs),
                shard,
                first_ids([job for job, _ in jobs]),
            )
        return len(jobs)
