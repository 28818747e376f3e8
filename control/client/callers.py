"""Connections of applications: psycopg, asyncpg, and SQLAlchemy's sessions and connections.

Beneath SQLAlchemy lies a psycopg connection, or that of another driver. Over another driver Tidewheel's statements are
SQL functions, in a savepoint: a refused call leaves the caller's transaction usable. No library is imported here. A
caller that has one of its objects has imported it.
"""

import re
import sys
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, LiteralString, Protocol, TypeAlias, cast

import psycopg

if TYPE_CHECKING:
    import sqlalchemy
    import sqlalchemy.ext.asyncio as sqlalchemy_async
    import sqlalchemy.orm as sqlalchemy_orm

    Caller: TypeAlias = "psycopg.Connection[Any] | sqlalchemy_orm.Session | sqlalchemy.Connection"
    AsyncCaller: TypeAlias = (
        psycopg.AsyncConnection[Any]
        | sqlalchemy_async.AsyncSession
        | sqlalchemy_async.AsyncConnection
        | "AsyncpgConnection"
    )


class AsyncpgConnection(Protocol):
    """The part of a connection of asyncpg, or of its pool, that is used here; asyncpg has no types."""

    def fetchrow(self, query: str, *args: Any) -> Coroutine[Any, Any, Any]:  # noqa: ANN401 - as asyncpg has it
        """Return the first row of a statement."""
        ...

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """Open a transaction or a savepoint."""
        ...


Row: TypeAlias = Sequence[object]

_PARAMETER = re.compile(r"%\((\w+)\)s")
_NO_DATA_FOUND = "P0002"
_UNDEFINED_OBJECT = "42704"


class NoTenant(LookupError):
    """A SQL function has raised `undefined_object`: the tenant is being deleted, or was deleted."""


def psycopg_beneath(given: object) -> object:
    """Return the psycopg connection of an SQLAlchemy session or connection; any other object as it is."""
    connection = _sqlalchemy_connection(given)
    if connection is None:
        return given
    driver = connection.connection.driver_connection
    return cast("object", driver) if isinstance(driver, psycopg.Connection) else connection


async def psycopg_beneath_async(given: object) -> object:
    """As `psycopg_beneath`, for asynchronous sessions and connections."""
    library: Any = sys.modules.get("sqlalchemy.ext.asyncio")
    if library is not None and isinstance(given, library.AsyncSession | library.async_scoped_session):
        given = await cast("sqlalchemy_async.AsyncSession", given).connection()
    if library is None or not isinstance(given, library.AsyncConnection):
        return given
    raw = await cast("sqlalchemy_async.AsyncConnection", given).get_raw_connection()
    driver = raw.driver_connection
    return cast("object", driver) if isinstance(driver, psycopg.AsyncConnection) else given


def is_foreign(given: object) -> bool:
    """Return True for a connection of SQLAlchemy, over a driver other than psycopg."""
    return _sqlalchemy_connection(given) is not None


def is_foreign_async(given: object) -> bool:
    """Return True for a connection of asyncpg, or an asynchronous one of SQLAlchemy over such a driver."""
    library: Any = sys.modules.get("sqlalchemy.ext.asyncio")
    return _is_asyncpg(given) or (library is not None and isinstance(given, library.AsyncConnection))


def fetch_row(connection: object, statement: LiteralString, columns: Mapping[str, object]) -> Row | None:
    """Return a statement's first row over SQLAlchemy, in a savepoint; LookupError is `no_data_found`."""
    import sqlalchemy
    from sqlalchemy.exc import DBAPIError

    given = cast("sqlalchemy.Connection", connection)
    try:
        with given.begin_nested():
            return cast("Row | None", given.execute(sqlalchemy.text(_named(statement)), columns).fetchone())
    except DBAPIError as error:
        raise _lookup_error(error) from error


async def fetch_row_async(connection: object, statement: LiteralString, columns: Mapping[str, object]) -> Row | None:
    """As `fetch_row`, over asyncpg or an asynchronous connection of SQLAlchemy."""
    if _is_asyncpg(connection):
        given = cast("AsyncpgConnection", connection)
        text, names = _numbered(statement)
        try:
            async with given.transaction():
                return cast("Row | None", await given.fetchrow(text, *(columns[name] for name in names)))
        except Exception as error:
            raise _lookup_error(error) from error
    import sqlalchemy
    from sqlalchemy.exc import DBAPIError

    over = cast("sqlalchemy_async.AsyncConnection", connection)
    try:
        async with over.begin_nested():
            return cast("Row | None", (await over.execute(sqlalchemy.text(_named(statement)), columns)).fetchone())
    except DBAPIError as error:
        raise _lookup_error(error) from error


def _sqlalchemy_connection(given: object) -> "sqlalchemy.Connection | None":
    library: Any = sys.modules.get("sqlalchemy")
    orm: Any = sys.modules.get("sqlalchemy.orm")
    if orm is not None and isinstance(given, orm.Session | orm.scoped_session):
        return cast("sqlalchemy_orm.Session", given).connection()
    if library is not None and isinstance(given, library.Connection):
        return cast("sqlalchemy.Connection", given)
    return None


def _is_asyncpg(given: object) -> bool:
    library: Any = sys.modules.get("asyncpg")
    return library is not None and isinstance(given, library.Connection | library.pool.PoolConnectionProxy)


def _named(statement: str) -> str:
    """Write parameters as SQLAlchemy does: `:key`."""
    return _PARAMETER.sub(r":\1", statement)


def _numbered(statement: str) -> tuple[str, list[str]]:
    """Write parameters as asyncpg does: `$1`; return their names in order."""
    names = list(dict.fromkeys(_PARAMETER.findall(statement)))
    return _PARAMETER.sub(lambda found: f"${names.index(found[1]) + 1}", statement), names


def _lookup_error(error: Exception) -> Exception:
    """Return the LookupError of a `no_data_found` or an `undefined_object`; any other error as it is."""
    cause = getattr(error, "orig", None) or error
    code = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
    if code == _UNDEFINED_OBJECT:
        return NoTenant(str(error))
    return LookupError(str(error)) if code == _NO_DATA_FOUND else error
