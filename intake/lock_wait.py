"""Rows that somebody holds: they are waited for a moment, and never longer.

A user's own transaction holds the row of a run that it completes, and the keys of jobs that it triggers, for as long as
the user likes. Nobody's request may stand behind that: whoever wants such a row takes it where it is free, waits a
moment where it is not, as for a claim or an end under way, and then does without it.
"""

from collections.abc import Iterable
from typing import LiteralString, cast
from uuid import UUID

import psycopg

from tidewheel.errors import Unavailable
from tidewheel.intake.request import Incoming
from tidewheel.postgres.pg_arrays import uuids
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.schemas.generated.records import RequestOrigin

_SQL = Statements("tidewheel.intake")
_READ_PATIENCE = _SQL["read_patience"]
_SET_PATIENCE = _SQL["set_patience"]
_READ_OPEN = _SQL["read_open"]
_WAIT_FOR_RUNS = _SQL["wait_for_runs"]

_MOMENT = "200ms"  # below deadlock_timeout: rows that are waited for out of their order abort nobody


class Busy(Unavailable):
    """Somebody has in hand what a request needs, and for longer than a moment; nothing was written.

    Args:
        what: Which run or job.
        about: The requests that need it.
    """

    def __init__(self, what: str, about: Iterable[Incoming]) -> None:
        super().__init__(f"{what} is in the hands of a transaction that has not ended: send the request again")
        self.origins: tuple[RequestOrigin, ...] = tuple(each.origin for each in about if each.origin is not None)


def wait_a_moment(connection: Conn, statement: LiteralString, columns: dict[str, object]) -> bool:
    """Run a locking statement that waits no longer than a moment; returns whether its rows are locked now."""
    row = connection.execute(_READ_PATIENCE).fetchone()
    usual = cast("tuple[str]", row)[0]
    try:
        with connection.transaction():
            connection.execute(_SET_PATIENCE, {"patience": _MOMENT})
            connection.execute(statement, columns)
            connection.execute(_SET_PATIENCE, {"patience": usual})
    except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
        return False
    return True


def wait_for_runs(connection: Conn, run_ids: Iterable[UUID]) -> bool:
    """Wait a moment for open runs; returns whether those that are open still are locked now."""
    return wait_a_moment(connection, _WAIT_FOR_RUNS, {"run_ids": uuids(run_ids)})


def still_open(connection: Conn, run_ids: Iterable[UUID]) -> dict[UUID, str]:
    """Which of these runs are open, and their states as last committed."""
    wanted = list(run_ids)
    if not wanted:
        return {}
    rows = connection.execute(_READ_OPEN, {"run_ids": uuids(wanted)}, binary=True).fetchall()
    return dict(cast("list[tuple[UUID, str]]", rows))
