"""`tidewheel.enqueue`, `enqueue_async`: trigger a run in the caller's PostgreSQL transaction.

The run commits or rolls back with the caller's data if both are in one database. No notification is sent: a pending one
would make the caller's COMMIT wait for an instance-wide lock. The relay finds the run at its next poll.
"""

import json
from base64 import b64encode
from collections.abc import Generator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, cast, overload
from uuid import UUID

from psycopg import AsyncConnection, Connection

from tidewheel.control.client.callers import (
    Row,
    fetch_row,
    fetch_row_async,
    is_foreign,
    is_foreign_async,
    psycopg_beneath,
    psycopg_beneath_async,
)
from tidewheel.errors import FieldError, InvalidInput, Refused, StaleToken, Unavailable, UnknownJob, UnknownRun
from tidewheel.ids import RunId
from tidewheel.intake.apply import apply_requests
from tidewheel.intake.request import ReceivedRequest
from tidewheel.jobs.parsing import parse_request
from tidewheel.jobs.payload import JSON_CONTENT
from tidewheel.jobs.requests import JobTrigger
from tidewheel.postgres.caller_connection import use_async_connection, use_connection
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.schemas.generated.records import Reply, ReplyStatus
from tidewheel.settings.connections import Connections
from tidewheel.transitions.installation import Installation, read_installation

if TYPE_CHECKING:
    from tidewheel.control.client.callers import AsyncCaller, Caller

_ENQUEUE_BY_TOPIC = Statements("tidewheel.control")["enqueue_by_topic"]

_TRIES = 2  # the second reads the reply that a concurrent transaction stored


@overload
def enqueue(
    connection: Connection[Any],
    key: str,
    payload: object = None,
    *,
    tenant: str = "default",
    delay: timedelta | float | str | None = None,
    run_at: datetime | None = None,
    labels: dict[str, str] | None = None,
    concurrency_key: str | None = None,
    priority: int | None = None,
    request_id: str | None = None,
) -> RunId: ...
@overload
def enqueue(
    connection: "Caller",
    key: str,
    payload: object = None,
    *,
    tenant: str = "default",
    delay: timedelta | float | str | None = None,
    run_at: datetime | None = None,
    labels: dict[str, str] | None = None,
    concurrency_key: str | None = None,
    priority: int | None = None,
    request_id: str | None = None,
) -> RunId | str: ...
def enqueue(
    connection: "Caller",
    key: str,
    payload: object = None,
    *,
    tenant: str = "default",
    delay: timedelta | float | str | None = None,
    run_at: datetime | None = None,
    labels: dict[str, str] | None = None,
    concurrency_key: str | None = None,
    priority: int | None = None,
    request_id: str | None = None,
) -> RunId | str:
    """Trigger a job inside the caller's transaction.

    Args:
        connection: A psycopg connection to Tidewheel's database, with any row factory, or an SQLAlchemy session or
            connection over any driver. The caller commits it or rolls it back; on autocommit it is committed at once.
        key: The job's key.
        payload: Any JSON value, in place of the job's own; bytes are passed unchanged.
        tenant: The job's tenant.
        delay: How long to wait: a timedelta, seconds, or a text such as `5m`.
        run_at: When to run, instead of `delay`.
        labels: In place of the job's own.
        concurrency_key: In place of the job's own; the limit stays the job's, or one at once if it has none.
        priority: In place of the job's own, 0 to 9: 9 goes first.
        request_id: The same id again returns the same run.

    Returns:
        The run's id; the run exists once the caller has committed. Over a driver other than psycopg it is the
        request_id: the request is published after the commit, and intake creates the run.

    Raises:
        Refused: There is no such job, or an argument does not fit; nothing was written.
        Unavailable: The database had no partition of this day, so the transaction has failed. The partition exists now:
            roll back, and do the work again.
    """
    document = trigger_document(
        key,
        payload,
        tenant=tenant,
        delay=delay,
        run_at=run_at,
        labels=labels,
        concurrency_key=concurrency_key,
        priority=priority,
        request_id=request_id,
    )
    received = ReceivedRequest(parse_request(document))
    given = psycopg_beneath(connection)
    if is_foreign(given):
        with _unknown_job(received):
            return _request_id(fetch_row(given, _ENQUEUE_BY_TOPIC, _columns(received)))
    with use_connection(cast("Connection[object]", given)) as own:
        reply = _apply(own, received)
    return _answered(reply)


