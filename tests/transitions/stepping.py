"""Two transactions stepped against each other: one goes on in the background until the database says that it waits."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from tests.fixtures.database import Database
from tests.fixtures.services import until
from tidewheel.postgres.session import Conn

T = TypeVar("T")


def in_background(work: Callable[[], T]) -> Future[T]:
    """Do something on a thread of its own; whatever it raises is raised by `result`."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it is the waiting test's to judge
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def until_blocked(database: Database, connection: Conn) -> None:
    """Wait until a connection's statement waits for somebody's lock."""
    pid = connection.info.backend_pid
    until(lambda: database.value("SELECT cardinality(pg_blocking_pids(%s)) > 0", [pid]), "it waits for a lock")
