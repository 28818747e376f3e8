"""The schema of one installation, in a database that others share.

A session has that schema alone in its search path: the tables of another installation are out of reach.
"""

import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final, LiteralString, cast

from psycopg import Connection
from psycopg.pq import TransactionStatus

from tidewheel.postgres.statements import trusted

PUBLIC: Final = "public"
_NAME = re.compile(r"[a-z_][a-z0-9_]*")  # needs no quotes
_FUNCTION = re.compile(r"\btidewheel_(?=\w+\()")


def path_option(schema: str) -> str:
    """Return the option of a session that sets its search path."""
    return f"-c search_path={schema}"


def only_schema(path: str) -> str | None:
    """Return the schema of a search path of one, which needs no quotes; None for another path."""
    return path if _NAME.fullmatch(path) else None


def named(name: str, schema: object) -> str:
    """Return a name of the database's, such as a channel, for an installation in this schema."""
    return name if schema in (None, PUBLIC) else f"{name}.{schema}"


def qualified(statement: LiteralString, schema: str | None) -> LiteralString:
    """Return a statement that calls the SQL functions of a schema, whatever the session's search path."""
    return statement if schema is None else trusted(_FUNCTION.sub(rf"{schema}.\g<0>", statement))


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
    statement = "SELECT current_setting('search_path'), set_config('search_path', %s, true)"
    [(path, _)] = cast("list[tuple[str, str]]", connection.execute(statement, [connection.schema]).fetchall())
    try:
        yield
    finally:
        if connection.pgconn.transaction_status == TransactionStatus.INTRANS:  # a rollback restores it otherwise
            connection.execute("SELECT set_config('search_path', %s, true)", [path])
