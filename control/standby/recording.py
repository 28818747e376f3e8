"""Begin and stop recording rows for a standby site (ADR 0082)."""

from typing import LiteralString

import psycopg
from psycopg import sql

from tidewheel.errors import Unavailable
from tidewheel.kafka.topics import Topics
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.process.failpoint import failpoint
from tidewheel.standby import CARRIED

_SQL = Statements("tidewheel.control.standby")
_ENABLE = _SQL["enable_standby"]
_FINISH_LISTING = _SQL["finish_listing"]
_DISABLE = _SQL["disable_standby"]
_FORGET_CHANGES = _SQL["forget_changes"]
_FORGET_REFUSED = _SQL["forget_refused_records"]

# A trigger waits for the transactions that write its table, and those that come wait behind it: for this time at most.
_LOCK_TIMEOUT: LiteralString = "SET LOCAL lock_timeout = '500ms'"
_TRIES = 20
_IN_UTC: LiteralString = "SET LOCAL timezone = 'UTC'"  # as in tidewheel_note_change: a key has one text
_EVENTS: tuple[LiteralString, ...] = ("insert", "update", "delete")
_DROP: LiteralString = "DROP TRIGGER IF EXISTS {name} ON {table}"
_CREATE: LiteralString = """
CREATE TRIGGER {name} AFTER {event} ON {table} REFERENCING {rows} TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION tidewheel_note_change({columns})
"""
_LIST: LiteralString = """
INSERT INTO standby_changes (kind, key) SELECT {kind}, jsonb_build_object({pairs})::text FROM {table}
"""


def enable(connection: Conn, topics: Topics) -> None:
    """Begin to record, and list all rows that exist; a repeat begins again.

    By a connection of the owner of the tables, outside a transaction. Refused records are listed again.
    """
    _replace_triggers(connection, create=True)
    with connection.transaction():
        connection.execute(_ENABLE)
        connection.execute(_FORGET_REFUSED, {"topics": [topics.jobs, topics.run_states]})
    failpoint("standby.triggers_created")
    # The triggers are committed, so a row is listed here, or its later change is noted, or both.
    with connection.transaction():
        connection.execute(_IN_UTC)
        for table, columns in CARRIED.items():
            pairs = sql.SQL(", ").join(
                sql.SQL("{}, {}").format(sql.Literal(column), sql.Identifier(column)) for column in columns
            )
            named = sql.SQL(_LIST).format(kind=sql.Literal(table), pairs=pairs, table=sql.Identifier(table))
            connection.execute(named)
        connection.execute(_FINISH_LISTING)


def disable(connection: Conn) -> bool:
    """Stop recording; return False if it was off. The records in the topics stay."""
    was_enabled = connection.execute(_DISABLE).rowcount > 0
    _replace_triggers(connection, create=False)
    connection.execute(_FORGET_CHANGES)
    return was_enabled


def _replace_triggers(connection: Conn, *, create: bool) -> None:
    for table, columns in CARRIED.items():
        statements: list[sql.Composed] = []
        for event in _EVENTS:
            name, named = sql.Identifier(f"standby_{event}"), sql.Identifier(table)
            statements.append(sql.SQL(_DROP).format(name=name, table=named))
            if create:
                create_trigger = sql.SQL(_CREATE).format(
                    name=name,
                    event=sql.SQL(event.upper()),
                    table=named,
                    rows=sql.SQL("OLD" if event == "delete" else "NEW"),
                    columns=sql.SQL(", ").join(map(sql.Literal, columns)),
                )
                statements.append(create_trigger)
        _execute_in_tries(connection, table, statements)


def _execute_in_tries(connection: Conn, table: str, statements: list[sql.Composed]) -> None:
    """Execute statements in a transaction of their own, which locks one table alone."""
    for attempt in range(_TRIES):
        try:
            with connection.transaction():
                connection.execute(_LOCK_TIMEOUT)
                for statement in statements:
                    connection.execute(statement)
                return
        except psycopg.errors.LockNotAvailable as error:
            if attempt == _TRIES - 1:
                message = (
                    f"another transaction keeps the table {table} locked; end the transactions that `tidewheel doctor` "
                    "names, then run the command again"
                )
                raise Unavailable(message) from error
