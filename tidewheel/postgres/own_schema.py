"""The schema of one installation, in a database that others share.

A session has that schema alone in its search path: the tables of another installation are out of reach.
"""

import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, LiteralString

from psycopg import Connection
from psycopg.pq import TransactionStatus

from tidewheel.postgres.statements import trusted

_MARK: LiteralString = "tidewheel.own_schema"
_SET: LiteralString = f"SELECT set_config('search_path', %(path)s, true), set_config('{_MARK}', %(mark)s, true)"
_PATH = re.compile(rf"-c search_path=([a-z0-9_]+) -c {_MARK}=on")
_FUNCTION = re.compile(r"\btidewheel_(?=\w+\()")


def schema_options(schema: str) -> str:
    """Return the options of a session whose tables lie in this schema."""
    return f"-c search_path={schema} -c {_MARK}=on"


def schema_of_options(options: str) -> str | None:
    """Return the schema that `schema_options` names, the last one as for the server; None without it."""
    found = _PATH.findall(options)
    return found[-1] if found else None


def named(name: str, schema: str | None) -> str:
    """Return a name of the database's, such as a channel, for an installation in this schema."""
    return name if schema is None else f"{name}.{schema}"


def qualified(statement: LiteralString, schema: str | None) -> LiteralString:
    """Return a statement that calls the SQL functions of a schema, whatever the session's search path."""
    return statement if schema is None else trusted(_FUNCTION.sub(rf'"{schema}".\g<0>', statement))


class SchemaConnection(Connection[tuple[object, ...]]):
    """A connection whose statements find the tables of Tidewheel in `schema`; None is its own search path."""

    schema: str | None = None


def own_schema(connection: Connection[Any]) -> str | None:
    """Return the schema of an own connection, or of the object over a caller's; None for another one."""
    return connection.schema if isinstance(connection, SchemaConnection) else None


@contextmanager
def search_path(connection: SchemaConnection) -> Generator[None]:
    """Let statements in a caller's transaction find the tables, and restore the caller's search path."""
    if connection.schema is None:
        yield
        return
    before = connection.execute("SELECT current_setting('search_path'), current_setting(%s, true)", [_MARK]).fetchall()
    connection.execute(_SET, {"path": connection.schema, "mark": "on"})
    try:
        yield
    finally:
        if connection.pgconn.transaction_status == TransactionStatus.INTRANS:  # a rollback restores it otherwise
            [(path, mark)] = before
            connection.execute(_SET, {"path": path, "mark": mark or ""})