@overload
async def enqueue_async(
    connection: AsyncConnection[Any],
    key: str,
    payload: object = None,
    *,
    tenant: str = "default",
    delay: timedelta | float | str | None = None,
    run_at: datetime | None = None,
    labels: dict[str, str] | None = None,
    concurrency_key: str | None = None,
    priority: int | None = None,
    request_id: str | None = None,
) -> RunId: ...
@overload
async def enqueue_async(
    connection: "AsyncCaller",
    key: str,
    payload: object = None,
    *,
    tenant: str = "default",
    delay: timedelta | float | str | None = None,
    run_at: datetime | None = None,
    labels: dict[str, str] | None = None,
    concurrency_key: str | None = None,
    priority: int | None = None,
    request_id: str | None = None,
) -> RunId | str: ...
async def enqueue_async(
    connection: "AsyncCaller",
    key: str,
    payload: object = None,
    *,
    tenant: str = "default",
    delay: timedelta | float | str | None = None,
    run_at: datetime | None = None,
    labels: dict[str, str] | None = None,
    concurrency_key: str | None = None,
    priority: int | None = None,
    request_id: str | None = None,
) -> RunId | str:
    """As `enqueue`, on an asynchronous connection: of psycopg, asyncpg, or SQLAlchemy."""
    document = trigger_document(
        key,
        payload,
        tenant=tenant,
        delay=delay,
        run_at=run_at,
        labels=labels,
        concurrency_key=concurrency_key,
        priority=priority,
        request_id=request_id,
    )
    received = ReceivedRequest(parse_request(document))
    given = await psycopg_beneath_async(connection)
    if is_foreign_async(given):
        with _unknown_job(received):
            return _request_id(await fetch_row_async(given, _ENQUEUE_BY_TOPIC, _columns(received)))
    own = cast("AsyncConnection[object]", given)
    return _answered(await use_async_connection(own, lambda connection: _apply(connection, received)))


def _apply(connection: Conn, received: ReceivedRequest) -> Reply:
    """Apply a request as a whole or not at all."""
    # Read before the blocks below, so that the caller's transaction has begun if there is to be one. A block
    # without an open transaction begins one of its own and commits it.
    installation = _installation(connection)
    for _ in range(_TRIES - 1):
        with suppress(Unavailable), connection.transaction():
            return apply_requests(connection, installation, [received])[0]
    with connection.transaction():
        return apply_requests(connection, installation, [received])[0]


def _answered(reply: Reply) -> RunId:
    raise_if_rejected(reply)
    return RunId(UUID(reply.run_id))


def _columns(received: ReceivedRequest) -> dict[str, object]:
    """Return the arguments of `tidewheel_enqueue`, as texts."""
    request = received.request
    assert isinstance(request, JobTrigger)  # noqa: S101 - by `trigger_document`
    payload = request.carried
    if payload is not None and payload.content_type != JSON_CONTENT:
        remedy = "give a JSON value, or use a psycopg connection"
        raise InvalidInput([FieldError("payload", "this driver's requests carry no bytes", remedy)])
    return {
        "key": request.key,
        "payload": None if payload is None else payload.content.decode(),
        "tenant": request.tenant,
        "delay": None if request.delay is None else f"{request.delay.total_seconds():.6f} seconds",
        "run_at": None if request.run_at is None else request.run_at.isoformat(),
        "labels": None if request.labels is None else json.dumps(request.labels),
        "request_id": request.request_id,
        "concurrency_key": request.concurrency_key,
        "priority": None if request.priority is None else str(request.priority),
    }


@contextmanager
def _unknown_job(received: ReceivedRequest) -> Generator[None]:
    """Raise UnknownJob where the SQL function finds no job."""
    try:
        yield
    except LookupError as error:
        raise UnknownJob(received.tenant, received.key or "") from error


def _request_id(row: Row | None) -> str:
    assert row is not None  # noqa: S101 - a SELECT without FROM
    return str(row[0])


def trigger_document(
    key: str,
    payload: object,
    *,
    tenant: str,
    delay: timedelta | float | str | None,
    run_at: datetime | None,
    labels: dict[str, str] | None,
    request_id: str | None,
    concurrency_key: str | None = None,
    priority: int | None = None,
) -> dict[str, object]:
    """Return the request that these arguments describe."""
    document: dict[str, object] = {"type": "job.trigger", "key": key, "tenant": tenant}
    if isinstance(payload, bytes):
        document["payload_base64"] = b64encode(payload).decode()
    elif payload is not None:
        document["payload"] = payload
    if delay is not None:
        document["delay"] = delay.total_seconds() if isinstance(delay, timedelta) else delay
    if run_at is not None:
        document["run_at"] = run_at.isoformat()
    if labels is not None:
        document["labels"] = labels
    if concurrency_key is not None:
        document["concurrency_key"] = concurrency_key
    if priority is not None:
        document["priority"] = priority
    if request_id is not None:
        document["request_id"] = request_id
    return document


def raise_if_rejected(reply: Reply) -> None:
    """Raise the error of a rejected request."""
    if reply.status is not ReplyStatus.ACCEPTED:
        if reply.code == UnknownJob.code:
            raise UnknownJob(reply.tenant, reply.key or "")
        if reply.code == UnknownRun.code:
            raise UnknownRun(reply.run_id or "")
        if reply.code == StaleToken.code:
            raise StaleToken(reply.run_id or "", reply.run_status)
        refused = Refused([FieldError(error.path, error.problem, error.remedy) for error in reply.errors])
        refused.code = reply.code or refused.code
        raise refused


@cache
def _settings() -> Connections:
    return Connections.load()


def _installation(connection: Conn) -> Installation:
    return read_installation(connection, _settings())
