"""`job.pause`, `job.resume` and `job.delete`, each for many jobs at once.

A pause fires the overdue occurrences, retracts the runs ahead, and holds the timer at the next instant. It ends by a
resume, or at `paused_until`, when firing resumes the job. When it ends, `on_resume` decides the occurrences of the
pause, and a `once` whose instant lies in it fires. Triggers work on a paused job.

A deletion leaves a tombstone, so that version numbers never repeat for a job_id. Started runs finish. Runs that never
started are cancelled, and runs whose instant is ahead are retracted.
"""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from tidewheel.audit import Actor
from tidewheel.errors import FieldError, InvalidInput, Refused, UnknownJob, VersionConflict
from tidewheel.intake.audit import origin_of
from tidewheel.intake.calendars import write_job_calendars
from tidewheel.intake.graphs import Graphs, children_of, drop_edges, outside_graphs
from tidewheel.intake.locks import JobRow, Locked, lock_jobs
from tidewheel.intake.overdue import after_pause, apply_overdue
from tidewheel.intake.override_rows import delete_all_overrides
from tidewheel.intake.request import ReceivedRequest, accepted, rejected
from tidewheel.intake.timers import TimerToPut, next_instants, put_timers
from tidewheel.jobs.requests import JobDelete, JobPause
from tidewheel.jobs.values import format_timestamp
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.runs import NOT_STARTED, RunState
from tidewheel.schedules.decide import hold_for_run
from tidewheel.schedules.decision import Decision, HoldReason
from tidewheel.schemas.generated.records import Reply
from tidewheel.transitions.after_end import is_pause_on_failure
from tidewheel.transitions.decision_inputs import DecisionInputs, read_decision_inputs
from tidewheel.transitions.events import append_job_events
from tidewheel.transitions.finish import finish_runs
from tidewheel.transitions.finished import RunEnd
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.places import FreedPlace
from tidewheel.transitions.timers import LockedTimer, advance_timers, drop_timers, find_open_fixed_delay_runs

_SQL = Statements("tidewheel.intake")
_PAUSE_JOBS = _SQL["pause_jobs"]
_RESUME_JOBS = _SQL["resume_jobs"]
_DELETE_JOBS = _SQL["delete_jobs"]
_RETIRE_VERSIONS = _SQL["retire_versions"]
_LOCK_UNSTARTED_RUNS = _SQL["lock_unstarted_runs"]
_ADD_JOB_CANCELLATION = _SQL["add_job_cancellation"]

_MAX_CANCELLED = 1000  # runs that the request itself cancels, in tens of milliseconds


def apply_pauses(
    connection: Conn, installation: Installation, batch: Sequence[ReceivedRequest], *, actor: Actor | None = None
) -> list[Reply]:
    """Pause jobs in the caller's transaction; return a reply for each request, in their order.

    Each row records its author: `actor` for a request that did not come by Kafka, by default the user of this process.
    """
    locked = lock_jobs(connection, installation, batch)
    pauses: dict[UUID, JobPause] = {
        received.job_id: received.request for received in batch if isinstance(received.request, JobPause)
    }
    found = existing_jobs(locked, batch)
    refused = {job.job_id: error for job in found if (error := _until_refused(job, pauses[job.job_id], locked))}
    jobs = [job for job in found if job.job_id not in refused and _changes_job(job, pauses[job.job_id])]
    active = [job.job_id for job in jobs if not job.paused]
    next_at = apply_overdue(connection, installation, locked.timers, active, now=locked.now)
    next_at |= {
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
                next_at[job.job_id],
                hold_reason=HoldReason.PAUSE,
                until=pauses[job.job_id].until,
            )
            for job in jobs
            if job.job_id in next_at
        ],
    )
    reasons = {job: request.reason for job, request in pauses.items()}
    makers: dict[UUID, str] = {received.job_id: _maker(received, actor) for received in batch}
    columns: dict[str, object] = {
        "job_ids": [job.job_id for job in jobs],
        "reasons": [reasons[job.job_id] for job in jobs],
        "untils": [pauses[job.job_id].until for job in jobs],
        "makers": [makers[job.job_id] for job in jobs],
        "revived": [job.job_id in next_at for job in jobs],
        "now": locked.now,
    }
    connection.execute(_PAUSE_JOBS, columns)
    append_job_events(connection, installation, "job.paused", jobs, now=locked.now, reasons=reasons)
    return [
        rejected(received, refused[received.job_id])
        if received.job_id in refused
        else _reply(received, locked, changed=jobs, next_run_at={})
        for received in batch
    ]


def _maker(received: ReceivedRequest, actor: Actor | None) -> str:
    return "failures" if is_pause_on_failure(received.request.request_id) else origin_of(received, actor).words


def apply_resumes(connection: Conn, installation: Installation, batch: Sequence[ReceivedRequest]) -> list[Reply]:
    """Resume jobs in the caller's transaction; return a reply for each request, in their order."""
    locked = lock_jobs(connection, installation, batch)
    jobs = [job for job in existing_jobs(locked, batch) if job.paused]
    timers = [locked.timers[job.job_id] for job in jobs if job.job_id in locked.timers]
    inputs = read_decision_inputs(connection, timers)
    waiting = find_open_fixed_delay_runs(connection, timers)
    advance_timers(
        connection,
        installation,
        timers,
        lambda timer: _resumed(timer, inputs, locked.now, waits=timer.job_id in waiting),
        now=locked.now,
    )
    connection.execute(_RESUME_JOBS, {"job_ids": [job.job_id for job in jobs], "now": locked.now})
    append_job_events(connection, installation, "job.resumed", jobs, now=locked.now, reasons={})
    next_run_at = next_instants(connection, [job.job_id for job in existing_jobs(locked, batch)])
    return [_reply(received, locked, changed=jobs, next_run_at=next_run_at) for received in batch]


