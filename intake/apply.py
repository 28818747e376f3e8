"""Applying requests: the one piece of code behind every front door.

A batch is applied in the caller's transaction, in the order of its requests: neighbours of one kind that concern
different jobs are applied together, set-wise. Every request gets an answer; one with a request_id that was seen before
gets the first answer, and one that reuses it for something else is rejected.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import cast

import psycopg

from tidewheel.errors import FieldError, InvalidInput, RequestConflict, Unavailable
from tidewheel.intake.backfills import (
    apply_backfill_cancels,
    apply_backfill_pauses,
    apply_backfill_resumes,
    apply_backfills,
)
from tidewheel.intake.calendars import apply_calendar_deletes, apply_calendar_puts
from tidewheel.intake.cancel import apply_cancel_filters, apply_cancels, hold_claims
from tidewheel.intake.lifecycle import apply_deletes, apply_pauses, apply_resumes
from tidewheel.intake.locks import read_now
from tidewheel.intake.overrides import apply_overrides
from tidewheel.intake.request import Incoming, rejected
from tidewheel.intake.retry import apply_retries
from tidewheel.intake.rollback import apply_rollbacks
from tidewheel.intake.submit import apply_submits
from tidewheel.intake.task_tokens import apply_completes, apply_heartbeats
from tidewheel.intake.trigger import apply_triggers
from tidewheel.jobs.requests import (
    BackfillCancel,
    BackfillPause,
    BackfillResume,
    CalendarDelete,
    CalendarPut,
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
    RunCancel,
    RunComplete,
    RunHeartbeat,
    RunRetry,
    RunsCancel,
)
from tidewheel.postgres.pg_arrays import texts
from tidewheel.postgres.pg_copy import bytea, columns, copy_rows, instant, text
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.process.metrics import metrics
from tidewheel.schemas.codec import decode, encode
from tidewheel.schemas.generated.records import Reply
from tidewheel.transitions.installation import Installation

_SQL = Statements("tidewheel.intake")
_KNOWN_TENANTS = _SQL["known_tenants"]
_FIND_ANSWERS = _SQL["find_answers"]

_COPY_ANSWERS = "COPY requests (tenant, request_id, body_hash, reply, created_at) FROM STDIN (FORMAT BINARY)"
_ANSWER = columns(5)

# What names no job, or may name one several times: always applied together.
_TOGETHER = frozenset({JobTrigger, RunCancel, RunComplete, RunHeartbeat, RunRetry, RunsCancel})

Apply = Callable[[Conn, Installation, Sequence[Incoming]], list[Reply]]

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
    BackfillPause: apply_backfill_pauses,
    BackfillResume: apply_backfill_resumes,
    BackfillCancel: apply_backfill_cancels,
    CalendarPut: apply_calendar_puts,
    CalendarDelete: apply_calendar_deletes,
    RunCancel: apply_cancels,
    RunComplete: apply_completes,
    RunHeartbeat: apply_heartbeats,
    RunRetry: apply_retries,
    RunsCancel: apply_cancel_filters,
}


def apply_requests(connection: Conn, installation: Installation, batch: Sequence[Incoming]) -> list[Reply]:
    """Apply requests in the caller's transaction.

    Args:
        connection: Inside a transaction.
        installation: Shards, topics, encoding.
        batch: In the order they are to be applied.

    Returns:
        An answer for each, in their order.

    Raises:
        Unavailable: Somebody else answered one of them at the same moment, or has in hand what one of them needs
            (Busy): roll back and try again.
        psycopg.Error: A request's data does not fit the database: roll back and apply them one by one.
    """
    if len(batch) > 1 and any(isinstance(incoming.request, RunsCancel) for incoming in batch):
        # Who asks directly for several things at once: what comes by Kafka has been cut, for no claim begins meanwhile.
        # First of all: with a turn in hand nothing is waited for but turns, and claims wait for turns (ADR 0008).
        hold_claims(connection)
    answers: list[Reply | None] = [None] * len(batch)
    unknown = unknown_tenants(connection, batch)
    seen = _seen_before(connection, batch)
    fresh: list[int] = []
    repeats: list[tuple[int, int]] = []
    first: dict[tuple[str, str], int] = {}
    for position, incoming in enumerate(batch):
        name = _name(incoming)
        if incoming.tenant in unknown:
            answers[position] = rejected(incoming, unknown_tenant(incoming.tenant))
        elif name in seen:
            answers[position] = _again(incoming, *seen[name])
        elif name is not None and name in first:
            repeats.append((position, first[name]))
        else:
            if name is not None:
                first[name] = position
            fresh.append(position)
    for positions in _waves(batch, fresh):
        apply = _APPLY[type(batch[positions[0]].request)]
        replies = apply(connection, installation, [batch[position] for position in positions])
        for position, reply in zip(positions, replies, strict=True):
            answers[position] = reply
    for position, original in repeats:
        answer = answers[original]
        assert answer is not None  # noqa: S101 - answered above
        answers[position] = _again(batch[position], batch[original].body_hash(), answer)
    _store(connection, [(batch[position], answers[position]) for position in fresh])
    return _counted(answers)


def _waves(batch: Sequence[Incoming], positions: Sequence[int]) -> Iterator[list[int]]:
    """Neighbours that can be applied together: of one kind, and (but for some kinds) of different jobs."""
    for kind, neighbours in groupby(positions, key=lambda position: type(batch[position].request)):
        wave: list[int] = []
        jobs: set[tuple[str, str | None]] = set()
        for position in neighbours:
            job = (batch[position].tenant, batch[position].key)
            if kind not in _TOGETHER and job in jobs:
                yield wave
                wave, jobs = [], set()
            wave.append(position)
            jobs.add(job)
        if wave:
            yield wave


def _name(incoming: Incoming) -> tuple[str, str] | None:
    request_id = incoming.request.request_id
    return None if request_id is None else (incoming.tenant, request_id)


def unknown_tenants(connection: Conn, batch: Sequence[Incoming]) -> set[str]:
    """The tenants among these requests' that there are not."""
    asked = {incoming.tenant for incoming in batch}
    known = {str(tenant) for (tenant,) in connection.execute(_KNOWN_TENANTS, {"tenants": list(asked)})}
    return asked - known


