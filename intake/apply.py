"""Apply requests: the one entry point for the topic, the clients and `tidewheel.enqueue`.

A batch is applied in the caller's transaction, in the order of its requests. Neighbours of one type are applied
together if they concern different jobs. Each request gets a reply. A repeated request_id gets the first reply again. A
request_id that is used for another request is rejected. The ids of reports by task token are names within their
attempt, so no report uses up the id of a client's request.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import NamedTuple, TypeAlias, cast
from uuid import UUID

import psycopg

from tidewheel.audit import Actor
from tidewheel.errors import RequestConflict, Unavailable, UnknownTenant
from tidewheel.intake.audit import is_recorded, record_requests
from tidewheel.intake.backfills import apply_backfill_changes, apply_backfills
from tidewheel.intake.calendars import apply_calendar_deletes, apply_calendar_puts
from tidewheel.intake.cancel import apply_cancel_filters, apply_cancels, block_claims
from tidewheel.intake.freezes import apply_freezes, apply_thaws
from tidewheel.intake.graphs import Graphs, lock_graphs
from tidewheel.intake.lifecycle import apply_deletes, apply_pauses, apply_resumes
from tidewheel.intake.overrides import apply_overrides
from tidewheel.intake.request import ReceivedRequest, rejected
from tidewheel.intake.retry import apply_retries
from tidewheel.intake.rollback import apply_rollbacks
from tidewheel.intake.run_batches import apply_batch_adds, apply_batch_closes, apply_batch_submits
from tidewheel.intake.submit import apply_submits
from tidewheel.intake.task_tokens import apply_completes, apply_heartbeats
from tidewheel.intake.tenant_limits import exceeded
from tidewheel.intake.trigger import apply_triggers
from tidewheel.intake.workflows import apply_workflow_changes
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
    JobBackfill,
    JobDelete,
    JobMove,
    JobPause,
    JobResume,
    JobRollback,
    JobSkip,
    JobSubmit,
    JobTrigger,
    JobUnskip,
    Request,
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
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.pg_binary import bytea, columns, copy_rows, instant, text, texts
from tidewheel.postgres.session import Conn, at_commit
from tidewheel.postgres.statements import Statements
from tidewheel.process.metrics import metrics
from tidewheel.schemas.codec import decode, encode
from tidewheel.schemas.generated.records import Reply, ReplyStatus, RequestType
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.key_limits import edited_keys
from tidewheel.transitions.places import FreedPlace
from tidewheel.transitions.run_keys import settle_keys

_SQL = Statements("tidewheel.intake")
_FIND_REPLIES = _SQL["find_replies"]

_COPY_REPLIES = "COPY requests (tenant, request_id, body_hash, reply, created_at) FROM STDIN (FORMAT BINARY)"
_REPLY = columns(5)

# Requests of which one batch may hold several about one job, or about none: all neighbours are one batch.
_ANY_JOBS = frozenset(
    {
        JobTrigger,
        RunCancel,
        RunComplete,
        RunHeartbeat,
        RunRetry,
        RunsCancel,
        Freeze,
        Thaw,
        WorkflowPause,
        WorkflowResume,
        WorkflowCancel,
        BatchSubmit,
        BatchAdd,
        BatchClose,
    }
)

# Requests that block all claims until their commit: each in a transaction of its own, if it comes by Kafka.
BLOCKS_CLAIMS = (RunsCancel, Freeze, WorkflowCancel)

_SEPARATOR = "\x1f"  # between the attempt and the request_id of a report

Apply: TypeAlias = Callable[..., list[Reply]]  # of a connection, an installation and some requests

_APPLY: dict[type, Apply] = {
    JobSubmit: apply_submits,
    JobTrigger: apply_triggers,
    JobPause: apply_pauses,
    JobResume: apply_resumes,
    JobDelete: apply_deletes,
    JobRollback: apply_rollbacks,
    JobSkip: apply_overrides,
    JobMove: apply_overrides,
    JobUnskip: apply_overrides,
    JobBackfill: apply_backfills,
    BackfillPause: apply_backfill_changes,
    BackfillResume: apply_backfill_changes,
    BackfillCancel: apply_backfill_changes,
    CalendarPut: apply_calendar_puts,
    CalendarDelete: apply_calendar_deletes,
    RunCancel: apply_cancels,
    RunComplete: apply_completes,
    RunHeartbeat: apply_heartbeats,
    RunRetry: apply_retries,
    RunsCancel: apply_cancel_filters,
    Freeze: apply_freezes,
    Thaw: apply_thaws,
    WorkflowPause: apply_workflow_changes,
    WorkflowResume: apply_workflow_changes,
    WorkflowCancel: apply_workflow_changes,
    BatchSubmit: apply_batch_submits,
    BatchAdd: apply_batch_adds,
    BatchClose: apply_batch_closes,
}


_Name: TypeAlias = tuple[str, str]  # tenant, and request_id or its form by token


class _Named(NamedTuple):
    """A request with the reply to store, and their name."""

    name: _Name
    received: ReceivedRequest
    reply: Reply


def apply_requests(
    connection: Conn,
    installation: Installation,
    batch: Sequence[ReceivedRequest],
    *,
    written: set[RequestType] | None = None,
    actor: Actor | None = None,
    freed_keys: list[FreedPlace] | None = None,
    woken_keys: set[int] | None = None,
) -> list[Reply]:
    """Apply requests in the caller's transaction.

    Args:
        batch: The requests, in the order to apply them.
        written: Gets the types of the requests that are accepted and change rows.
        actor: The origin of those that did not come by Kafka; by default the user of this process.
        freed_keys: As for `finish_runs`; without it all places of keys are given back here, by the last statements.
        woken_keys: Gets the keys whose limit an edit has changed, likewise.

    Returns:
        A reply for each, in their order.

    Raises:
        Unavailable: Another transaction stored a reply for the same request_id, or holds a row that a request needs
            (RowLocked): roll back and try again.
        CancelNeedsClaims: A cancel among other requests met a locked run: roll back and apply it alone.
        psycopg.Error: A request's data does not fit the database: roll back and apply the requests one by one.
    """
    if len(batch) > 1 and any(isinstance(received.request, BLOCKS_CLAIMS) for received in batch):
        # Only direct callers send such a batch; a Kafka batch is split, since no claim can start until the commit.
        # Before any other lock: claims wait for a job's active run, so its holder must not wait for claims (ADR 0008).
        block_claims(connection, batch)
    freed = [] if freed_keys is None else freed_keys
    bound = _bound(batch, actor, lock_graphs(connection, batch), freed)
    refused = exceeded(connection, batch)
    replies = [rejected(one, refused[index]) if index in refused else None for index, one in enumerate(batch)]
    names = [_name(received, installation) for received in batch]
    stored = _find_replies(connection, names)
    new: list[int] = []
    repeats: list[tuple[int, int]] = []
    first: dict[_Name, int] = {}
    for index, (received, name) in enumerate(zip(batch, names, strict=True)):
        if isinstance(refused.get(index), UnknownTenant):
            continue
        if name in stored:
            replies[index] = _first_reply(received, *stored[name])
        elif name is not None and name in first:
            repeats.append((index, first[name]))
        else:
            if name is not None:
                first[name] = index
            new.append(index)
    for indexes in _batches(batch, [index for index in new if replies[index] is None]):
        chosen = [batch[index] for index in indexes]
        apply = _APPLY[type(chosen[0].request)]
        for index, reply in zip(indexes, bound.get(apply, apply)(connection, installation, chosen), strict=True):
            replies[index] = reply
    for index, original in repeats:
        earlier = replies[original]
        assert earlier is not None  # noqa: S101 - set above
        replies[index] = _first_reply(batch[index], batch[original].body_hash(), earlier)
    complete = _complete(replies)
    at_commit(connection, partial(_count, complete))
    if written is not None:
        written.update(complete[index].type for index in new if _has_written(batch[index].request, complete[index]))
    recorded = ((batch[index], complete[index]) for index in new if is_recorded(batch[index]))
    record_requests(connection, actor, ((one, reply) for one, reply in recorded if _is_news(one.request, reply)))
    _store(connection, [_Named(name, batch[index], complete[index]) for index in new if (name := names[index])])
    woken = set[int]() if woken_keys is None else woken_keys
    woken |= _limits_edited(connection, ((batch[index].request, complete[index]) for index in new))
    if freed_keys is None:
        # With a key locked no statement waits.
        settle_keys(connection, installation, freed=freed, woken=woken)
    return complete


def _bound(
    batch: Sequence[ReceivedRequest], actor: Actor | None, graphs: Graphs, freed_keys: list[FreedPlace]
) -> dict[Apply, Apply]:
    """Return the functions that need more than their own requests, with that."""
    # A direct caller's batch is not applied again: it may meet a claim, and PostgreSQL resolves the deadlock.
    alone = len(batch) == 1 or all(received.origin is None for received in batch)
    return {
        apply_submits: partial(apply_submits, graphs=graphs),
        apply_rollbacks: partial(apply_rollbacks, graphs=graphs),
        apply_deletes: partial(apply_deletes, graphs=graphs, freed_keys=freed_keys),
        apply_pauses: partial(apply_pauses, actor=actor),
        apply_freezes: partial(apply_freezes, actor=actor),
        apply_thaws: partial(apply_thaws, actor=actor),
        apply_backfill_changes: partial(apply_backfill_changes, freed_keys=freed_keys),
        apply_cancels: partial(apply_cancels, may_block_claims=alone, freed_keys=freed_keys),
        apply_completes: partial(apply_completes, freed_keys=freed_keys),
        apply_workflow_changes: partial(apply_workflow_changes, together=batch),
        apply_batch_adds: partial(apply_batch_adds, together=batch),
        apply_batch_closes: partial(apply_batch_closes, together=batch),
    }


def first_reply(connection: Conn, tenant: str, request_id: str, content: bytes) -> Reply | None:
    """Return the stored reply to a request; None if it is new.

    Args:
        content: The hash of its content.

    Raises:
        RequestConflict: The id was used for another request.
    """
    stored = _find_replies(connection, [(tenant, request_id)]).get((tenant, request_id))
    if stored is not None and stored[0] != content:
        raise RequestConflict(request_id)
    return stored and stored[1]


def has_reply(connection: Conn, tenant: str, request_id: str) -> bool:
    """Return True if a request of this id has its reply: it is a repeat."""
    return bool(_find_replies(connection, [(tenant, request_id)]))


def store_reply(connection: Conn, installation: Installation, received: ReceivedRequest, reply: Reply) -> None:
    """Store the reply that a request has got from a database that was lost; a stored reply stays."""
    name = _name(received, installation)
    if name is not None and not _find_replies(connection, [name]):
        _store(connection, [_Named(name, received, reply)])


def _batches(batch: Sequence[ReceivedRequest], indexes: Sequence[int]) -> Iterator[list[int]]:
    """Group neighbours that can be applied together: of one type and, for most types, of different jobs."""
    for kind, neighbours in groupby(indexes, key=lambda index: type(batch[index].request)):
        together: list[int] = []
        jobs: set[tuple[str, str | None]] = set()
        for index in neighbours:
            job = (batch[index].tenant, batch[index].key)
            if kind not in _ANY_JOBS and job in jobs:
                yield together
                together, jobs = [], set()
            together.append(index)
            jobs.add(job)
        if together:
            yield together


def _is_news(request: Request, reply: Reply) -> bool:
    return reply.status is not ReplyStatus.ACCEPTED or _has_written(request, reply)


def _limits_edited(connection: Conn, applied: Iterable[tuple[Request, Reply]]) -> set[int]:
    """Return keys for which runs wait and whose limit an edit has changed."""
    found = (_edited_keyed_job(request, reply) for request, reply in applied)
    return edited_keys(connection, sorted({one for one in found if one is not None}))


def _edited_keyed_job(request: Request, reply: Reply) -> tuple[UUID, int] | None:
    """Return the job whose new version may have another limit for its key, with that version."""
    keyed = isinstance(request, JobRollback) or (
        isinstance(request, JobSubmit) and request.job.concurrency_key is not None and reply.job_version != 1
    )
    if not keyed or reply.job_id is None or reply.job_version is None or not _has_written(request, reply):
        return None
    return UUID(reply.job_id), reply.job_version


def _has_written(request: Request, reply: Reply) -> bool:
    if reply.status is not ReplyStatus.ACCEPTED or reply.unchanged:
        return False
    return not (isinstance(request, JobBackfill) and request.dry_run)


def _name(received: ReceivedRequest, installation: Installation) -> _Name | None:
    """Return the name under which a request's reply is stored; None if it is not stored.

    A report's name begins with the attempt of its token. The separator is a control character, which no request_id
    contains. A report with a forged token has no name: the refusal of any caller would be kept for days.
    """
    request = received.request
    if request.request_id is None:
        return None
    if not isinstance(request, RunComplete | RunHeartbeat):
        return received.tenant, request.request_id
    named = installation.task_tokens.read(request.token)
    return named and (received.tenant, f"{named[0]}/{named[1]}{_SEPARATOR}{request.request_id}")


def _find_replies(connection: Conn, names: Sequence[_Name | None]) -> dict[_Name | None, tuple[bytes, Reply]]:
    """Return the stored replies of these names, each with the hash of its request."""
    wanted = [name for name in names if name is not None]
    if not wanted:
        return {}
    params = {
        "tenants": texts([tenant for tenant, _ in wanted]),
        "request_ids": texts([request_id for _, request_id in wanted]),
    }
    found = connection.execute(_FIND_REPLIES, params, binary=True).fetchall()
    rows = cast("list[tuple[str, str, bytes, bytes]]", found)
    return {(tenant, name): (body_hash, decode(reply, Reply)) for tenant, name, body_hash, reply in rows}


def _first_reply(received: ReceivedRequest, body_hash: bytes, first: Reply) -> Reply:
    if body_hash not in (received.body_hash(), received.model_body_hash()):
        return rejected(received, RequestConflict(received.request.request_id or ""))
    return first


def _store(connection: Conn, named: list[_Named]) -> None:
    if not named:
        return
    # In one order, since another transaction that stores one of them waits for this one.
    named.sort(key=lambda each: each.name)
    created_at = instant(read_now(connection))
    rows = (_reply_columns(each) + created_at for each in named)
    try:
        copy_rows(connection, _COPY_REPLIES, rows)
    except psycopg.errors.UniqueViolation as error:
        message = "another transaction replied to a request of this batch at the same time"
        raise Unavailable(message) from error


def _reply_columns(named: _Named) -> bytes:
    tenant, request_id = named.name
    body_hash, reply = bytea(named.received.body_hash()), bytea(encode(named.reply))
    return b"".join((_REPLY, text(tenant), text(request_id), body_hash, reply))


def _complete(replies: Sequence[Reply | None]) -> list[Reply]:
    complete = [reply for reply in replies if reply is not None]
    assert len(complete) == len(replies)  # noqa: S101 - each request has a reply
    return complete


def _count(replies: Sequence[Reply]) -> None:
    for (kind, status), number in Counter((reply.type, reply.status) for reply in replies).items():
        metrics.count("requests", number, kind, status)
