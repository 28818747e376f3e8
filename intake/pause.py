"""`job.pause` and `job.resume`, set-wise.

A pause settles what is overdue, takes back what has not left, and parks the timer at the next instant. Resuming passes
over the instants of the pause as one recorded span (pausing is intent, not downtime); a `once` whose instant lies in it
fires on resuming. Triggers work on a paused job.
"""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from tidewheel.db import Conn
from tidewheel.errors import UnknownJob
from tidewheel.intake.incoming import Incoming, accepted, rejected
from tidewheel.intake.locks import JobRow, Locked, after_pause, job_id_of, lock_jobs, settle
from tidewheel.intake.submit import put_timers
from tidewheel.jobs.requests import JobPause
from tidewheel.outbox import append
from tidewheel.schemas.records import Reply
from tidewheel.sql import Statements
from tidewheel.transitions.events import lifecycle_row
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.timers import advance_timers

_SQL = Statements("tidewheel.intake")
_PAUSE_JOBS = _SQL["pause_jobs"]
_RESUME_JOBS = _SQL["resume_jobs"]


def apply_pauses(connection: Conn, installation: Installation, batch: Sequence[Incoming]) -> list[Reply]:
    """Pause jobs, in the caller's transaction; an answer for each request, in their order."""
    locked = lock_jobs(connection, batch)
    jobs = [job for job in existing(locked, batch) if not job.paused]
    following = settle(connection, installation, locked, [job.job_id for job in jobs])
    put_timers(
        connection,
        [
            (job.job_id, job.tenant, job.shard, following[job.job_id], job.version, True)
            for job in jobs
            if job.job_id in following
        ],
    )
    reasons = {job_id_of(incoming): _reason(incoming) for incoming in batch}
    columns: dict[str, object] = {
        "job_ids": [job.job_id for job in jobs],
        "reasons": [reasons[job.job_id] for job in jobs],
        "revived": [job.job_id in following for job in jobs],
        "now": locked.now,
    }
    connection.execute(_PAUSE_JOBS, columns)
    tell(connection, installation, "job.paused", jobs, now=locked.now, reasons=reasons)
    return [_answer(incoming, locked, changed=jobs, next_run_at={}) for incoming in batch]


def apply_resumes(connection: Conn, installation: Installation, batch: Sequence[Incoming]) -> list[Reply]:
    """Resume jobs, in the caller's transaction; an answer for each request, in their order."""
    locked = lock_jobs(connection, batch)
    jobs = [job for job in existing(locked, batch) if job.paused]
    timers = [locked.timers[job.job_id] for job in jobs if job.job_id in locked.timers]
    decisions = advance_timers(
        connection, installation, timers, lambda timer: after_pause(timer, locked.now), now=locked.now
    )
    following = {
        timer.job_id: decision.next_at
        for timer, decision in zip(timers, decisions, strict=True)
        if decision.next_at is not None
    }
    connection.execute(_RESUME_JOBS, {"job_ids": [job.job_id for job in jobs], "now": locked.now})
    tell(connection, installation, "job.resumed", jobs, now=locked.now, reasons={})
    return [_answer(incoming, locked, changed=jobs, next_run_at=following) for incoming in batch]


def existing(locked: Locked, batch: Sequence[Incoming]) -> list[JobRow]:
    """The jobs of a batch that exist, each once."""
    ids = dict.fromkeys(job_id_of(incoming) for incoming in batch)
    return [locked.jobs[job] for job in ids if job in locked.jobs and locked.jobs[job].exists]


def tell(
    connection: Conn,
    installation: Installation,
    kind: str,
    jobs: Sequence[JobRow],
    *,
    now: datetime,
    reasons: dict[UUID, str | None],
) -> None:
    """Write the lifecycle event of each job that was changed."""
    events = [
        lifecycle_row(
            installation,
            kind=kind,
            tenant=job.tenant,
            job_id=job.job_id,
            job_key=job.key,
            job_version=job.version,
            shard=job.shard,
            now=now,
            reason=reasons.get(job.job_id),
        )
        for job in jobs
    ]
    append(connection, events, shards=installation.shards)


def _answer(
    incoming: Incoming, locked: Locked, *, changed: Sequence[JobRow], next_run_at: dict[UUID, datetime]
) -> Reply:
    job = locked.jobs.get(job_id_of(incoming))
    if job is None or not job.exists:
        return rejected(incoming, UnknownJob(incoming.tenant, incoming.key or ""))
    return accepted(
        incoming,
        job_id=str(job.job_id),
        job_version=job.version,
        next_run_at=next_run_at.get(job.job_id),
        unchanged=job not in changed,
    )


def _reason(incoming: Incoming) -> str | None:
    return incoming.request.reason if isinstance(incoming.request, JobPause) else None
