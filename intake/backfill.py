"""`job.backfill`: a past range is looked at, bounded and written down; the scheduler makes its runs.

Everything is decided under the job's lock: how many backfills it has, which versions its range has, and the instant
that tells this backfill's runs from those of all others. Asked for again under the same name, it is found, not made.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from uuid import UUID, uuid4

from psycopg.rows import class_row

from tidewheel.db import Conn
from tidewheel.errors import FieldError, InvalidInput, Refused, UnknownJob
from tidewheel.ids import hashed_id
from tidewheel.intake.backfill_range import Found, find_occurrences
from tidewheel.intake.incoming import Incoming, accepted, rejected
from tidewheel.intake.locks import job_id_of, lock_jobs, read_now
from tidewheel.jobs.requests import JobBackfill
from tidewheel.occurrences import BackfillState
from tidewheel.schemas.records import Reply
from tidewheel.sql import Statements
from tidewheel.transitions.backfills import Backfill, tell_backfill
from tidewheel.transitions.installation import Installation

_SQL = Statements("tidewheel.intake")
_READ_BACKFILLED_JOBS = _SQL["read_backfilled_jobs"]
_FIND_BACKFILL = _SQL["find_backfill"]
_ADD_BACKFILL = _SQL["add_backfill"]

MOST_UNFINISHED = 100
"""Backfills of one job at once: each is looked at several times a second."""

_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class _Job:
    job_id: UUID
    key: str
    shard: int
    version: int
    deleted_at: datetime | None
    unfinished: int
    last_made_at: datetime | None


def apply_backfills(connection: Conn, installation: Installation, batch: Sequence[Incoming]) -> list[Reply]:
    """Accept backfills, in the caller's transaction; an answer for each request, in their order."""
    ids = sorted({job_id_of(incoming) for incoming in batch})
    lock_jobs(connection, installation, batch)  # their timers too: a pause of one may be next in the transaction
    with connection.cursor(row_factory=class_row(_Job), binary=True) as cursor:
        found = cursor.execute(_READ_BACKFILLED_JOBS, {"job_ids": ids})
        jobs = {job.job_id: job for job in found if job.version and job.deleted_at is None}
    return [_answer(connection, installation, incoming, jobs.get(job_id_of(incoming))) for incoming in batch]


def _answer(connection: Conn, installation: Installation, incoming: Incoming, job: _Job | None) -> Reply:
    request = incoming.request
    assert isinstance(request, JobBackfill)  # noqa: S101 - by accept's table
    if job is None:
        return rejected(incoming, UnknownJob(incoming.tenant, incoming.key or ""))
    backfill_id = _backfill_id(incoming, job.job_id)
    known = connection.execute(_FIND_BACKFILL, {"backfill_id": backfill_id}, binary=True).fetchone()
    if known and not request.dry_run:
        return _accepted(incoming, job, occurrences=known[0], backfill_id=str(backfill_id), unchanged=True)
    now = read_now(connection)
    try:
        _ensure_few(job, request)
        found = find_occurrences(connection, job.job_id, job.version, request, now=now)
    except Refused as refused:
        return rejected(incoming, refused)
    if request.dry_run:
        return _accepted(incoming, job, occurrences=found.wanted)
    backfill = _backfill(backfill_id, request, job, found, _made_at(job, now))
    connection.execute(_ADD_BACKFILL, asdict(backfill))
    tell_backfill(
        connection, installation, "job.backfill_started", backfill, job_key=job.key, now=now, reason=request.reason
    )
    return _accepted(incoming, job, occurrences=found.wanted, backfill_id=str(backfill_id))


def _accepted(incoming: Incoming, job: _Job, **facts: object) -> Reply:
    return accepted(incoming, job_id=str(job.job_id), job_version=job.version, **facts)


def _backfill_id(incoming: Incoming, job_id: UUID) -> UUID:
    seed = incoming.seed()
    return hashed_id(b"backfill%b%b" % (job_id.bytes, seed)) if seed else uuid4()


def _ensure_few(job: _Job, request: JobBackfill) -> None:
    if job.unfinished >= MOST_UNFINISHED and not request.dry_run:
        problem = f"the job has {job.unfinished} backfills that are not finished, and may have {MOST_UNFINISHED}"
        raise InvalidInput([FieldError("key", problem, "wait for them, or cancel some")])


def _made_at(job: _Job, now: datetime) -> datetime:
    """A millisecond that no other backfill of the job has: it tells their runs apart."""
    made_at = now.replace(microsecond=now.microsecond // 1000 * 1000)
    return made_at if job.last_made_at is None else max(made_at, job.last_made_at + _MILLISECOND)


def _backfill(backfill_id: UUID, request: JobBackfill, job: _Job, found: Found, made_at: datetime) -> Backfill:
    newest_first = request.order == "newest_first"
    return Backfill(
        backfill_id=backfill_id,
        tenant=request.tenant,
        job_id=job.job_id,
        shard=job.shard,
        job_version=job.version,
        state=BackfillState.RUNNING,
        first_at=request.from_at,
        last_at=request.to_at,
        what=request.what,
        versions=request.versions,
        overlap=request.overlap,
        newest_first=newest_first,
        max_concurrent=request.max_concurrent,
        occurrences=found.occurrences,
        wanted=found.wanted,
        cursor_at=request.to_at if newest_first else request.from_at,
        request_id=request.request_id,
        traceparent=request.traceparent,
        reason=request.reason,
        made_at=made_at,
    )
