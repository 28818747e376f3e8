"""Daily partitions of the tables that are partitioned by run_id.

The code that writes a run creates the partition it needs. There is no default partition, so a missing one is an error
and rows never pile up unseen. Partitions are created by CREATE and ATTACH, which do not block writers.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from types import MappingProxyType
from uuid import UUID

import psycopg
from psycopg import sql

from tidewheel.ids import first_run_id
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import trusted

# Table -> storage parameters of its partitions. fillfactor: job_runs is updated once, at its end, many rows of a page
# in one transaction: with room for a second version of each that is HOT (at 85 one in five was, for 4 us more and two
# index entries a run); the versions take the same space either way.
TABLES = MappingProxyType(
    {
        "job_runs": "fillfactor = 45, autovacuum_vacuum_scale_factor = 0.1",
        "run_inputs": "fillfactor = 100",
        "attempts": "fillfactor = 100",
        "attempt_outputs": "fillfactor = 100",
    }
)
AHEAD_DAYS = 3  # created by the scheduler ahead of need; a weekend without a scheduler still has partitions

_DAY_MS = 86_400_000
_LAST_ID = (1 << 128) - 1
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_known: set[tuple[str, date]] = set()


def day_of(instant: datetime) -> date:
    """Return the day whose partition holds a run of this instant."""
    return instant.astimezone(UTC).date()


def ensure_days(connection: Conn, days: Iterable[date]) -> None:
    """Create the missing partitions of these days.

    It uses its own connection and one transaction per day: a caller's transaction that stays open (a user's, in
    `enqueue`) must not block other processes from creating theirs. Existing partitions are cached per database, so the
    usual call costs nothing.

    Raises:
        psycopg.OperationalError: The connection cannot be made.
    """
    database = _database(connection)
    requested = sorted(day for day in set(days) if (database, day) not in _known)
    missing = [day for day in requested if not all(_exists(connection, f"{table}{_suffix(day)}") for table in TABLES)]
    if missing:
        parameters = {**connection.info.get_parameters(), "application_name": "tidewheel-partitions"}
        with psycopg.connect(**parameters, password=connection.info.password, autocommit=True) as own:  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
            for day in missing:
                with own.transaction():
                    _create_day(own, day)
    _known.update((database, day) for day in requested)


def forget_days() -> None:
    """Drop the cache: an insert found no partition for its row (SQLSTATE 23514)."""
    _known.clear()


def of_unknown_days(connection: Conn, runs: Sequence[UUID]) -> list[UUID]:
    """Return the runs whose day's partition this process has not seen; does not query the database."""
    database = _database(connection)
    known = {day.toordinal() - _EPOCH_DAY for named, day in _known.copy() if named == database}
    days = {(run.int >> 80) // _DAY_MS for run in runs}
    return [] if days <= known else [run for run in runs if (run.int >> 80) // _DAY_MS not in known]


def days_between(runs: Iterable[UUID]) -> tuple[UUID, UUID]:
    """Return the first and the last run_id of these runs' days, which prune a plan to their partitions.

    The bounds are those of whole days. The planner estimates next to no rows for narrower bounds that came after the
    last ANALYZE, and then scans the range once for each row that is looked up.
    """
    stamps = [run.int >> 80 for run in runs]
    first = min(stamps) // _DAY_MS * _DAY_MS << 80
    last = ((max(stamps) // _DAY_MS + 1) * _DAY_MS << 80) - 1
    return UUID(int=first), UUID(int=min(last, _LAST_ID))


def ensure_coming_days(connection: Conn) -> None:
    """Create the partitions of yesterday, today and the days ahead, by the database's clock.

    Raises:
        psycopg.OperationalError: The connection cannot be made.
    """
    today = day_of(read_now(connection))
    ensure_days(connection, [today + timedelta(days=ahead) for ahead in range(-1, AHEAD_DAYS + 1)])


def _create_day(connection: Conn, day: date) -> None:
    connection.execute("SELECT pg_advisory_xact_lock(hashtext('tidewheel.postgres.partitions'))")
    start = datetime(day.year, day.month, day.day, tzinfo=UTC)
    bounds = sql.SQL("FROM ({}) TO ({})").format(
        sql.Literal(str(first_run_id(start))), sql.Literal(str(first_run_id(start + timedelta(days=1))))
    )
    for table, parameters in TABLES.items():
        _ensure_partition(connection, table, f"{table}{_suffix(day)}", parameters, bounds)


def _database(connection: Conn) -> str:
    return f"{connection.info.host}:{connection.info.port}/{connection.info.dbname}"


def _suffix(day: date) -> str:
    return f"_{day:%Y%m%d}"


def _exists(connection: Conn, table: str) -> bool:
    return connection.execute("SELECT to_regclass(%s) IS NOT NULL", [table]).fetchone() == (True,)


def _ensure_partition(connection: Conn, table: str, partition: str, parameters: str, bounds: sql.Composed) -> None:
    if _exists(connection, partition):
        return
    name, parent = sql.Identifier(partition), sql.Identifier(table)
    connection.execute(
        sql.SQL("CREATE TABLE {} (LIKE {} INCLUDING ALL) WITH ({})").format(name, parent, sql.SQL(trusted(parameters)))
    )
    connection.execute(sql.SQL("ALTER TABLE {} ATTACH PARTITION {} FOR VALUES {}").format(parent, name, bounds))
