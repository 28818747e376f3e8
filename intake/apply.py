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
from tidewheel.intake.backfills import apply_backfills, change_backfill
from tidewheel.intake.calendars import apply_calendar_puts, delete_calendar
from tidewheel.intake.graphs import lock_graphs
from tidewheel.intake.group_requests import (
    apply_batch_adds,
    apply_batch_closes,
    apply_batch_submits,
    apply_workflow_changes,
    freeze,
    thaw,
)
from tidewheel.intake.lifecycle import apply_deletes, apply_pauses, apply_resumes, apply_rollbacks
from tidewheel.intake.new_jobs import exceeded, zoned
from tidewheel.intake.overrides import apply_overrides
from tidewheel.intake.request import ReceivedRequest, rejected
from tidewheel.intake.rescheduling import apply_reschedules
from tidewheel.intake.runs import apply_cancels, apply_retries, block_claims, cancel_by_filter
from tidewheel.intake.submit import apply_submits
from tidewheel.intake.task_tokens import apply_completes, apply_heartbeats
from tidewheel.intake.trigger import apply_triggers
from tidewheel.intake.writing import Writing, record_requests, singly
from tidewheel.jobs import requests
from tidewheel.jobs.requests import JobBackfill, JobRollback, JobSubmit, Request, RunComplete, RunHeartbeat
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.pg_binary import bytea, columns, copy_rows, instant, text, texts
from tidewheel.postgres.session import Conn, at_commit
from tidewheel.postgres.statements import Statements
from tidewheel.process.metrics import metrics
from tidewheel.schemas.codec import decode, encode
from tidewheel.schemas.generated.records import Reply, ReplyStatus
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.key_limits import edited_keys

_FIND_REPLIES = Statements("tidewheel.intake")["find_replies"]

_COPY_REPLIES = "COPY requests (tenant, request_id, body_hash, reply, created_at) FROM STDIN (FORMAT BINARY)"
_REPLY = columns(5)

_SEPARATOR = "\x1f"  # between the attempt and the request_id of a report


class Kind(NamedTuple):
    """A type of requests; `apply` returns a reply for each, in their order."""

    apply: Callable[[Writing, Sequence[ReceivedRequest]], list[Reply]]
    is_about_jobs: bool = False  # else one batch may hold several about one job, or about none
    blocks_claims: bool = False  # until its commit: by Kafka each comes in a transaction of its own
    is_recorded: bool = True  # in the audit log


# Triggers, batches and the reports of attempts are not recorded: one client in a loop would write more rows than all
# operators.
_KINDS: dict[type, Kind] = {
    requests.JobSubmit: Kind(apply_submits, is_about_jobs=True),
    requests.JobTrigger: Kind(apply_triggers, is_recorded=False),
    requests.JobPause: Kind(apply_pauses, is_about_jobs=True),
    requests.JobResume: Kind(apply_resumes, is_about_jobs=True),
    requests.JobDelete: Kind(apply_deletes, is_about_jobs=True),
    requests.JobRollback: Kind(apply_rollbacks, is_about_jobs=True),
    requests.JobSkip: Kind(apply_overrides, is_about_jobs=True),
    requests.JobMove: Kind(apply_overrides, is_about_jobs=True),
    requests.JobUnskip: Kind(apply_overrides, is_about_jobs=True),
    requests.JobReschedule: Kind(apply_reschedules, is_about_jobs=True),
    requests.JobBackfill: Kind(apply_backfills, is_about_jobs=True),
    requests.BackfillPause: Kind(singly(change_backfill), is_about_jobs=True),
    requests.BackfillResume: Kind(singly(change_backfill), is_about_jobs=True),
    requests.BackfillCancel: Kind(singly(change_backfill), is_about_jobs=True),
    requests.CalendarPut: Kind(apply_calendar_puts, is_about_jobs=True),
    requests.CalendarDelete: Kind(singly(delete_calendar), is_about_jobs=True),
    requests.RunCancel: Kind(apply_cancels),
    requests.RunComplete: Kind(apply_completes, is_recorded=False),
    requests.RunHeartbeat: Kind(apply_heartbeats, is_recorded=False),
    requests.RunRetry: Kind(apply_retries),
    requests.RunsCancel: Kind(singly(cancel_by_filter), blocks_claims=True),
    requests.Freeze: Kind(singly(freeze), blocks_claims=True),
    requests.Thaw: Kind(singly(thaw)),
    requests.WorkflowPause: Kind(apply_workflow_changes),
    requests.WorkflowResume: Kind(apply_workflow_changes),
    requests.WorkflowCancel: Kind(apply_workflow_changes, blocks_claims=True),
    requests.BatchSubmit: Kind(apply_batch_submits, is_recorded=False),
    requests.BatchAdd: Kind(apply_batch_adds, is_recorded=False),
    requests.BatchClose: Kind(apply_batch_closes),
}

BLOCKS_CLAIMS = tuple(kind for kind, how in _KINDS.items() if how.blocks_claims)

_Name: TypeAlias = tuple[str, str]  # tenant, and request_id or its form by token


