"""The caller's own connection, lent to our code for some statements, in whatever transaction it is in.

Ours runs on a connection object of its own over the caller's libpq connection: rows, cursors, adapters and prepared
statements that the caller has set are neither used nor changed. The caller's lock is held meanwhile, so nobody else's
statement comes between. The transaction stays the caller's: nothing here commits what the caller has begun.
"""

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import TypeVar, cast

from psycopg import AsyncConnection, Connection
from psycopg.pq import PipelineStatus, TransactionStatus

from tidewheel.errors import FieldError, InvalidInput
from tidewheel.postgres.session import Conn

T = TypeVar("T")

_Lent = Connection[object] | AsyncConnection[object]


@contextmanager
def borrowed(connection: Connection[object]) -> Generator[Conn]:
    """A connection for our statements, inside the caller's transaction.

    Where the caller has begun none, it begins as the caller's next statement would begin it; on autocommit it lasts as
    long as the block.

    Raises:
        InvalidInput: It is no connection that this can be done with.
    """
    if not isinstance(cast("object", connection), Connection):
        problem = f"a {_name(connection)} was given"
        raise _unfit(problem, _remedy(connection, "a psycopg.Connection"))
    with connection.lock, _twin(connection) as twin:
        yield twin


async def borrow(connection: AsyncConnection[object], work: Callable[[Conn], T]) -> T:
    """Do work with a connection for our statements, inside the transaction of an asynchronous caller.

    The work runs on a thread, while this waits and nobody else can use the connection. Where this is cancelled, the
    statement under way is cancelled too, and waited for: the connection comes back at rest.

    Raises:
        InvalidInput: It is no connection that this can be done with.
    """
    if not isinstance(cast("object", connection), AsyncConnection):
        problem = f"a {_name(connection)} was given"
        raise _unfit(problem, _remedy(connection, "a psycopg.AsyncConnection"))

    def on_thread() -> T:
        with _twin(connection) as twin:
            return work(twin)

    async with connection.lock:
        under_way = asyncio.ensure_future(asyncio.to_thread(on_thread))
        try:
            return await asyncio.shield(under_way)
        except asyncio.CancelledError:
            stopping = asyncio.ensure_future(asyncio.to_thread(connection.cancel))
            while not (under_way.done() and stopping.done()):
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([under_way, stopping])
            for done in (under_way, stopping):
                done.exception()  # it was seen: what counts is that this was cancelled
            raise


@contextmanager
def _twin(connection: _Lent) -> Generator[Conn]:
    """A second connection object over the same libpq connection; its lock is held by who calls."""
    lent = connection.pgconn
    if (why_not := _why_not(connection)) is not None:
        raise _unfit(*why_not)
    handlers = lent.notice_handler, lent.notify_handler
    twin = cast("Conn", Connection(lent))
    lent.notice_handler, lent.notify_handler = handlers  # what the server tells is still told to the caller
    twin.prepare_threshold = None  # the names of prepared statements are the caller's
    try:
        if lent.transaction_status == TransactionStatus.IDLE:
            twin.isolation_level = connection.isolation_level
            twin.read_only, twin.deferrable = connection.read_only, connection.deferrable
            if connection.autocommit:
                with twin.transaction():
                    yield twin
                return
        yield twin
    finally:
        del twin.pgconn  # else it would complain, when it goes, that it was not closed


def _why_not(connection: _Lent) -> tuple[str, str] | None:
    """Why it cannot be lent now, and what to do about that."""
    if connection.closed:
        return "it is closed", "give an open connection"
    if connection.pgconn.pipeline_status != PipelineStatus.OFF:
        return "it is in a pipeline", "leave the pipeline block first"
    if connection.pgconn.transaction_status == TransactionStatus.INERROR:
        return "its transaction has failed already", "roll back, and do the work again"
    # Texts go in binary too, which the server reads in the session's encoding.
    if (encoding := connection.pgconn.parameter_status(b"client_encoding")) != b"UTF8":
        return f"its client_encoding is {(encoding or b'?').decode()}", "connect with client_encoding=UTF8"
    return None


def _remedy(given: object, wanted: str) -> str:
    if isinstance(given, Connection):
        return "call the one without _async"
    if isinstance(given, AsyncConnection):
        return "await the one that ends with _async"
    return f"give {wanted}; in other languages and for other drivers there is the SQL function tidewheel_enqueue"


def _name(given: object) -> str:
    return f"{type(given).__module__}.{type(given).__qualname__}"


def _unfit(problem: str, remedy: str) -> InvalidInput:
    return InvalidInput([FieldError("connection", problem, remedy)])
