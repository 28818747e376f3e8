"""The daily partitions of everything that is cut by run_id.

Whoever writes a run makes the partition it needs; there is no default partition, so a forgotten one is an error and
never a place where rows pile up unseen. Partitions come by CREATE and ATTACH, which do not block writers.
"""

from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from types import MappingProxyType

from psycopg import sql

from tidewheel.db import Conn
from tidewheel.ids import first_run_id
from tidewheel.sql import trusted

# Table -> storage parameters of its partitions. fillfactor: job_runs is updated once, at its end, which must stay HOT.
TABLES = MappingProxyType(
    {
        "job_runs": "fillfactor = 85, autovacuum_vacuum_scale_factor = 0.1",
        "run_inputs": "fillfactor = 100",
        "attempts": "fillfactor = 100",
        "attempt_outputs": "fillfactor = 100",
    }
)
AHEAD_DAYS = 3  # made by the scheduler before they are needed; a weekend without it still has partitions

_known: set[tuple[str, date]] = set()


def day_of(instant: datetime) -> date:
    """The day whose partition holds a run of this instant."""
    return instant.astimezone(UTC).date()


def ensure_days(connection: Conn, days: Iterable[date]) -> None:
    """Make the partitions of these days where they are missing, in the caller's transaction.

    What was seen to exist is remembered by database, so that the usual call costs nothing.
    """
    database = f"{connection.info.host}:{connection.info.port}/{connection.info.dbname}"
    wanted = sorted(day for day in set(days) if (database, day) not in _known)
    if not wanted:
        return
    for day in wanted:
        # Only what was found is remembered: what this transaction makes may yet be rolled back.
        if _ensure_day(connection, day):
            _known.add((database, day))


def forget() -> None:
    """Forget which partitions exist: something that was remembered has been rolled back or dropped."""
    _known.clear()


def _ensure_day(connection: Conn, day: date) -> bool:
    suffix = f"_{day:%Y%m%d}"
    last = f"{[*TABLES][-1]}{suffix}"
    if connection.execute("SELECT to_regclass(%s) IS NOT NULL", [last]).fetchone() == (True,):
        return True
    connection.execute("SELECT pg_advisory_xact_lock(hashtext('tidewheel.partitions'))")
    start = datetime(day.year, day.month, day.day, tzinfo=UTC)
    bounds = sql.SQL("FROM ({}) TO ({})").format(
        sql.Literal(str(first_run_id(start))), sql.Literal(str(first_run_id(start + timedelta(days=1))))
    )
    for table, parameters in TABLES.items():
        _ensure_partition(connection, table, f"{table}{suffix}", parameters, bounds)
    return False


def _ensure_partition(connection: Conn, table: str, partition: str, parameters: str, bounds: sql.Composed) -> None:
    if connection.execute("SELECT to_regclass(%s) IS NOT NULL", [partition]).fetchone() == (True,):
        return
    name, parent = sql.Identifier(partition), sql.Identifier(table)
    connection.execute(
        sql.SQL("CREATE TABLE {} (LIKE {} INCLUDING ALL) WITH ({})").format(name, parent, sql.SQL(trusted(parameters)))
    )
    connection.execute(sql.SQL("ALTER TABLE {} ATTACH PARTITION {} FOR VALUES {}").format(parent, name, bounds))
