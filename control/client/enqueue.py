"""`tidewheel.enqueue`, `enqueue_async`: trigger a run in the caller's PostgreSQL transaction.

The run commits or rolls back with the caller's data if both are in one database. No notification is sent: a pending one
would make the caller's COMMIT wait for an instance-wide lock. The relay finds the run at its next poll.
"""

from base64 import b64encode
from contextlib import suppress
from datetime import datetime, timedelta
from functools import cache
from uuid import UUID

from psycopg import AsyncConnection, Connection

from tidewheel.errors import FieldError, Refused, StaleToken, Unavailable, UnknownJob, UnknownRun
from tidewheel.ids import RunId
from tidewheel.intake.apply import apply_requests
from tidewheel.intake.request import ReceivedRequest
from tidewheel.jobs.parsing import parse_request
from tidewheel.postgres.caller_connection import use_async_connection, use_connection
from tidewheel.postgres.session import Conn
from tidewheel.schemas.generated.records import Reply, ReplyStatus
from tidewheel.settings.connections import Connections
from tidewheel.transitions.installation import Installation, read_installation

_TRIES = 2  # the second reads the reply that a concurrent transaction stored


def enqueue(
    connection: Connection[object],
    key: str,
    payload: object = None,
    *,
    tenant: str = "default",
    delay: timedelta | float | None = None,
    run_at: datetime | None = None,
    labels: dict[str, str] | None = None,
    request_id: str | None = None,
) -> RunId:
    """Trigger a job inside the caller's transaction.

    Args:
        connection: A psycopg connection to Tidewheel's database, with any row factory; committed or rolled back by
            the caller, or on autocommit at once.
        key: The job's key.
        payload: Any JSON value, in place of the job's own; bytes are passed unchanged.
        tenant: The job's tenant.
        delay: How long to wait, as a timedelta or in seconds.
        run_at: When to run, instead of `delay`.
        labels: In place of the job's own.
        request_id: The same id again returns the same run.

    Returns:
        The run's id; the run exists once the caller has committed.

    Raises:
        Refused: There is no such job, or an argument does not fit; nothing was written.
        Unavailable: The database had no partition of this day, so the transaction has failed. The partition exists now:
            roll back, and do the work again.
    """
    document = trigger_document(
        key, payload, tenant=tenant, delay=delay, run_at=run_at, labels=labels, request_id=request_id
    )
    received = ReceivedRequest(parse_request(document))
    with use_connection(connection) as own:
        reply = _apply(own, received)
    return _answered(reply)


async def enqueue_async(
    connection: AsyncConnection[object],
    key: str,
    payload: object = None,
    *,
    tenant: str = "default",
    delay: timedelta | float | None = None,
    run_at: datetime | None = None,
    labels: dict[str, str] | None = None,
    request_id: str | None = None,
) -> RunId:
    """As `enqueue`, on an asynchronous connection."""
    document = trigger_document(
        key, payload, tenant=tenant, delay=delay, run_at=run_at, labels=labels, request_id=request_id
    )
    received = ReceivedRequest(parse_request(document))
    return _answered(await use_async_connection(connection, lambda own: _apply(own, received)))


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


def trigger_document(
    key: str,
    payload: object,
    *,
    tenant: str,
    delay: timedelta | float | None,
    run_at: datetime | None,
    labels: dict[str, str] | None,
    request_id: str | None,
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
