"""Lock rows that a user's transaction may hold: wait for 200 ms at most.

A user's own transaction holds the row of a run that it completes, and the keys of the jobs that it triggers. It can do
so for hours, and no other request may wait for it. A request takes such a row if it is free. Otherwise it waits for
200 ms, long enough for a claim or an end under way, and then goes on without the row.
"""

from collections.abc import Iterable
from typing import LiteralString, cast
from uuid import UUID

import psycopg

from tidewheel.errors import Unavailable
from tidewheel.intake.request import ReceivedRequest
from tidewheel.postgres.pg_binary import uuids
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.schemas.generated.records import RequestOrigin

_SQL = Statements("tidewheel.intake")
_READ_LOCK_TIMEOUT = _SQL["read_lock_timeout"]
_SET_LOCK_TIMEOUT = _SQL["set_lock_timeout"]
_READ_OPEN_STATES = _SQL["read_open_states"]
_WAIT_FOR_RUNS = _SQL["wait_for_runs"]

_LOCK_TIMEOUT = "200ms"  # below deadlock_timeout (1 s): a wait out of lock order aborts no other transaction


class RowLocked(Unavailable):
    """Another transaction has held a row that a request needs for longer than 200 ms; nothing was written."""

    def __init__(self, what: str, requests: Iterable[ReceivedRequest]) -> None:
        super().__init__(f"{what} is locked by a transaction that has not ended: send the request again")
        self.origins: tuple[RequestOrigin, ...] = tuple(each.origin for each in requests if each.origin is not None)


class CancelNeedsClaims(Exception):
    """A cancel of a locked run must block claims until its commit; nothing was written.

    Args:
        received: The request. It has to be the only one of its transaction: claims wait for rows of the others.
    """

    def __init__(self, received: ReceivedRequest) -> None:
        super().__init__("a cancel of a locked run is applied alone")
        self.origin = received.origin


def try_lock(connection: Conn, statement: LiteralString, columns: dict[str, object]) -> bool:
    """Run a locking statement that waits for 200 ms at most; return True if its rows are locked now."""
    row = connection.execute(_READ_LOCK_TIMEOUT).fetchone()
    previous = cast("tuple[str]", row)[0]
    try:
        with connection.transaction():
            connection.execute(_SET_LOCK_TIMEOUT, {"lock_timeout": _LOCK_TIMEOUT})
            connection.execute(statement, columns)
            connection.execute(_SET_LOCK_TIMEOUT, {"lock_timeout": previous})
    except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
        return False
    return True


def try_lock_runs(connection: Conn, run_ids: Iterable[UUID]) -> bool:
    """Wait for 200 ms at most for open runs; return True if those that are still open are locked now."""
    return try_lock(connection, _WAIT_FOR_RUNS, {"run_ids": uuids(run_ids)})


def still_open(connection: Conn, run_ids: Iterable[UUID]) -> dict[UUID, str]:
    """Return the last committed states of those runs that are open."""
    ids = list(run_ids)
    if not ids:
        return {}
    rows = connection.execute(_READ_OPEN_STATES, {"run_ids": uuids(ids)}, binary=True).fetchall()
    return dict(cast("list[tuple[UUID, str]]", rows))
