"""Daily partitions of the tables that only grow.

A table is cut by an instant that the database gives a row as it writes it, never by one that a client can choose. So
only the partitions of these days are written. The scheduler creates them days ahead. There is no default partition, so
a missing one is an error and rows never pile up unseen. Partitions are created by CREATE and ATTACH, which do not block
writers.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from types import MappingProxyType
from typing import LiteralString, NamedTuple, cast

import psycopg
from psycopg import sql

from tidewheel.postgres.own_schema import SchemaConnection, own_schema, qualified

# Each table with the column that is unique within a partition, though it is not the partition key.
TABLES: Mapping[str, str | None] = MappingProxyType(
    {"finished_runs": "run_id", "run_inputs": None, "attempts": None, "attempt_outputs": None}
)
_STORED_DAYS: LiteralString = """
SELECT c.relname::text, c.relispartition, coalesce(i.inhdetachpending, false)
  FROM pg_class AS c
  LEFT JOIN pg_inherits AS i ON i.inhrelid = c.oid
 WHERE c.relkind = 'r' AND c.relnamespace = current_schema()::regnamespace AND c.relname ~ %s
"""
_ATTACHED: LiteralString = """
SELECT c.relname::text FROM pg_class AS c
 WHERE c.relispartition AND c.relkind = 'r' AND c.relnamespace = coalesce(%s, current_schema())::regnamespace
   AND c.relname = ANY (%s)
"""
# `migrations/0005_functions.sql` has both functions: only the owner of a table attaches and detaches its partitions.
_CREATE_DAY: LiteralString = "SELECT tidewheel_create_day(%s, %s)"
_DROP_DAY: LiteralString = "SELECT tidewheel_drop_day(%s, %s)"
_READ_NOW: LiteralString = "SELECT tidewheel_now()"
_OWNS: LiteralString = "SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = to_regclass(%s::text)"
# Another transaction may lock a parent for minutes (VACUUM, ANALYZE, a migration): retry, and create the others first.
_LOCK_TIMEOUT: LiteralString = "SET LOCAL lock_timeout = '2s'"  # a pooler may share the session
AHEAD_DAYS = 3  # created by the scheduler ahead of need; a weekend without a scheduler still has partitions

_known: set[tuple[str, date]] = set()


def day_of(instant: datetime) -> date:
    """Return the day whose partition holds a row of this instant."""
    return instant.astimezone(UTC).date()


def start_of(day: date) -> datetime:
    """Return the first instant of a day's partition."""
    return datetime.combine(day, time(), UTC)


def ensure_days(connection: psycopg.Connection, days: Iterable[date]) -> None:
    """Create the missing partitions of these days.

    It uses its own connection and one transaction per partition: a caller's transaction that stays open (a user's, in
    `enqueue`) must not block other processes from creating theirs. Existing partitions are cached per database, so the
    usual call costs nothing. `repair_days` empties the cache when a row finds no partition.

    Raises:
        psycopg.OperationalError: The connection cannot be made, or another transaction locks a table.
    """
    database = _database(connection)
    requested = sorted(day for day in set(days) if (database, day) not in _known)
    if missing_partitions(connection, requested):
        with _connect_again(connection) as own:
            create_missing(own, requested)
    _known.update((database, day) for day in requested)


def forget_days(connection: psycopg.Connection) -> None:
    """Empty the cache of this database: another process may have dropped days."""
    database = _database(connection)
    _known.difference_update({known for known in _known if known[0] == database})


def ensure_coming_days(connection: psycopg.Connection) -> None:
    """Create the partitions of `coming_days`."""
    ensure_days(connection, coming_days(connection))


def coming_days(connection: psycopg.Connection) -> list[date]:
    """Return yesterday, today and the days ahead, by the database's clock."""
    [(now,)] = connection.execute(qualified(_READ_NOW, own_schema(connection))).fetchall()
    today = day_of(now)
    return [today + timedelta(days=ahead) for ahead in range(-1, AHEAD_DAYS + 1)]


