"""Drop the partitions of old days with their finished runs; delete old redrives and audit entries.

A partition is dropped when its whole day is older than the retention. The inputs of a run that ends within a day of its
creation lie in the partition of its creation, so inputs are kept a day longer. Partitions stay while open runs were
created, or started their attempts, on their days: such runs still read and write them.

Detaching waits for all transactions that have used the table, so this is a thread of its own. A process that dies, or
waits for too long, leaves a partition that is detached, or about to be: the next round drops it.
"""

import logging
import threading
from datetime import date, timedelta
from typing import cast

from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.partitions import StoredDay, day_of, drop_day, stored_days
from tidewheel.postgres.session import Conn, Session
from tidewheel.postgres.statements import Statements
from tidewheel.process.health import health
from tidewheel.process.service import Shutdown, run_loop

_LOG = logging.getLogger("tidewheel.scheduler")

_SQL = Statements("tidewheel.scheduler")
_LOCK_RETENTION = _SQL["lock_retention"]
_UNLOCK_RETENTION = _SQL["unlock_retention"]
_FIND_DAYS_IN_USE = _SQL["find_days_in_use"]
_DELETE_OLD_AUDIT = _SQL["delete_old_audit"]
_DELETE_OLD_REDRIVES = _SQL["delete_old_redrives"]
_DELETE_OLD_WINDOWS = _SQL["delete_old_windows"]
_DELETE_OLD_OCCURRENCES = (  # the parts of a batch before its occurrence, which dates them
    _SQL["delete_old_batch_runs"],
    _SQL["delete_old_run_edges"],
    _SQL["delete_old_batches"],
    _SQL["delete_old_workflows"],
)

_EVERY_SECONDS = 3600.0
_AUDIT_BATCH = 10_000  # entries that one statement deletes: some tens of milliseconds
_DAY = timedelta(days=1)


class Retention:
    """The thread of a scheduler that drops old partitions.

    Args:
        url: The database.
        keep: The time for which finished runs and redrives are kept.
        keep_audit: The time for which entries of the audit log are kept.
        stop: The scheduler's shutdown.
    """

    def __init__(self, url: str, keep: timedelta, keep_audit: timedelta, stop: Shutdown) -> None:
        self._session = Session(url, "tidewheel-scheduler-retention", autocommit=True)
        self._keep, self._keep_audit, self._stop = keep, keep_audit, stop
        self._thread = threading.Thread(target=self._run, name="retention", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def step(self) -> list[StoredDay]:
        """Drop what is old; return the dropped partitions, none if another scheduler drops them.

        Raises:
            Unavailable: The database does not answer, or a transaction has used a table for too long.
        """
        with self._session.transaction() as connection:
            if connection.execute(_LOCK_RETENTION).fetchone() != (True,):
                return []
            try:
                self._delete_audit(connection)
                connection.execute(_DELETE_OLD_REDRIVES, {"keep": self._keep})
                self._delete_workflows(connection)
                self._delete_windows(connection)
                return self._drop(connection)
            finally:
                connection.execute(_UNLOCK_RETENTION)

    def close(self) -> None:
        """Close the session."""
        self._session.close()

    def _run(self) -> None:
        run_loop(self._stop, "scheduler: dropping old partitions", self._round, longest_pause=_EVERY_SECONDS)

    def _round(self) -> float:
        try:
            self.step()
        finally:
            self.close()
        return _EVERY_SECONDS

    def _delete_audit(self, connection: Conn) -> None:
        columns: dict[str, object] = {"keep": self._keep_audit, "limit": _AUDIT_BATCH}
        while connection.execute(_DELETE_OLD_AUDIT, columns).rowcount == _AUDIT_BATCH:
            health.report_waiting()

    def _delete_workflows(self, connection: Conn) -> None:
        columns: dict[str, object] = {"keep": self._keep, "limit": _AUDIT_BATCH}
        for statement in _DELETE_OLD_OCCURRENCES:
            while connection.execute(statement, columns).rowcount == _AUDIT_BATCH:
                health.report_waiting()

    def _delete_windows(self, connection: Conn) -> None:
        while connection.execute(_DELETE_OLD_WINDOWS, {"limit": _AUDIT_BATCH}).rowcount == _AUDIT_BATCH:
            health.report_waiting()

    def _drop(self, connection: Conn) -> list[StoredDay]:
        oldest = day_of(read_now(connection) - self._keep)
        first = {"run_inputs": oldest - _DAY}
        old = [stored for stored in stored_days(connection) if stored.day < first.get(stored.table, oldest)]
        if not old:
            return []
        in_use = cast("list[tuple[date, date | None]]", connection.execute(_FIND_DAYS_IN_USE).fetchall())
        started = {day for _, day in in_use if day is not None}
        kept = {"finished_runs": set[date](), "run_inputs": {day for day, _ in in_use}}
        dropped: list[StoredDay] = []
        for stored in old:
            if stored.day not in kept.get(stored.table, started):
                health.report_waiting()  # each may wait for seconds, and a year's are many
                drop_day(connection, stored)
                dropped.append(stored)
                _LOG.info("the partition of %s for %s is dropped", stored.table, stored.day)
        return dropped