class _Named(NamedTuple):
    """A request with the reply to store, and their name."""

    name: _Name
    received: ReceivedRequest
    reply: Reply


def apply_requests(
    connection: Conn, installation: Installation, batch: Sequence[ReceivedRequest], *, actor: Actor | None = None
) -> list[Reply]:
    """Apply requests in the caller's transaction, whose last statements settle the places of keys.

    The actor is the origin of those that did not come by Kafka; by default the user of this process.

    Raises:
        Unavailable: Another transaction stored a reply for the same request_id, or has brought a job of the batch into
            a graph: roll back and try again.
        RowLocked: Another transaction has held a row that a request needs for longer than 200 ms: the same. It is a
            claim, a firing that holds timers, or a user's own that has triggered a job or completes a run.
        CancelNeedsClaims: A cancel among other requests met a locked run: roll back and apply it alone.
        psycopg.Error: A request's data does not fit the database: roll back and apply the requests one by one.
    """
    writing = Writing(connection, installation, actor)
    replies = apply_with(writing, batch)
    writing.settle()
    return replies


def apply_with(writing: Writing, batch: Sequence[ReceivedRequest]) -> list[Reply]:
    """Apply requests as `apply_requests` does; the caller settles."""
    connection = writing.connection
    if len(batch) > 1 and any(isinstance(received.request, BLOCKS_CLAIMS) for received in batch):
        # Only direct callers send such a batch; a Kafka batch is split, since no claim can start until the commit.
        # Before any other lock: claims wait for a job's active run, so its holder must not wait for claims (ADR 0008).
        block_claims(connection, batch)
    writing.together, writing.graphs = batch, lock_graphs(connection, batch)
    refused = exceeded(writing, batch)
    replies = {index: rejected(batch[index], error) for index, error in refused.items()}
    names = [_name(received, writing.installation) for received in batch]
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
    for indexes in _batches(batch, [index for index in new if index not in replies]):
        chosen = [zoned(writing, batch[index]) for index in indexes]
        replies |= zip(indexes, _KINDS[type(chosen[0].request)].apply(writing, chosen), strict=True)
    for index, original in repeats:
        replies[index] = _first_reply(batch[index], batch[original].body_hash(), replies[original])
    complete = [replies[index] for index in range(len(batch))]
    at_commit(connection, partial(_count, complete))
    applied = [(batch[index], complete[index]) for index in new]
    if writing.written is not None:
        writing.written.update(reply.type for received, reply in applied if _has_written(received.request, reply))
    record_requests(writing, (each for each in applied if is_recorded(each[0]) and _is_news(*each)))
    _store(connection, [_Named(name, batch[index], complete[index]) for index in new if (name := names[index])])
    writing.woken |= _limits_edited(connection, applied)
    return complete


def is_recorded(received: ReceivedRequest) -> bool:
    """Return True if the type of a request belongs in the audit log."""
    return _KINDS[type(received.request)].is_recorded


def first_reply(connection: Conn, tenant: str, request_id: str, content: bytes) -> Reply | None:
    """Return the stored reply to a request, or None if it is new; `content` is the hash of its content.

    Raises:
        RequestConflict: The id was used for another request.
    """
    stored = _find_replies(connection, [(tenant, request_id)]).get((tenant, request_id))
    if stored is not None and stored[0] != content:
        raise RequestConflict(request_id)
    return stored and stored[1]


def replies_of(connection: Conn, tenant: str, request_ids: Sequence[str]) -> dict[str, Reply]:
    """Return the stored replies to the requests of these ids, by id."""
    found = _find_replies(connection, [(tenant, each) for each in request_ids])
    return {name[1]: reply for name, (_, reply) in found.items() if name is not None}


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
            if job in jobs and _KINDS[kind].is_about_jobs:
                yield together
                together, jobs = [], set()
            together.append(index)
            jobs.add(job)
        if together:
            yield together


def _is_news(received: ReceivedRequest, reply: Reply) -> bool:
    return reply.status is not ReplyStatus.ACCEPTED or _has_written(received.request, reply)


def _limits_edited(connection: Conn, applied: Iterable[tuple[ReceivedRequest, Reply]]) -> set[int]:
    edited: set[tuple[UUID, int]] = set()
    for received, reply in applied:
        request, version = received.request, reply.job_version
        keyed = isinstance(request, JobRollback) or (
            isinstance(request, JobSubmit) and request.job.concurrency_key is not None and version != 1
        )
        if keyed and reply.job_id is not None and version is not None and _has_written(request, reply):
            edited.add((UUID(reply.job_id), version))
    return edited_keys(connection, sorted(edited))


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
        raise Unavailable("another transaction replied to a request of this batch at the same time") from error


def _reply_columns(named: _Named) -> bytes:
    tenant, request_id = named.name
    body_hash, reply = bytea(named.received.body_hash()), bytea(encode(named.reply))
    return b"".join((_REPLY, text(tenant), text(request_id), body_hash, reply))


def _count(replies: Sequence[Reply]) -> None:
    for (kind, status), number in Counter((reply.type, reply.status) for reply in replies).items():
        metrics.count("requests", number, kind, status)