def unknown_tenant(tenant: str) -> InvalidInput:
    """Why a request of a tenant that there is not is refused."""
    return InvalidInput([FieldError("tenant", f"there is no tenant {tenant!r}", "leave it out, or have it created")])


def _seen_before(connection: Conn, batch: Sequence[Incoming]) -> dict[tuple[str, str], tuple[bytes, Reply]]:
    names = [name for incoming in batch if (name := _name(incoming)) is not None]
    if not names:
        return {}
    asked = {
        "tenants": texts([tenant for tenant, _ in names]),
        "request_ids": texts([request_id for _, request_id in names]),
    }
    rows = cast("list[tuple[str, str, bytes, bytes]]", connection.execute(_FIND_ANSWERS, asked, binary=True).fetchall())
    return {(tenant, name): (body_hash, decode(reply, Reply)) for tenant, name, body_hash, reply in rows}


def _again(incoming: Incoming, body_hash: bytes, first: Reply) -> Reply:
    if body_hash not in (incoming.body_hash(), incoming.former_body_hash()):
        return rejected(incoming, RequestConflict(incoming.request.request_id or ""))
    return first


def _store(connection: Conn, answered: Sequence[tuple[Incoming, Reply | None]]) -> None:
    named = [(incoming, reply) for incoming, reply in answered if incoming.request.request_id and reply]
    if not named:
        return
    # In one order, as whoever else stores some of them waits for ours.
    named.sort(key=lambda pair: (pair[0].tenant, pair[0].request.request_id))
    created_at = instant(read_now(connection))
    rows = (_answer(incoming, reply) + created_at for incoming, reply in named)
    try:
        copy_rows(connection, _COPY_ANSWERS, rows)
    except psycopg.errors.UniqueViolation as error:
        message = "a request of this batch was answered by somebody else at the same moment"
        raise Unavailable(message) from error


def _answer(incoming: Incoming, reply: Reply) -> bytes:
    named = text(incoming.tenant) + text(incoming.request.request_id)
    return b"".join((_ANSWER, named, bytea(incoming.body_hash()), bytea(encode(reply))))


def _counted(answers: Sequence[Reply | None]) -> list[Reply]:
    replies = [reply for reply in answers if reply is not None]
    assert len(replies) == len(answers)  # noqa: S101 - every request has its answer
    for (kind, status), number in Counter((reply.type, reply.status) for reply in replies).items():
        metrics.count("requests", number, kind, status)
    return replies
