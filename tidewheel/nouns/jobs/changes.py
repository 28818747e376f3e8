"""Patch a job by a JSON merge patch (RFC 7396), and release quarantined ones.

A patch is merged with the stored version, and the result is submitted with `if_version` of that version, in one
transaction. So a concurrent change is never overwritten. A `request_id` belongs to the patch, not to the submit that
was made from it: a repeated patch gets the first reply, whatever has changed the job meanwhile.

Each batch of a release is one transaction that locks the timers and releases those that are quarantined by then. So an
interrupted call can be repeated, and one that runs beside firing or an edit releases nothing twice.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Annotated
from uuid import UUID

from psycopg.rows import class_row
from pydantic import Field

from tidewheel.control.client.connection import Connection, drop_none, raise_rejection
from tidewheel.errors import UnknownJob, VersionConflict, refuse
from tidewheel.ids import job_id
from tidewheel.intake.apply import apply_requests, first_reply
from tidewheel.intake.lifecycle import release_jobs
from tidewheel.intake.request import ReceivedRequest, content_hash
from tidewheel.jobs.parsing import own_request
from tidewheel.jobs.strict_json import as_object
from tidewheel.nouns.jobs.reads import show_job
from tidewheel.postgres.notify import Channel
from tidewheel.postgres.session import Conn, read_ids
from tidewheel.postgres.statements import Statements
from tidewheel.schemas.generated.records import Reply

_TRIES = 20  # of a patch of any version: each lost race is a change of another client
_SQL = Statements("tidewheel.control")
_BATCH = 200  # jobs released in one transaction: some tens of milliseconds
_SHOWN = 10  # of a dry run
_FIRST = UUID(int=0)
OnProgress = Callable[[int], None]


def patch_job(
    connection: Connection,
    key: str,
    patch: Mapping[str, object],
    *,
    if_version: int | None = None,
    request_id: str | None = None,
) -> Reply:
    """Apply a merge patch to a job."""
    tenant = connection.tenant
    made_from = content_hash(["job.patch", tenant, key, if_version, patch])

    def work(writing: Conn) -> Reply:
        if request_id is not None and (first := first_reply(writing, tenant, request_id, made_from)) is not None:
            return first
        current = show_job(writing, tenant, key, as_stored=True)
        job = as_object(merged(current.job, patch)) or {}
        if job.get("key") != key:
            refuse("job.key", "a job's key cannot change", "leave it out")
        version = current.summary.version if if_version is None else if_version
        submit = {"type": "job.submit", "tenant": tenant, "job": job, "if_version": version, "request_id": request_id}
        received = ReceivedRequest(own_request(drop_none(submit)), made_from=made_from)
        [reply] = apply_requests(writing, connection.installation, [received], actor=connection.actor)
        if if_version is None and reply.code == VersionConflict.code:
            raise_rejection(reply, version)  # rolls back: no reply is stored for the request_id
        return reply

    reply = _written(connection, work)
    connection.notify(Channel.TIMERS, Channel.OUTBOX)
    raise_rejection(reply, if_version)
    return reply


def _written(connection: Connection, work: Callable[[Conn], Reply]) -> Reply:
    for _ in range(_TRIES - 1):
        with suppress(VersionConflict):
            return connection.write(work)
    return connection.write(work)


def merged(target: object, patch: object) -> object:
    """Return a JSON value with a merge patch applied. Source: RFC 7396, section 2.

    >>> merged({"a": 1, "b": {"c": 2, "d": 3}}, {"a": None, "b": {"c": 4}})
    {'b': {'c': 4, 'd': 3}}
    """
    if (changes := as_object(patch)) is None:
        return patch
    result = dict(as_object(target) or {})
    for name, value in changes.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


@dataclass(frozen=True, slots=True)
class QuarantinedJob:
    """A quarantined job, with the error and the time of its quarantine."""

    job_id: UUID
    key: str
    error: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class ReleaseResult:
    """Result of a release."""

    released: Annotated[int, Field(description="How many jobs were released; of a dry run 0.")]
    matched: Annotated[int, Field(description="How many quarantined jobs matched.")]
    first: Annotated[tuple[QuarantinedJob, ...], Field(description="The first ten of these.")]


def release(
    connection: Connection,
    keys: Sequence[str],
    *,
    error: str | None,
    everything: bool,
    dry_run: bool,
    on_progress: OnProgress | None = None,
) -> ReleaseResult:
    """Release quarantined jobs; see `Client.release`."""
    if not keys and error is None and not everything:
        refuse("KEY", "no job is selected", "give keys, an error or all")
    ids = [job_id(connection.tenant, key) for key in keys]
    _refuse_unknown(connection, keys, ids)
    columns: dict[str, object] = {"tenant": connection.tenant, "job_ids": ids or None, "error": error, "limit": _BATCH}
    first: list[QuarantinedJob] = []
    matched = released = 0
    for batch in _scan(connection, columns):
        first += batch[: _SHOWN - len(first)]
        matched += len(batch)
        if not dry_run:
            released += connection.write(partial(_release, connection, [job.job_id for job in batch], released))
            connection.notify(Channel.TIMERS, Channel.OUTBOX)
        if on_progress is not None:
            on_progress(matched)
    return ReleaseResult(released, matched, tuple(first))


def _refuse_unknown(connection: Connection, keys: Sequence[str], ids: Sequence[UUID]) -> None:
    if not keys:
        return
    with connection.snapshot() as reading:
        known = read_ids(reading, _SQL["find_jobs"], {"job_ids": list(ids)})
    for key, job in zip(keys, ids, strict=True):
        if job not in known:
            raise UnknownJob(connection.tenant, key)


def _scan(connection: Connection, columns: dict[str, object]) -> Generator[list[QuarantinedJob]]:
    after = _FIRST
    while True:
        with connection.snapshot() as reading, reading.cursor(row_factory=class_row(QuarantinedJob)) as cursor:
            found = cursor.execute(_SQL["find_quarantined_jobs"], {**columns, "after": after}).fetchall()
        if not found:
            return
        after = found[-1].job_id
        yield found


def _release(over: Connection, ids: Sequence[UUID], before: int, connection: Conn) -> int:
    released = len(release_jobs(connection, over.installation, ids))
    if released:  # the first batch has an entry of its own, in which the others are counted
        over.record(connection, "job.release", "jobs", objects=released, adds_up=before > 0)
    return released
