"""`tidewheel.enqueue`, `enqueue_async`: trigger a run in the caller's PostgreSQL transaction.

The run commits or rolls back with the caller's data if both are in one database. No notification is sent: a pending one
would make the caller's COMMIT wait for an instance-wide lock. The relay finds the run at its next poll.
"""

import json
from base64 import b64encode
from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager, suppress
from datetime import datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, LiteralString, TypedDict, Unpack, cast, overload
from uuid import UUID

from psycopg import AsyncConnection, Connection

from tidewheel.errors import FieldError, Refused, StaleToken, TenantDeleted, Unavailable, UnknownJob, UnknownRun, refuse
from tidewheel.ids import RunId
from tidewheel.intake.apply import apply_requests
from tidewheel.intake.request import ReceivedRequest
from tidewheel.jobs.parsing import own_request
from tidewheel.jobs.payload import JSON_CONTENT
from tidewheel.jobs.requests import JobTrigger
from tidewheel.jobs.validation import ensure_text_names
from tidewheel.postgres.own_schema import qualified
from tidewheel.postgres.session import Conn
from tidewheel.postgres.session_kinds import (
    NoTenant,
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
from tidewheel.schemas.generated.records import Reply, ReplyStatus
from tidewheel.settings.connections import Connections
from tidewheel.transitions.installation import read_installation

if TYPE_CHECKING:
    from tidewheel.postgres.session_kinds import AsyncCaller, Caller

_ENQUEUE_BY_TOPIC = Statements("tidewheel.control")["enqueue_by_topic"]

_FIELDS = ("key", "tenant", "overlap", "request_id", "concurrency_key")  # of a trigger, as they are
_TRIES = 2  # the second reads the reply that a concurrent transaction stored


class TriggerOptions(TypedDict, total=False):
    """The options of a trigger, each overriding its job's own.

    Attributes:
        delay: The time to wait: a timedelta, seconds, or a text such as `5m`.
        run_at: The time of the run, instead of `delay`.
        concurrency_key: The key whose runs share places; the limit stays the job's, or one at once if it has none.
        ordering_key: The key whose runs start one after another. A failure blocks it, unless it is
            `{"key": ..., "on_failure": "skip"}`.
        priority: The rank, 0 to 9: 9 starts first.
        request_id: A repeated id returns the first answer.
    """

    delay: timedelta | float | str | None
    run_at: datetime | None
    labels: dict[str, str] | None
    overlap: str | None
    concurrency_key: str | None
    ordering_key: str | Mapping[str, str] | None
    priority: int | None
    request_id: str | None


class EnqueueOptions(TriggerOptions, total=False):
    """The options of `enqueue`."""

    tenant: str
    dedupe: Mapping[str, object] | None


@overload
def enqueue(
    connection: Connection[Any], key: str, payload: object = None, **options: Unpack[EnqueueOptions]
) -> RunId: ...
@overload
def enqueue(
    connection: "Caller", key: str, payload: object = None, **options: Unpack[EnqueueOptions]
) -> RunId | str: ...
def enqueue(
    connection: "Caller",
    key: str,
    payload: object = None,
    *,
    tenant: str = "default",
    dedupe: Mapping[str, object] | None = None,
    **options: Unpack[TriggerOptions],
) -> RunId | str:
    """Trigger a job inside the caller's transaction.

    Args:
        connection: A psycopg connection to Tidewheel's database, with any row factory, or an SQLAlchemy session or
            connection over any driver. The caller commits it or rolls it back; on autocommit it is committed at once.
        payload: Any JSON value, in place of the job's own; bytes are passed unchanged.
        dedupe: Such as `{"key": ..., "window": "10m"}`: triggers with this key share one run per window.

    Over psycopg, a trigger with an ordering key or a dedupe is refused, even with its job's own: your transaction
    would keep a row of the key locked. The SQL function `tidewheel_enqueue` takes both.

    Returns:
        The run's id; the run exists once the caller has committed. Over a driver other than psycopg it is the
        request_id: the request is published after the commit, and intake creates the run.

    Raises:
        Refused: There is no such job, or an argument is invalid; nothing was written.
        Unavailable: The database had no partition of this day, so the transaction has failed. The partition exists now:
            roll back, and do the work again.
    """
    document = trigger_document(key, payload, tenant=tenant, dedupe=dedupe, **options)
    received = ReceivedRequest(own_request(document), in_callers_transaction=True)
    given = psycopg_beneath(connection)
    if is_foreign(given):
        with _found(received):
            return _request_id(fetch_row(given, _by_topic(), _columns(received)))
    with use_connection(cast("Connection[object]", given), own_settings().database_schema) as own:
        reply = _apply(own, received)
    return _answered(reply)


@overload
async def enqueue_async(
    connection: AsyncConnection[Any], key: str, payload: object = None, **options: Unpack[EnqueueOptions]
) -> RunId: ...
@overload
async def enqueue_async(
    connection: "AsyncCaller", key: str, payload: object = None, **options: Unpack[EnqueueOptions]
) -> RunId | str: ...
async def enqueue_async(
    connection: "AsyncCaller",
    key: str,
    payload: object = None,
    *,
    tenant: str = "default",
    dedupe: Mapping[str, object] | None = None,
    **options: Unpack[TriggerOptions],
) -> RunId | str:
    """As `enqueue`, on an asynchronous connection: of psycopg, asyncpg, or SQLAlchemy."""
    document = trigger_document(key, payload, tenant=tenant, dedupe=dedupe, **options)
    received = ReceivedRequest(own_request(document), in_callers_transaction=True)
    given = await psycopg_beneath_async(connection)
    if is_foreign_async(given):
        with _found(received):
            return _request_id(await fetch_row_async(given, _by_topic(), _columns(received)))
    own = cast("AsyncConnection[object]", given)
    schema = own_settings().database_schema
    return _answered(await use_async_connection(own, schema, lambda connection: _apply(connection, received)))


def _apply(connection: Conn, received: ReceivedRequest) -> Reply:
    """Apply a request as a whole or not at all."""
    # Read before the blocks below, so that the caller's transaction has begun if there is to be one. A block
    # without an open transaction begins one of its own and commits it.
    installation = read_installation(connection, own_settings())
    with closing(installation.rates):
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
        refuse("payload", "this driver cannot send bytes", "give a JSON value, or use a psycopg connection")
    order, dedupe = request.ordering_key, request.dedupe
    return {
        **{name: getattr(request, name) for name in _FIELDS},
        "payload": None if payload is None else payload.content.decode(),
        "delay": _interval(request.delay),
        "run_at": None if request.run_at is None else request.run_at.isoformat(),
        "labels": None if request.labels is None else json.dumps(request.labels),
        "priority": None if request.priority is None else str(request.priority),
        "ordering_key": None if order is None else order.key,
        "on_failure": None if order is None else order.on_failure,
        "dedupe_key": None if dedupe is None else dedupe.key,
        "dedupe_window": None if dedupe is None else _interval(dedupe.window),
        "dedupe_mode": None if dedupe is None else dedupe.mode,
        "dedupe_longest": None if dedupe is None else _interval(dedupe.longest),
    }


def _interval(span: timedelta | None) -> str | None:
    return None if span is None else f"{span.total_seconds():.6f} seconds"


@contextmanager
def _found(received: ReceivedRequest) -> Generator[None]:
    """Raise UnknownJob where the SQL function finds no job, TenantDeleted where it finds a deleted tenant."""
    try:
        yield
    except NoTenant as error:
        raise TenantDeleted(received.tenant, None) from error
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
    dedupe: Mapping[str, object] | None = None,
    **options: Unpack[TriggerOptions],
) -> dict[str, object]:
    """Return the request that these arguments describe."""
    if unknown := options.keys() - TriggerOptions.__annotations__.keys():
        message = f"a trigger has no option {min(unknown)!r}"
        raise TypeError(message)
    delay, run_at = options.get("delay"), options.get("run_at")
    given: dict[str, object] = {
        **options,
        "delay": delay.total_seconds() if isinstance(delay, timedelta) else delay,
        "run_at": None if run_at is None else run_at.isoformat(),
        "dedupe": dedupe,
    }
    document = {name: value for name, value in given.items() if value is not None}
    document |= {"type": "job.trigger", "key": key, "tenant": tenant}
    if isinstance(payload, bytes):
        document["payload_base64"] = b64encode(payload).decode()
    elif payload is not None:
        ensure_text_names(payload, "payload")
        document["payload"] = payload
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


def _by_topic() -> LiteralString:
    return qualified(_ENQUEUE_BY_TOPIC, own_settings().database_schema)


@cache
def own_settings() -> Connections:
    """Return the settings of a process that calls Tidewheel in its own transactions."""
    return Connections.load()
