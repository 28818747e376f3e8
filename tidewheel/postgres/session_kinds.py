"""Sessions shared by threads, of one background query, and on the caller's connection.

On the caller's connection a second connection object over the same libpq connection runs Tidewheel's statements. It
neither uses nor changes the caller's row factory, cursors, adapters and prepared statements. The caller's lock is held
meanwhile. The transaction belongs to the caller: nothing here commits what the caller has begun.

Over another driver than psycopg Tidewheel's statements are SQL functions, in a savepoint: a refused call leaves the
caller's transaction usable. No library is imported here: a caller that has one of its objects has imported it.
"""

import asyncio
import re
import sys
import threading
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Generic, LiteralString, Protocol, TypeAlias, TypeVar, cast

import psycopg
from psycopg import AsyncConnection, Connection
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from tidewheel.errors import Unavailable, refuse
from tidewheel.postgres.own_schema import SchemaConnection, search_path
from tidewheel.postgres.partitions import repair_days
from tidewheel.postgres.session import Conn, Session, lacks_partition

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


R = TypeVar("R")
T = TypeVar("T")
Row: TypeAlias = Sequence[object]
_CallerConnection = Connection[object] | AsyncConnection[object]

_CANCEL_SECONDS = 0.1  # between two cancels: a cancel that arrives before the statement starts has no effect
_PARAMETER = re.compile(r"%\((\w+)\)s")
_NO_DATA_FOUND = "P0002"
_UNDEFINED_OBJECT = "42704"


class SessionPool:
    """A pool of sessions; each is opened when the open ones are busy."""

    def __init__(self, make: Callable[[], Session], most: int) -> None:
        self._make = make
        self._places = threading.Semaphore(most)
        self._idle: list[Session] = []  # the one that was used last at its end
        self._closed = False

    @contextmanager
    def transaction(self) -> Generator[Conn]:
        """Run the block in a transaction of a free session, as `Session.transaction` does."""
        with self._places:
            try:
                session = self._idle.pop()
            except IndexError:
                session = self._make()
            try:
                with session.transaction() as connection:
                    yield connection
            finally:
                self._idle.append(session)
                if self._closed:
                    self.close()

    def close(self) -> None:
        """Close the free sessions now, and each of the others at the end of its transaction."""
        self._closed = True
        with suppress(IndexError):
            while True:
                self._idle.pop().close()


class BackgroundQuery(Generic[R]):
    """A query that its loop starts and collects later, so that the loop never waits for it."""

    def __init__(self, session: Session, name: str) -> None:
        self._session = session
        self._thread = ThreadPoolExecutor(1, name)
        self._query: Future[R] | None = None
        self.closing = False

    @property
    def busy(self) -> bool:
        """True while a query runs, and until its result is taken."""
        return self._query is not None

    def start(self, query: Callable[[], R]) -> None:
        """Start a query; the caller checks `busy` first."""
        self._query = self._thread.submit(query)

    def take(self) -> R | None:
        """Return the result of a query that has ended, once, or raise its error; else None."""
        query = self._query
        if query is None or not query.done():
            return None
        self._query = None
        return query.result()

    def close(self) -> None:
        """Cancel the running statement, end the thread and close the connection."""
        self.closing = True
        while self._query is not None and wait([self._query], _CANCEL_SECONDS).not_done:
            self._session.cancel()
        self._thread.shutdown()
        self._session.close()


@contextmanager
def use_connection(connection: Connection[object], schema: str | None) -> Generator[Conn]:
    """Yield a connection for Tidewheel's statements in a schema, inside the caller's transaction.

    Without an open transaction it begins one as the caller's next statement would. On autocommit the transaction ends
    with the block.

    Raises:
        Unavailable: A partition was missing, so the transaction has failed; the partition exists now.
    """
    if not isinstance(cast("object", connection), Connection):
        refuse("connection", f"a {_name(connection)} was given", _remedy(connection, "a psycopg.Connection"))
    with connection.lock, _wrap(connection, schema) as wrapped:
        yield wrapped