def apply_deletes(
    connection: Conn,
    installation: Installation,
    batch: Sequence[ReceivedRequest],
    *,
    graphs: Graphs,
    freed_keys: list[FreedPlace],
) -> list[Reply]:
    """Delete jobs in the caller's transaction; return a reply for each request, in their order.

    Args:
        freed_keys: As for `finish_runs`.

    Raises:
        RowLocked: A user's own transaction has triggered a job: roll back and try again.
        Unavailable: A job has come into a graph meanwhile: roll back and try again.
    """
    locked = lock_jobs(connection, installation, batch, to_delete=True)
    refused: dict[UUID, Refused] = {
        received.job_id: error for received in batch if (error := _refusal(received, locked)) is not None
    }
    jobs = [job for job in existing_jobs(locked, batch) if job.job_id not in refused]
    # By the locked rows: a child that was submitted meanwhile has given the job a root.
    while children := children_of(connection, [job.job_id for job in jobs if job.root_job_id is not None]):
        refused |= {job: _has_children(keys) for job, keys in children.items()}
        jobs = [job for job in jobs if job.job_id not in children]
    nodes = [job for job in jobs if job.root_job_id is not None]
    for job in nodes:
        if job.tenant not in graphs.tenants:
            raise outside_graphs(job.key)
    ids = [job.job_id for job in jobs]
    quarantined = {job.job_id: job.key for job in jobs if job.job_id in locked.quarantined}
    apply_overdue(
        connection, installation, locked.timers, ids, now=locked.now, drop_once=ids, skip_quarantined=quarantined
    )
    delete_all_overrides(connection, installation, jobs, locked.now)
    drop_timers(connection, ids)
    write_job_calendars(connection, {job.job_id: (job.tenant, ()) for job in jobs})
    drop_edges(connection, [job.job_id for job in nodes], locked.now)
    columns: dict[str, object] = {
        "job_ids": ids, "states": NOT_STARTED, "limit": _MAX_CANCELLED,
        "tenants": [job.tenant for job in jobs], "now": locked.now,
    }  # fmt: skip
    unstarted = connection.execute(_LOCK_UNSTARTED_RUNS, columns, binary=True).fetchall()
    ends = [
        RunEnd(run_id=run, attempt=attempt, state=RunState.CANCELLED, reason="job_deleted")
        for run, attempt in unstarted
        if isinstance(run, UUID) and isinstance(attempt, int)
    ]
    finish_runs(connection, installation, ends, freed_keys=freed_keys)
    if len(ends) == _MAX_CANCELLED:
        # A million queued runs must not delay later requests: claims refuse the rest, and the scheduler ends it.
        connection.execute(_ADD_JOB_CANCELLATION, columns)
    connection.execute(_DELETE_JOBS, {"job_ids": ids, "now": locked.now})
    retired = {"job_ids": ids, "versions": [job.version for job in jobs], "now": locked.now}
    connection.execute(_RETIRE_VERSIONS, retired)
    reasons: dict[UUID, str | None] = {
        received.job_id: received.request.reason for received in batch if isinstance(received.request, JobDelete)
    }
    append_job_events(connection, installation, "job.deleted", jobs, now=locked.now, reasons=reasons)
    return [
        rejected(received, refused[received.job_id])
        if received.job_id in refused
        else accepted(received, job_id=str(received.job_id), job_version=locked.jobs[received.job_id].version)
        for received in batch
    ]


def existing_jobs(locked: Locked, batch: Sequence[ReceivedRequest]) -> list[JobRow]:
    """Return the jobs of a batch that exist, each once."""
    ids = dict.fromkeys(received.job_id for received in batch)
    return [locked.jobs[job] for job in ids if job in locked.jobs and locked.jobs[job].exists]


def _resumed(timer: LockedTimer, inputs: DecisionInputs, now: datetime, *, waits: bool) -> Decision:
    decision = after_pause(timer, inputs, now)
    return hold_for_run(decision) if waits else decision


def _changes_job(job: JobRow, request: JobPause) -> bool:
    """Return True if a pause changes the job.

    A pause by `pause_on_failure` may come late. It applies only while the failures reach the limit of the version in
    force, and never replaces another pause.
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
        problem = "the job has no occurrences of its own, so nothing would end the pause"
        return InvalidInput([FieldError("until", problem, "leave it out, and send job.resume when it is time")])
    return None


def _reply(
    received: ReceivedRequest, locked: Locked, *, changed: Sequence[JobRow], next_run_at: dict[UUID, datetime]
) -> Reply:
    job = locked.jobs.get(received.job_id)
    if job is None or not job.exists:
        return rejected(received, UnknownJob(received.tenant, received.key or ""))
    return accepted(
        received,
        job_id=str(job.job_id),
        job_version=job.version,
        next_run_at=next_run_at.get(job.job_id),
        unchanged=job not in changed,
    )


def _has_children(keys: Sequence[str]) -> InvalidInput:
    named = ", ".join(repr(key) for key in keys)
    return InvalidInput([FieldError("key", f"jobs come after it: {named}", "change or delete these jobs first")])


def _refusal(received: ReceivedRequest, locked: Locked) -> Refused | None:
    request, job = received.request, locked.jobs.get(received.job_id)
    assert isinstance(request, JobDelete)  # noqa: S101 - by the table of `apply`
    if job is None or not job.exists:
        return UnknownJob(received.tenant, request.key)
    if request.if_version is not None and request.if_version != job.version:
        return VersionConflict(request.if_version, job.version)
    return None
