"""`job.pause` and `job.resume`, set-wise.

A pause settles what is overdue, takes back what has not left, and holds the timer at the next instant, until it is
resumed or `paused_until` (then firing resumes it). What the instants of the pause become is decided when it ends, by
`on_resume`; a `once` whose instant lies in it fires then. Triggers work on a paused job.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from uuid import UUID

from tidewheel.db import Conn
from tidewheel.errors import FieldError, InvalidInput, UnknownJob
from tidewheel.intake.incoming import Incoming, accepted, rejected
from tidewheel.intake.locks import JobRow, Locked, after_pause, job_id_of, lock_jobs, settle
from tidewheel.intake.timers import TimerToPut, chained, next_instants, put_timers
from tidewheel.jobs.requests import JobPause
from tidewheel.jobs.timestamps import format_timestamp
from tidewheel.occurrences import Decision, Held
from tidewheel.outbox import append
from tidewheel.schemas.records import Reply
from tidewheel.sql import Statements
from tidewheel.transitions.circumstances import Circumstances, read_circumstances
from tidewheel.transitions.events import lifecycle_row
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.timers import LockedTimer, advance_timers

_SQL = Statements("tidewheel.intake")
_PAUSE_JOBS = _SQL["pause_jobs"]
_RESUME_JOBS = _SQL["resume_jobs"]


def apply_pauses(connection: Conn, installation: Installation, batch: Sequence[Incoming]) -> list[Reply]:
    """Pause jobs, in the caller's transaction; an answer for each request, in their order."""
    locked = lock_jobs(connection, batch)
    asked = {job_id_of(incoming): incoming.request for incoming in batch if isinstance(incoming.request, JobPause)}
    refused = {job for job, request in asked.items() if request.until is not None and request.until <= locked.now}
    jobs = [
        job
        for job in existing(locked, batch)
        if job.job_id not in refused and (not job.paused or job.paused_until != asked[job.job_id].until)
    ]
    following = settle(connection, installation, locked, [job.job_id for job in jobs if not job.paused])
    following |= {
        job.job_id: locked.timers[job.job_id].scheduled_at for job in jobs if job.paused and job.job_id in locked.timers
    }
    put_timers(
        connection,
        [
            TimerToPut(
                job.job_id,
                job.tenant,
                job.shard,
                job.version,
                following[job.job_id],
                held=Held.PAUSE,
                until=asked[job.job_id].until,
            )
            for job in jobs
            if job.job_id in following
        ],
    )
    reasons = {job: request.reason for job, request in asked.items()}
    columns: dict[str, object] = {
        "job_ids": [job.job_id for job in jobs],
        "reasons": [reasons[job.job_id] for job in jobs],
        "untils": [asked[job.job_id].until for job in jobs],
        "revived": [job.job_id in following for job in jobs],
        "now": locked.now,
    }
    connection.execute(_PAUSE_JOBS, columns)
    tell(connection, installation, "job.paused", jobs, now=locked.now, reasons=reasons)
    return [
        rejected(incoming, _until_passed(incoming, locked))
        if job_id_of(incoming) in refused
        else _answer(incoming, locked, changed=jobs, next_run_at={})
        for incoming in batch
    ]


def apply_resumes(connection: Conn, installation: Installation, batch: Sequence[Incoming]) -> list[Reply]:
    """Resume jobs, in the caller's transaction; an answer for each request, in their order."""
    locked = lock_jobs(connection, batch)
    jobs = [job for job in existing(locked, batch) if job.paused]
    timers = [locked.timers[job.job_id] for job in jobs if job.job_id in locked.timers]
    circumstances = read_circumstances(connection, timers)
    waiting = chained(connection, [timer.job_id for timer in timers if timer.chains])
    advance_timers(
        connection,
        installation,
        timers,
        lambda timer: _resumed(timer, circumstances, locked.now, waits=timer.job_id in waiting),
        now=locked.now,
    )
    connection.execute(_RESUME_JOBS, {"job_ids": [job.job_id for job in jobs], "now": locked.now})
    tell(connection, installation, "job.resumed", jobs, now=locked.now, reasons={})
    following = next_instants(connection, [job.job_id for job in jobs])
    return [_answer(incoming, locked, changed=jobs, next_run_at=following) for incoming in batch]


def _resumed(timer: LockedTimer, circumstances: Circumstances, now: datetime, *, waits: bool) -> Decision:
    decision = after_pause(timer, circumstances, now)
    return replace(decision, held=Held.RUN, due_at=None) if waits else decision


def _until_passed(incoming: Incoming, locked: Locked) -> InvalidInput:
    assert isinstance(incoming.request, JobPause)  # noqa: S101 - by accept's table
    until = incoming.request.until or locked.now
    problem = f"{format_timestamp(until)} has passed: it is {format_timestamp(locked.now)} by the database's clock"
    return InvalidInput([FieldError("until", problem, "write a later instant, or leave it out")])


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