def create_missing(connection: psycopg.Connection, days: Sequence[date]) -> None:
    """Create the missing partitions of these days, whatever the cache holds.

    A table that another transaction locks delays no other table: its error is raised at the end.

    Args:
        connection: With autocommit.

    Raises:
        psycopg.errors.LockNotAvailable: Another transaction locks a table; the partitions of the others exist.
    """
    locked: dict[str, psycopg.errors.LockNotAvailable] = {}
    for table, day in missing_partitions(connection, days):
        if table not in locked:
            try:
                with connection.transaction():
                    connection.execute(_LOCK_TIMEOUT)
                    connection.execute(qualified(_CREATE_DAY, own_schema(connection)), [table, day])
            except psycopg.errors.LockNotAvailable as error:
                locked[table] = error
    if locked:
        raise next(iter(locked.values()))


def days_ahead(connection: psycopg.Connection) -> int:
    """Return how many days after today have all their partitions, without a gap."""
    _, today, *ahead = coming_days(connection)
    missing = {day for _, day in missing_partitions(connection, [today, *ahead])}
    return next((number for number, day in enumerate([today, *ahead]) if day in missing), AHEAD_DAYS + 1) - 1


def repair_days(connection: psycopg.Connection) -> None:
    """Create the partitions of these days: an insert found none for its row (SQLSTATE 23514).

    No scheduler has created it, or an operator has dropped it. The caller's transaction may have failed: none of its
    statements runs.
    """
    _known.clear()
    with _connect_again(connection) as own:
        create_missing(own, coming_days(own))


class StoredDay(NamedTuple):
    """The partition of one table and one day.

    Args:
        attached: False if a process died after it had detached the partition.
        pending: True if it died, or waited for too long, while it detached it.
    """

    table: str
    day: date
    attached: bool
    pending: bool


def stored_days(connection: psycopg.Connection) -> list[StoredDay]:
    """Return the partitions that exist: those about to be detached, then the oldest first.

    While one of a table is about to be detached, PostgreSQL refuses to detach another one of it.
    """
    rows = connection.execute(_STORED_DAYS, [rf"^({'|'.join(TABLES)})_\d{{8}}$"]).fetchall()
    found: list[StoredDay] = []
    for name, attached, pending in cast("list[tuple[str, bool, bool]]", rows):
        table, _, digits = name.rpartition("_")
        found.append(
            StoredDay(table, datetime.strptime(digits, "%Y%m%d").replace(tzinfo=UTC).date(), attached, pending)
        )
    return sorted(found, key=lambda each: (not each.pending, each.day, each.table))


def drop_day(connection: psycopg.Connection, stored: StoredDay) -> None:
    """Detach and drop one partition; readers and writers of other days do not wait.

    For a user that does not own the table a function of the migrations does it: they wait, for 100 ms at most.

    Args:
        connection: With autocommit. It waits for the transactions that have used the table, and to complete an
            interrupted drop for all older snapshots.
    """
    if connection.execute(_OWNS, [stored.table]).fetchone() != (True,):
        connection.execute(_DROP_DAY, [stored.table, stored.day])
        return
    name, parent = sql.Identifier(f"{stored.table}{_suffix(stored.day)}"), sql.Identifier(stored.table)
    if stored.attached or stored.pending:
        how = sql.SQL("FINALIZE" if stored.pending else "CONCURRENTLY")
        connection.execute(sql.SQL("ALTER TABLE {} DETACH PARTITION {} {}").format(parent, name, how))
    connection.execute(sql.SQL("DROP TABLE {}").format(name))


def _connect_again(connection: psycopg.Connection) -> psycopg.Connection:
    parameters = {**connection.info.get_parameters(), "application_name": "tidewheel-partitions"}
    own = SchemaConnection.connect(**parameters, password=connection.info.password, autocommit=True)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    own.schema = own_schema(connection)
    own.prepare_threshold = None  # as above
    return own


def missing_partitions(connection: psycopg.Connection, days: Iterable[date]) -> list[tuple[str, date]]:
    """Return the partitions of these days that are not attached."""
    named = {f"{table}{_suffix(day)}": (table, day) for day in days for table in TABLES}
    if not named:
        return []
    attached = {name for (name,) in connection.execute(_ATTACHED, [own_schema(connection), list(named)]).fetchall()}
    return [partition for name, partition in named.items() if name not in attached]


def _database(connection: psycopg.Connection) -> str:
    return f"{connection.info.host}:{connection.info.port}/{connection.info.dbname}/{own_schema(connection)}"


def _suffix(day: date) -> str:
    return f"_{day:%Y%m%d}"
