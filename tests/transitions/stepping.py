"""Step two transactions against each other: one runs in the background until it waits for a lock."""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import LiteralString, TypeVar

from tests.fixtures.database import Database
from tests.fixtures.services import until
from tidewheel.postgres.session import Conn
from tidewheel.schemas.generated.records import Reply

T = TypeVar("T")

# Of this database alone: another worker's tests wait for locks of the same server.
_BLOCKED: LiteralString = """
SELECT EXISTS (SELECT FROM pg_stat_activity
                WHERE datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0)
"""


def in_background(work: Callable[[], T]) -> Future[T]:
    """Call a function on a new thread; `result` raises its exception."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it is the waiting test's to judge
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def behind(database: Database, first: Callable[[Conn], object], second: Callable[[Conn], T]) -> T:
    """Run two transactions; return the result of the second, which has to wait for the first."""
    holding, waiting = database.connection(), database.connection()
    first(holding)

    def work() -> T:
        with waiting.transaction():
            return second(waiting)

    result = in_background(work)
    until_blocked(database, waiting)
    holding.commit()
    return result.result(30)


def batch_behind(database: Database, first: Callable[[Conn], object], *documents: Mapping[str, object]) -> list[Reply]:
    """Apply a batch that has to wait for the commit of another transaction; return its replies."""
    return behind(database, first, lambda connection: database.apply_batch_within(connection, *documents))


def until_blocked(database: Database, connection: Conn) -> None:
    """Wait until a connection's statement waits for a lock of another transaction."""
    pid = connection.info.backend_pid
    until(lambda: database.value("SELECT cardinality(pg_blocking_pids(%s)) > 0", [pid]), "it waits for a lock")


def until_one_is_blocked(database: Database, what: str) -> None:
    """Wait until any statement in a database waits for a lock of another transaction."""
    until(lambda: database.value(_BLOCKED), what)
