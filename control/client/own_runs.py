"""`tidewheel.cancel`, `tidewheel.status`: cancel and read a run in the caller's transaction.

A cancel is a row. It commits or rolls back with the caller's rows and locks no run. The scheduler applies it within
about a second of the commit.
"""

from typing import TYPE_CHECKING, cast
from uuid import UUID

import psycopg
from psycopg import AsyncConnection, Connection

from tidewheel.control.client.enqueue import own_settings
from tidewheel.errors import UnknownRun
from tidewheel.jobs.parsing import own_request
from tidewheel.nouns.runs.model import Run
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.own_schema import qualified
from tidewheel.postgres.session import Conn
from tidewheel.postgres.session_kinds import (
    Row,
    fetch_row,
    fetch_row_async,
    is_foreign,
    is_foreign_async,
    psycopg_beneath,
    psycopg_beneath_async,
    use_async_connection,
    use_connection,
)
from tidewheel.postgres.statements import Statements
from tidewheel.runs import RunState

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import LiteralString

    from tidewheel.postgres.session_kinds import AsyncCaller, Caller

_SQL = Statements("tidewheel.control")
_CANCEL, _STATUS = _SQL["cancel_in_transaction"], _SQL["status_in_transaction"]


def cancel(connection: "Caller", run_id: UUID, *, reason: str | None = None, tenant: str = "default") -> RunState:
    """Cancel a run inside the caller's transaction.

    The cancel takes effect within about a second of the commit. A run that an executor starts in between gets the
    signal to stop.

    Returns:
        The state in which the transaction sees the run. A terminal run does not change.
    """
    return _state(run_id, _row(connection, _CANCEL, _cancel_columns(run_id, reason, tenant)))


async def cancel_async(
    connection: "AsyncCaller", run_id: UUID, *, reason: str | None = None, tenant: str = "default"
) -> RunState:
    """As `cancel`, on an asynchronous connection."""
    return _state(run_id, await _row_async(connection, _CANCEL, _cancel_columns(run_id, reason, tenant)))


def status(connection: "Caller", run_id: UUID, *, tenant: str = "default") -> Run:
    """Return a run as the caller's transaction sees it."""
    return _run(run_id, _row(connection, _STATUS, {"run_id": str(run_id), "tenant": tenant}))


async def status_async(connection: "AsyncCaller", run_id: UUID, *, tenant: str = "default") -> Run:
    """As `status`, on an asynchronous connection."""
    return _run(run_id, await _row_async(connection, _STATUS, {"run_id": str(run_id), "tenant": tenant}))


def _cancel_columns(run_id: UUID, reason: str | None, tenant: str) -> dict[str, object]:
    document = {"type": "run.cancel", "run_id": str(run_id), "tenant": tenant}
    own_request(document if reason is None else document | {"reason": reason})  # refuses what does not fit
    return {"run_id": str(run_id), "tenant": tenant, "reason": reason}


def _row(connection: "Caller", statement: "LiteralString", columns: "Mapping[str, object]") -> Row | None:
    given, schema = psycopg_beneath(connection), own_settings().database_schema
    try:
        if is_foreign(given):
            return fetch_row(given, qualified(statement, schema), columns)
        with use_connection(cast("Connection[object]", given), schema) as own:
            return _fetch(own, statement, columns)
    except (LookupError, psycopg.errors.NoDataFound):
        return None


async def _row_async(
    connection: "AsyncCaller", statement: "LiteralString", columns: "Mapping[str, object]"
) -> Row | None:
    given, schema = await psycopg_beneath_async(connection), own_settings().database_schema
    try:
        if is_foreign_async(given):
            return await fetch_row_async(given, qualified(statement, schema), columns)
        over = cast("AsyncConnection[object]", given)
        return await use_async_connection(over, schema, lambda own: _fetch(own, statement, columns))
    except (LookupError, psycopg.errors.NoDataFound):
        return None


def _fetch(connection: Conn, statement: "LiteralString", columns: "Mapping[str, object]") -> Row | None:
    read_now(connection)  # begins the caller's transaction: the block below would commit one of its own
    with connection.transaction():
        return cast("Row | None", connection.execute(statement, columns, binary=True).fetchone())


def _state(run_id: UUID, row: Row | None) -> RunState:
    if row is None:
        raise UnknownRun(str(run_id))
    return RunState(str(row[0]))


def _run(run_id: UUID, row: Row | None) -> Run:
    if row is None:
        raise UnknownRun(str(run_id))
    return Run(run_id, *row)  # type: ignore[arg-type]  # in the order of the fields
