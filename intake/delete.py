"""`job.delete`, set-wise: a tombstone stays, so that versions never repeat for a job_id.

Runs that have begun finish; those that never began are cancelled, those of instants still ahead taken back.
"""

from collections.abc import Sequence
from uuid import UUID

from tidewheel.db import Conn
from tidewheel.errors import Refused, UnknownJob, VersionConflict
from tidewheel.intake.calendars import write_job_calendars
from tidewheel.intake.incoming import Incoming, accepted, rejected
from tidewheel.intake.locks import Locked, job_id_of, lock_jobs, settle
from tidewheel.intake.moves import forget_all
from tidewheel.intake.pause import existing
from tidewheel.intake.telling import tell
from tidewheel.jobs.requests import JobDelete
from tidewheel.runs import RunState
from tidewheel.schemas.records import Reply
from tidewheel.sql import Statements
from tidewheel.transitions.end import RunEnd, end_runs
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.timers import drop_timers

_SQL = Statements("tidewheel.intake")
_DELETE_JOBS = _SQL["delete_jobs"]
_RETIRE_VERSIONS = _SQL["retire_versions"]
_LOCK_UNBEGUN = _SQL["lock_unbegun"]
_ADD_JOB_CANCELLATION = _SQL["add_job_cancellation"]

_AT_ONCE = 1000  # runs cancelled by the request itself; tens of milliseconds


def apply_deletes(connection: Conn, installation: Installation, batch: Sequence[Incoming]) -> list[Reply]:
    """Delete jobs, in the caller's transaction; an answer for each request, in their order."""
    locked = lock_jobs(connection, installation, batch, to_delete=True)
    refused = {job_id_of(incoming): error for incoming in batch if (error := _refusal(incoming, locked)) is not None}
    jobs = [job for job in existing(locked, batch) if job.job_id not in refused]
    ids = [job.job_id for job in jobs]
    settle(connection, installation, locked, ids, given_up=ids)
    forget_all(connection, installation, jobs, locked.now)
    drop_timers(connection, ids)
    write_job_calendars(connection, {job.job_id: (job.tenant, ()) for job in jobs})
    columns: dict[str, object] = {
        "job_ids": ids, "states": [RunState.QUEUED, RunState.BUFFERED], "most": _AT_ONCE,
        "tenants": [job.tenant for job in jobs], "now": locked.now,
    }  # fmt: skip
    unbegun = connection.execute(_LOCK_UNBEGUN, columns, binary=True).fetchall()
    ends = [
        RunEnd(run_id=run, attempt=attempt, state=RunState.CANCELLED, reason="job_deleted")
        for run, attempt in unbegun
        if isinstance(run, UUID) and isinstance(attempt, int)
    ]
    end_runs(connection, installation, ends)
    if len(ends) == _AT_ONCE:
        # A backlog of a million must not hold up the requests behind this one: claims refuse it, the scheduler ends it.
        connection.execute(_ADD_JOB_CANCELLATION, columns)
    connection.execute(_DELETE_JOBS, {"job_ids": ids, "now": locked.now})
    retired = {"job_ids": ids, "versions": [job.version for job in jobs], "now": locked.now}
    connection.execute(_RETIRE_VERSIONS, retired)
    reasons = {
        job_id_of(incoming): incoming.request.reason for incoming in batch if isinstance(incoming.request, JobDelete)
    }
    tell(connection, installation, "job.deleted", jobs, now=locked.now, reasons=reasons)
    return [
        rejected(incoming, refused[job_id_of(incoming)])
        if job_id_of(incoming) in refused
        else accepted(incoming, job_id=str(job_id_of(incoming)), job_version=locked.jobs[job_id_of(incoming)].version)
        for incoming in batch
    ]


def _refusal(incoming: Incoming, locked: Locked) -> Refused | None:
    request, job = incoming.request, locked.jobs.get(job_id_of(incoming))
    assert isinstance(request, JobDelete)  # noqa: S101 - by accept's table
    if job is None or not job.exists:
        return UnknownJob(incoming.tenant, request.key)
    if request.if_version is not None and request.if_version != job.version:
        return VersionConflict(request.if_version, job.version)
    return None
