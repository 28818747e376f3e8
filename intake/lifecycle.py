"""`job.pause` and `job.resume`, set-wise.

A pause settles what is overdue, takes back what has not left, and holds the timer at the next instant, until it is
resumed or `paused_until` (then firing resumes it). What the instants of the pause become is decided when it ends, by
`on_resume`; a `once` whose instant lies in it fires then. Triggers work on a paused job.

`job.delete`, set-wise: a tombstone stays, so that versions never repeat for a job_id.

Runs that have begun finish; those that never began are cancelled, those of instants still ahead taken back.
"""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from tidewheel.errors import FieldError, InvalidInput, Refused, UnknownJob, VersionConflict
from tidewheel.intake.calendars import write_job_calendars
from tidewheel.intake.locks import JobRow, Locked, after_pause, apply_overdue, job_id_of, lock_jobs
from tidewheel.intake.override_rules import forget_all
from tidewheel.intake.request import ReceivedRequest, accepted, rejected
from tidewheel.intake.timers import TimerToPut, next_instants, put_timers
from tidewheel.jobs.requests import JobDelete, JobPause
from tidewheel.jobs.values import format_timestamp
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.runs import RunState
from tidewheel.schedules.decide import hold_for_run
from tidewheel.schedules.decision import Decision, HoldReason
from tidewheel.schemas.generated.records import Reply
from tidewheel.transitions.after_end import is_pause_on_failure
from tidewheel.transitions.decision_inputs import DecisionInputs, read_decision_inputs
from tidewheel.transitions.events import append_job_events
from tidewheel.transitions.finish import finish_runs
from tidewheel.transitions.finished import RunEnd
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.timers import LockedTimer, advance_timers, drop_timers, find_open_fixed_delay_runs

_SQL = Statements("tidewheel.intake")
_PAUSE_JOBS = _SQL["pause_jobs"]
_RESUME_JOBS = _SQL["resume_jobs"]


def apply_pauses(connection: Conn, installation: Installation, batch: Sequence[ReceivedRequest]) -> list[Reply]:
    """Pause jobs, in the caller's transaction; an answer for each request, in their order."""
    locked = lock_jobs(connection, installation, batch)
    asked = {job_id_of(received): received.request for received in batch if isinstance(received.request, JobPause)}
    there = existing(locked, batch)
    refused = {job.job_id: error for job in there if (error := _until_refused(job, asked[job.job_id], locked))}
    jobs = [job for job in there if job.job_id not in refused and _changes(job, asked[job.job_id])]
    following = apply_overdue(connection, installation, locked, [job.job_id for job in jobs if not job.paused])
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
                hold_reason=HoldReason.PAUSE,
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
        "makers": ["failures" if is_pause_on_failure(asked[job.job_id].request_id) else "request" for job in jobs],
        "revived": [job.job_id in following for job in jobs],
        "now": locked.now,
    }
    connection.execute(_PAUSE_JOBS, columns)
    append_job_events(connection, installation, "job.paused", jobs, now=locked.now, reasons=reasons)
    return [
        rejected(received, refused[job_id_of(received)])
        if job_id_of(received) in refused
        else _answer(received, locked, changed=jobs, next_run_at={})
        for received in batch
    ]


def apply_resumes(connection: Conn, installation: Installation, batch: Sequence[ReceivedRequest]) -> list[Reply]:
    """Resume jobs, in the caller's transaction; an answer for each request, in their order."""
    locked = lock_jobs(connection, installation, batch)
    jobs = [job for job in existing(locked, batch) if job.paused]
    timers = [locked.timers[job.job_id] for job in jobs if job.job_id in locked.timers]
    circumstances = read_decision_inputs(connection, timers)
    waiting = find_open_fixed_delay_runs(connection, timers)
    advance_timers(
        connection,
        installation,
        timers,
        lambda timer: _resumed(timer, circumstances, locked.now, waits=timer.job_id in waiting),
        now=locked.now,
    )
    connection.execute(_RESUME_JOBS, {"job_ids": [job.job_id for job in jobs], "now": locked.now})
    append_job_events(connection, installation, "job.resumed", jobs, now=locked.now, reasons={})
    following = next_instants(connection, [job.job_id for job in existing(locked, batch)])
    return [_answer(received, locked, changed=jobs, next_run_at=following) for received in batch]


