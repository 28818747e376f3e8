"""Changes for the audit log: a row for each request that changes or operates, accepted or refused.

Triggers, batches and unchanged requests are left out, and so are the reports of attempts: one
client in a loop would write more rows than all operators.
"""

from collections.abc import Iterable
from typing import cast

from tidewheel.audit import ACCEPTED, ALL_TENANTS, Actor, ActorKind, Change, Door, process_actor, record
from tidewheel.intake.request import ReceivedRequest
from tidewheel.jobs.requests import (
    BackfillCancel,
    BackfillPause,
    BackfillResume,
    BatchAdd,
    BatchClose,
    BatchSubmit,
    CalendarDelete,
    CalendarPut,
    Freeze,
    JobDelete,
    JobRollback,
    JobSubmit,
    JobTrigger,
    RunCancel,
    RunComplete,
    RunHeartbeat,
    RunRetry,
    RunsCancel,
    Thaw,
    WorkflowCancel,
    WorkflowPause,
    WorkflowResume,
)
from tidewheel.postgres.session import Conn
from tidewheel.schemas.generated.records import Reply, ReplyStatus
from tidewheel.transitions.after_end import is_pause_on_failure

_UNRECORDED = frozenset({JobTrigger, BatchSubmit, BatchAdd, RunComplete, RunHeartbeat})
_SYSTEM = Actor(Door.KAFKA, ActorKind.SYSTEM, "pause_on_failure")


def is_recorded(received: ReceivedRequest) -> bool:
    """Return True if the type of a request belongs into the audit log."""
    return type(received.request) not in _UNRECORDED


def record_requests(connection: Conn, actor: Actor | None, changes: Iterable[tuple[ReceivedRequest, Reply]]) -> None:
    """Record requests that were accepted and change rows, or were refused, in the caller's transaction.

    Args:
        actor: The origin of requests that did not come by Kafka; None for the user of this process.
    """
    record(connection, ((origin_of(received, actor), _change(received, reply)) for received, reply in changes))


def origin_of(received: ReceivedRequest, actor: Actor | None) -> Actor:
    """Return the origin of a request; `actor` if it did not come by Kafka."""
    if received.origin is None:
        return actor or process_actor()
    if is_pause_on_failure(received.request.request_id):
        return _SYSTEM
    request = received.request
    named = received.named or (request.by if isinstance(request, Freeze) else None)
    return Actor(Door.KAFKA, ActorKind.MESSAGE, received.requested_from or "", named)


def _change(received: ReceivedRequest, reply: Reply) -> Change:
    request = received.request
    is_accepted = reply.status is ReplyStatus.ACCEPTED
    before = after = reply.job_version if is_accepted else None
    if isinstance(request, JobSubmit | JobRollback) and after is not None:
        before = after - 1 or None
    elif isinstance(request, JobDelete):
        after = None
    of_fleet = isinstance(request, Freeze | Thaw) and request.scope == "fleet"
    return Change(
        ALL_TENANTS if of_fleet else received.tenant,
        request.type,
        _object(received, reply),
        request.request_id,
        before,
        after,
        result=ACCEPTED if is_accepted else reply.code or "rejected",
        reason=cast("str | None", getattr(request, "reason", None)),
    )


def _object(received: ReceivedRequest, reply: Reply) -> str:
    request = received.request
    match request:
        case RunCancel() | RunRetry() | WorkflowPause() | WorkflowResume() | WorkflowCancel():
            return f"{request.type.partition('.')[0]}/{request.run_id}"
        case RunsCancel():
            return "runs" if reply.cancellation_id is None else f"cancellation/{reply.cancellation_id}"
        case CalendarPut() | CalendarDelete():
            return f"calendar/{request.name}"
        case Freeze() | Thaw():
            return f"freeze/{_scope(request)}"
        case BackfillPause() | BackfillResume() | BackfillCancel() | BatchClose():
            kind = request.type.partition(".")[0]
            return f"{kind}/{getattr(request, f'{kind}_id')}"
        case _:
            return f"job/{received.key or ''}"


def _scope(request: Freeze | Thaw) -> str:
    parts: list[str] = [request.scope] if request.scope else []
    parts += [f"queue={request.queue}"] if request.queue else []
    parts += [f"label={name}={value}" for name, value in (request.labels or {}).items()]
    parts += [f"key_prefix={request.key_prefix}"] if request.key_prefix else []
    return ",".join(parts)
