"""Run Tidewheel's statements on the caller's own psycopg connection, inside the caller's transaction.

A second connection object over the same libpq connection runs them. It neither uses nor changes the caller's row
factory, cursors, adapters and prepared statements. The caller's lock is held meanwhile, so no other statement comes
between. The transaction belongs to the caller: nothing here commits what the caller has begun.
"""

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import TypeVar, cast

import psycopg
from psycopg import AsyncConnection, Connection
from psycopg.pq import PipelineStatus, TransactionStatus

from tidewheel.errors import FieldError, InvalidInput, Unavailable
from tidewheel.postgres.partitions import repair_days
from tidewheel.postgres.session import Conn, lacks_partition

T = TypeVar("T")

_CallerConnection = Connection[object] | AsyncConnection[object]


@contextmanager
def use_connection(connection: Connection[object]) -> Generator[Conn]:
    """Yield a connection for Tidewheel's statements, inside the caller's transaction.

    Without an open transaction it begins one as the caller's next statement would. On autocommit the transaction ends
    with the block.

    Raises:
        Unavailable: A partition was missing, so the transaction has failed; the partition exists now.
    """
    if not isinstance(cast("object", connection), Connection):
        problem = f"a {_name(connection)} was given"
        raise _invalid(problem, _remedy(connection, "a psycopg.Connection"))
    with connection.lock, _wrap(connection) as wrapped:
        yield wrapped


async def use_async_connection(connection: AsyncConnection[object], work: Callable[[Conn], T]) -> T:
    """Run `work` with a connection for Tidewheel's statements, inside an async caller's transaction.

    The work runs on a thread while this coroutine holds the connection's lock. When this coroutine is cancelled, it
    cancels the running statement and waits for it to end, so that the connection comes back idle.

    Raises:
        Unavailable: As `use_connection`.
    """
    if not isinstance(cast("object", connection), AsyncConnection):
        problem = f"a {_name(connection)} was given"
        raise _invalid(problem, _remedy(connection, "a psycopg.AsyncConnection"))

    def on_thread() -> T:
        with _wrap(connection) as wrapped:
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
def _wrap(connection: _CallerConnection) -> Generator[Conn]:
    """Yield a second connection object over the same libpq connection; the caller holds its lock."""
    libpq = connection.pgconn
    if (refusal := _why_not(connection)) is not None:
        raise _invalid(*refusal)
    handlers = libpq.notice_handler, libpq.notify_handler
    wrapped = cast("Conn", Connection(libpq))
    libpq.notice_handler, libpq.notify_handler = handlers  # the server's notices still go to the caller's handlers
    wrapped.prepare_threshold = None  # the names of prepared statements are the caller's
    try:
        if libpq.transaction_status == TransactionStatus.IDLE:
            wrapped.isolation_level = connection.isolation_level
            wrapped.read_only, wrapped.deferrable = connection.read_only, connection.deferrable
            if connection.autocommit:
                with wrapped.transaction():
                    yield wrapped
                return
        yield wrapped
    except psycopg.errors.CheckViolation as error:
        if not lacks_partition(error):
            raise
        # On a connection of its own, for the transaction has failed.
        repair_days(wrapped)
        message = f"{error.diag.message_primary}; it exists now: roll back, and do the work again"
        raise Unavailable(message) from error
    finally:
        del wrapped.pgconn  # else psycopg warns, at its collection, of a connection that was not closed


def _why_not(connection: _CallerConnection) -> tuple[str, str] | None:
    """Return problem and remedy of a connection that cannot be used now, else None."""
    if connection.closed:
        return "it is closed", "give an open connection"
    if connection.pgconn.pipeline_status != PipelineStatus.OFF:
        return "it is in a pipeline", "leave the pipeline block first"
    if connection.pgconn.transaction_status == TransactionStatus.INERROR:
        return "its transaction has failed already", "roll back, and do the work again"
    # Texts are sent in binary form too, and the server reads them in the session's encoding.
    if (encoding := connection.pgconn.parameter_status(b"client_encoding")) != b"UTF8":
        return f"its client_encoding is {(encoding or b'?').decode()}", "connect with client_encoding=UTF8"
    return None


def _remedy(given: object, expected: str) -> str:
    if isinstance(given, Connection):
        return "call the one without _async"
    if isinstance(given, AsyncConnection):
        return "await the one that ends with _async"
    return f"give {expected}, or one of the other drivers on the page own-transactions; each has its SQL function too"


def _name(given: object) -> str:
    return f"{type(given).__module__}.{type(given).__qualname__}"


def _invalid(problem: str, remedy: str) -> InvalidInput:
    return InvalidInput([FieldError("connection", problem, remedy)])