def _resumed(timer: LockedTimer, circumstances: DecisionInputs, now: datetime, *, waits: bool) -> Decision:
    decision = after_pause(timer, circumstances, now)
    return hold_for_run(decision) if waits else decision


def _changes(job: JobRow, request: JobPause) -> bool:
    """Whether a pause changes anything.

    What `pause_on_failure` asked for may come late: it counts only while the failures it was asked for still do, by the
    policy now in force, and it never touches a pause that somebody made.
    """
    if is_pause_on_failure(request.request_id):
        return not job.paused and job.pause_on_failure is not None and job.consecutive_failures >= job.pause_on_failure
    return not job.paused or job.paused_until != request.until


def _until_refused(job: JobRow, request: JobPause, locked: Locked) -> InvalidInput | None:
    if request.until is None:
        return None
    if request.until <= locked.now:
        now = format_timestamp(locked.now)
        problem = f"{format_timestamp(request.until)} has passed: it is {now} by the database's clock"
        return InvalidInput([FieldError("until", problem, "write a later instant, or leave it out")])
    if job.job_id not in locked.timers:
        problem = "the job has nothing to fire by itself, so nothing would end the pause"
        return InvalidInput([FieldError("until", problem, "leave it out, and send job.resume when it is time")])
    return None


def existing(locked: Locked, batch: Sequence[ReceivedRequest]) -> list[JobRow]:
    """The jobs of a batch that exist, each once."""
    ids = dict.fromkeys(job_id_of(received) for received in batch)
    return [locked.jobs[job] for job in ids if job in locked.jobs and locked.jobs[job].exists]


def _answer(
    received: ReceivedRequest, locked: Locked, *, changed: Sequence[JobRow], next_run_at: dict[UUID, datetime]
) -> Reply:
    job = locked.jobs.get(job_id_of(received))
    if job is None or not job.exists:
        return rejected(received, UnknownJob(received.tenant, received.key or ""))
    return accepted(
        received,
        job_id=str(job.job_id),
        job_version=job.version,
        next_run_at=next_run_at.get(job.job_id),
        unchanged=job not in changed,
    )


_DELETE_JOBS = _SQL["delete_jobs"]
_RETIRE_VERSIONS = _SQL["retire_versions"]
_LOCK_UNBEGUN = _SQL["lock_unbegun"]
_ADD_JOB_CANCELLATION = _SQL["add_job_cancellation"]

_AT_ONCE = 1000  # runs cancelled by the request itself; tens of milliseconds


def apply_deletes(connection: Conn, installation: Installation, batch: Sequence[ReceivedRequest]) -> list[Reply]:
    """Delete jobs, in the caller's transaction; an answer for each request, in their order."""
    locked = lock_jobs(connection, installation, batch, to_delete=True)
    refused = {job_id_of(received): error for received in batch if (error := _refusal(received, locked)) is not None}
    jobs = [job for job in existing(locked, batch) if job.job_id not in refused]
    ids = [job.job_id for job in jobs]
    apply_overdue(connection, installation, locked, ids, drop_once=ids)
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
    finish_runs(connection, installation, ends)
    if len(ends) == _AT_ONCE:
        # A backlog of a million must not hold up the requests behind this one: claims refuse it, the scheduler ends it.
        connection.execute(_ADD_JOB_CANCELLATION, columns)
    connection.execute(_DELETE_JOBS, {"job_ids": ids, "now": locked.now})
    retired = {"job_ids": ids, "versions": [job.version for job in jobs], "now": locked.now}
    connection.execute(_RETIRE_VERSIONS, retired)
    reasons = {
        job_id_of(received): received.request.reason for received in batch if isinstance(received.request, JobDelete)
    }
    append_job_events(connection, installation, "job.deleted", jobs, now=locked.now, reasons=reasons)
    return [
        rejected(received, refused[job_id_of(received)])
        if job_id_of(received) in refused
        else accepted(received, job_id=str(job_id_of(received)), job_version=locked.jobs[job_id_of(received)].version)
        for received in batch
    ]


def _refusal(received: ReceivedRequest, locked: Locked) -> Refused | None:
    request, job = received.request, locked.jobs.get(job_id_of(received))
    assert isinstance(request, JobDelete)  # noqa: S101 - by accept's table
    if job is None or not job.exists:
        return UnknownJob(received.tenant, request.key)
    if request.if_version is not None and request.if_version != job.version:
        return VersionConflict(request.if_version, job.version)
    return None