async def use_async_connection(connection: AsyncConnection[object], schema: str | None, work: Callable[[Conn], T]) -> T:
    """Run `work` with a connection for Tidewheel's statements, inside an async caller's transaction.

    The work runs on a thread while this coroutine holds the connection's lock. When this coroutine is cancelled, it
    cancels the running statement and waits for it to end, so that the connection comes back idle.
    """
    if not isinstance(cast("object", connection), AsyncConnection):
        refuse("connection", f"a {_name(connection)} was given", _remedy(connection, "a psycopg.AsyncConnection"))

    def on_thread() -> T:
        with _wrap(connection, schema) as wrapped:
            return work(wrapped)

    async with connection.lock:
        running = asyncio.ensure_future(asyncio.to_thread(on_thread))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            cancelling = asyncio.ensure_future(asyncio.to_thread(connection.cancel))
            while not (running.done() and cancelling.done()):
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([running, cancelling])
            for done in (running, cancelling):
                done.exception()  # retrieved, so that asyncio does not log it; the caller gets CancelledError
            raise


@contextmanager
def _wrap(connection: _CallerConnection, schema: str | None) -> Generator[Conn]:
    """Yield a second connection object over the same libpq connection; the caller holds its lock."""
    libpq = connection.pgconn
    if (refusal := _why_not(connection)) is not None:
        refuse("connection", *refusal)
    handlers = libpq.notice_handler, libpq.notify_handler
    wrapped = SchemaConnection(libpq, tuple_row)
    wrapped.schema = schema
    libpq.notice_handler, libpq.notify_handler = handlers  # the server's notices still go to the caller's handlers
    wrapped.prepare_threshold = None  # the names of prepared statements are the caller's
    try:
        if libpq.transaction_status == TransactionStatus.IDLE:
            wrapped.isolation_level = connection.isolation_level
            wrapped.read_only, wrapped.deferrable = connection.read_only, connection.deferrable
            if connection.autocommit:
                with wrapped.transaction(), search_path(wrapped):
                    yield wrapped
                return
        with search_path(wrapped):
            yield wrapped
    except psycopg.errors.CheckViolation as error:
        if not lacks_partition(error):
            raise
        # On a connection of its own, for the transaction has failed.
        repair_days(wrapped)
        raise Unavailable(f"{error.diag.message_primary}; it exists now: roll back, then repeat the work") from error
    finally:
        del wrapped.pgconn  # else psycopg warns, at its collection, of a connection that was not closed


def _why_not(connection: _CallerConnection) -> tuple[str, str] | None:
    """Return problem and remedy of a connection that cannot be used now, else None."""
    if connection.closed:
        return "is closed", "give an open connection"
    if connection.pgconn.pipeline_status != PipelineStatus.OFF:
        return "is in a pipeline", "leave the pipeline block first"
    if connection.pgconn.transaction_status == TransactionStatus.INERROR:
        return "is in a failed transaction", "roll back, then repeat the work"
    # Texts are sent in binary form too, and the server reads them in the session's encoding.
    if (encoding := connection.pgconn.parameter_status(b"client_encoding")) != b"UTF8":
        return f"has client_encoding={(encoding or b'?').decode()}", "connect with client_encoding=UTF8"
    return None


def _remedy(given: object, expected: str) -> str:
    if isinstance(given, Connection):
        return "call the function without _async"
    if isinstance(given, AsyncConnection):
        return "await the function that ends with _async"
    return f"pass {expected}, or one of another driver listed on the page own-transactions"


def _name(given: object) -> str:
    return f"{type(given).__module__}.{type(given).__qualname__}"


class AsyncpgConnection(Protocol):
    """The part of a connection of asyncpg, or of its pool, that is used here; asyncpg has no types."""

    def fetchrow(self, query: str, *args: Any) -> Coroutine[Any, Any, Any]:  # noqa: ANN401 - as asyncpg has it
        """Return the first row of a statement."""
        ...

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """Open a transaction or a savepoint."""
        ...


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
