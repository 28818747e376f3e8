"""`job.pause`, `job.resume`, `job.delete` and `job.rollback`, and the release of quarantined jobs.

A pause fires the overdue occurrences, retracts the runs ahead, and holds the timer at the next instant. It ends by a
resume, or at `paused_until`, when firing resumes the job. When it ends, `on_resume` decides the occurrences of the
pause, and a `once` whose instant lies in it fires. Triggers work on a paused job.

A deletion leaves a tombstone, so that version numbers never repeat for a job_id. Started runs finish. Runs that never
started are cancelled, and runs whose instant is ahead are retracted.

The stored spec is the submitted one, before defaults, in canonical form. In the form of `submitted_form` it has the
same hash.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import cast
from uuid import UUID

from tidewheel.errors import FieldError, InvalidInput, Refused, UnknownJob, VersionConflict, refuse
from tidewheel.intake.calendars import delete_all_overrides, lock_calendars, write_job_calendars
from tidewheel.intake.graphs import children_of, drop_edges, outside_graphs
from tidewheel.intake.locks import JobRow, Locked, lock_jobs, lock_jobs_by_id, lock_jobs_to_delete
from tidewheel.intake.request import ReceivedRequest, accepted, rejected
from tidewheel.intake.submit import apply_submits
from tidewheel.intake.timers import TimerToPut, apply_overdue, end_pauses, next_instants, put_timers
from tidewheel.intake.writing import Writing
from tidewheel.jobs.parsing import parse_request
from tidewheel.jobs.payload import JSON_CONTENT
from tidewheel.jobs.requests import JobDelete, JobPause, JobRollback, JobSubmit
from tidewheel.jobs.spec import JobSpec
from tidewheel.jobs.spec_cache import submitted_form
from tidewheel.jobs.values import format_timestamp
from tidewheel.postgres.pg_binary import integers, uuids
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.runs import NOT_STARTED, RunState
from tidewheel.schedules.decision import HoldReason
from tidewheel.schemas.codec import decode
from tidewheel.schemas.generated.records import JobDefinition, Reply, ReplyError, ReplyStatus
from tidewheel.transitions.after_end import is_pause_on_failure
from tidewheel.transitions.events import ChangedJob, append_job_events
from tidewheel.transitions.finished import RunEnd
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.timers import drop_timers, release_quarantined

_SQL = Statements("tidewheel.intake")

_MAX_CANCELLED = 1000  # runs that the request itself cancels, in tens of milliseconds


def apply_pauses(writing: Writing, batch: Sequence[ReceivedRequest]) -> list[Reply]:
    """Pause jobs; each row records its author."""
    locked = lock_jobs(writing, batch)
    pauses: dict[UUID, JobPause] = {received.job_id: received.of(JobPause) for received in batch}
    found = locked.existing(batch)
    refused = {job.job_id: error for job in found if (error := _until_refused(job, pauses[job.job_id], locked))}
    jobs = [job for job in found if job.job_id not in refused and _changes_job(job, pauses[job.job_id])]
    active = [job.job_id for job in jobs if not job.paused]
    next_at = apply_overdue(writing, locked.timers, active, now=locked.now)
    held = [job.job_id for job in jobs if job.paused and job.job_id in locked.timers]
    next_at |= {job: locked.timers[job].scheduled_at for job in held}
    put_timers(
        writing,
        [
            TimerToPut(job, next_at[job.job_id], hold_reason=HoldReason.PAUSE, until=pauses[job.job_id].until)
            for job in jobs
            if job.job_id in next_at
        ],
    )
    reasons = {job: request.reason for job, request in pauses.items()}
    makers: dict[UUID, str] = {received.job_id: _maker(writing, received) for received in batch}
    writing.execute(
        _SQL["pause_jobs"],
        job_ids=[job.job_id for job in jobs],
        reasons=[reasons[job.job_id] for job in jobs],
        untils=[pauses[job.job_id].until for job in jobs],
        makers=[makers[job.job_id] for job in jobs],
        revived=[job.job_id in next_at for job in jobs],
        now=locked.now,
    )
    append_job_events(writing.connection, writing.installation, "job.paused", jobs, now=locked.now, reasons=reasons)
    return _replies(batch, locked, changed=jobs, refused=refused, next_run_at={})


def _maker(writing: Writing, received: ReceivedRequest) -> str:
    return "failures" if is_pause_on_failure(received.request.request_id) else writing.origin_of(received).words


def apply_resumes(writing: Writing, batch: Sequence[ReceivedRequest]) -> list[Reply]:
    """Resume jobs."""
    locked = lock_jobs(writing, batch)
    found = locked.existing(batch)
    jobs = [job for job in found if job.paused]
    end_pauses(writing, [locked.timers[job.job_id] for job in jobs if job.job_id in locked.timers], locked.now)
    writing.execute(_SQL["resume_jobs"], job_ids=[job.job_id for job in jobs], now=locked.now)
    append_job_events(writing.connection, writing.installation, "job.resumed", jobs, now=locked.now, reasons={})
    next_run_at = next_instants(writing, [job.job_id for job in found])
    return _replies(batch, locked, changed=jobs, refused={}, next_run_at=next_run_at)


def apply_deletes(writing: Writing, batch: Sequence[ReceivedRequest]) -> list[Reply]:
    """Delete jobs."""
    locked = lock_jobs_to_delete(writing, batch)
    refused: dict[UUID, Refused] = {
        received.job_id: error for received in batch if (error := _refusal(received, locked)) is not None
    }
    jobs = [job for job in locked.existing(batch) if job.job_id not in refused]
    # By the locked rows: a child that was submitted meanwhile has given the job a root.
    while children := children_of(writing, [job.job_id for job in jobs if job.root_job_id is not None]):
        refused |= {job: _has_children(keys) for job, keys in children.items()}
        jobs = [job for job in jobs if job.job_id not in children]
    nodes = [job for job in jobs if job.root_job_id is not None]
    for job in nodes:
        if job.tenant not in writing.graphs.tenants:
            raise outside_graphs(job.key)
    ids, now = [job.job_id for job in jobs], locked.now
    quarantined = {job.job_id: job.key for job in jobs if job.job_id in locked.quarantined}
    apply_overdue(writing, locked.timers, ids, now=now, drop_once=ids, skip_quarantined=quarantined)
    delete_all_overrides(writing, jobs, now)
    drop_timers(writing.connection, ids)
    write_job_calendars(writing, {job.job_id: (job.tenant, ()) for job in jobs})
    drop_edges(writing, [job.job_id for job in nodes], now)
    _cancel_unstarted(writing, jobs, now)
    writing.execute(_SQL["delete_jobs"], job_ids=ids, now=now)
    writing.execute(_SQL["retire_versions"], job_ids=ids, versions=[job.version for job in jobs], now=now)
    reasons: dict[UUID, str | None] = {received.job_id: received.of(JobDelete).reason for received in batch}
    append_job_events(writing.connection, writing.installation, "job.deleted", jobs, now=now, reasons=reasons)
    return _replies(batch, locked, changed=jobs, refused=refused, next_run_at={})


def _cancel_unstarted(writing: Writing, jobs: Sequence[JobRow], now: datetime) -> None:
    columns: dict[str, object] = {
        "job_ids": [job.job_id for job in jobs], "states": NOT_STARTED, "limit": _MAX_CANCELLED,
        "tenants": [job.tenant for job in jobs], "now": now,
    }  # fmt: skip
    ends = [
        RunEnd(run_id=run, attempt=attempt, state=RunState.CANCELLED, reason="job_deleted")
        for run, attempt in writing.read(_SQL["lock_unstarted_runs"], **columns)
        if isinstance(run, UUID) and isinstance(attempt, int)
    ]
    writing.finish(ends)
    if len(ends) == _MAX_CANCELLED:
        # A million queued runs must not delay later requests: claims refuse the rest, and the scheduler ends it.
        writing.execute(_SQL["add_job_cancellation"], **columns)


def release_jobs(connection: Conn, installation: Installation, job_ids: Sequence[UUID]) -> list[ChangedJob]:
    """Release those of these jobs that are quarantined, in the caller's transaction; return them."""
    locked = lock_jobs_by_id(Writing(connection, installation), job_ids)
    timers = [locked.timers[job] for job in sorted(locked.quarantined)]
    return release_quarantined(connection, installation, timers, now=locked.now)


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
        problem = f"{format_timestamp(request.until)} has passed; the database's clock is at {now}"
        return InvalidInput([FieldError("until", problem, "write a later instant, or leave it out")])
    if job.job_id not in locked.timers:
        problem = "the job has no occurrences of its own, so the pause would never end"
        return InvalidInput([FieldError("until", problem, "leave it out, and send job.resume later")])
    return None


def _replies(
    batch: Sequence[ReceivedRequest],
    locked: Locked,
    *,
    changed: Sequence[JobRow],
    refused: Mapping[UUID, Refused],
    next_run_at: Mapping[UUID, datetime],
) -> list[Reply]:
    """Return a reply for each request; a refusal, or the job as it was locked."""
    replies: list[Reply] = []
    for received in batch:
        job_id, job = received.job_id, locked.jobs.get(received.job_id)
        if job_id in refused:
            replies.append(rejected(received, refused[job_id]))
        elif job is None or not job.exists:
            replies.append(rejected(received, UnknownJob(received.tenant, received.key or "")))
        else:
            facts = {"job_id": str(job_id), "job_version": job.version, "next_run_at": next_run_at.get(job_id)}
            replies.append(accepted(received, **facts, unchanged=job not in changed))
    return replies


def _has_children(keys: Sequence[str]) -> InvalidInput:
    named = ", ".join(repr(key) for key in keys)
    return InvalidInput([FieldError("key", f"these jobs run after it: {named}", "change or delete these jobs first")])


def _refusal(received: ReceivedRequest, locked: Locked) -> Refused | None:
    request, job = received.of(JobDelete), locked.jobs.get(received.job_id)
    if job is None or not job.exists:
        return UnknownJob(received.tenant, request.key)
    if request.if_version is not None and request.if_version != job.version:
        return VersionConflict(request.if_version, job.version)
    return None


@dataclass(frozen=True, slots=True)
class _StoredVersion:
    """An earlier version, as it is stored."""

    spec: Mapping[str, object]
    definition: JobDefinition

    @property
    def calendars(self) -> list[str]:
        names = [self.spec.get("exclude_calendars", ()), self.spec.get("include_calendars", ())]
        return [name for some in names for name in cast("Sequence[str]", some)]


def apply_rollbacks(writing: Writing, batch: Sequence[ReceivedRequest]) -> list[Reply]:
    """Roll jobs back."""
    stored = _read(writing, batch)
    # Before any timer, as a submit does.
    named = {(one.definition.tenant, name) for one in stored.values() for name in one.calendars}
    lock_calendars(writing.connection, named)
    locked = lock_jobs(writing, batch)
    current = {job_id: job for job_id, job in locked.jobs.items() if job.exists}
    found = writing.read(_SQL["read_earliest_versions"], job_ids=uuids(current))
    earliest = dict(cast("list[tuple[UUID, int]]", found))
    next_run_at = next_instants(writing, list(current))
    replies: dict[UUID, Reply] = {}
    submits: list[tuple[ReceivedRequest, ReceivedRequest]] = []
    for received in batch:
        job_id = received.job_id
        job = current.get(job_id)
        try:
            version = _target_version(received, job, earliest.get(job_id, 1))
            if job is not None and version == job.version:
                facts = {"job_id": str(job_id), "job_version": version, "next_run_at": next_run_at.get(job_id)}
                replies[job_id] = accepted(received, **facts, unchanged=True)
            else:
                submits.append((received, _submit(received, stored.get(job_id), version)))
        except Refused as refused:
            replies[job_id] = rejected(received, refused)
    reasons: dict[UUID, str] = {rollback.job_id: _reason(rollback.of(JobRollback)) for rollback, _ in submits}
    submitted = apply_submits(writing, [submit for _, submit in submits], reasons)
    for (rollback, _), reply in zip(submits, submitted, strict=True):
        replies[rollback.job_id] = _reply(rollback, reply)
    return [replies[received.job_id] for received in batch]


def stored_spec(spec: Mapping[str, object], definition: JobDefinition) -> JobSpec:
    """Return the spec that a version was submitted with; InvalidInput if it is not supported any more.

    The stored spec is canonical, without the payload, which the definition has.
    """
    form = submitted_form(spec)
    is_json = definition.payload_content_type == JSON_CONTENT
    if is_json and definition.payload:
        form = {**form, "payload": json.loads(definition.payload)}  # keys may be filled with its fields
    request = parse_request({"type": "job.submit", "job": form})
    assert isinstance(request, JobSubmit)  # noqa: S101 - by its type
    if is_json and not definition.payload:
        return request.job
    # The bytes as they were: a number may have been written in another form.
    return request.job.model_copy(update={"payload" if is_json else "payload_base64": definition.payload})


def _read(writing: Writing, batch: Sequence[ReceivedRequest]) -> dict[UUID, _StoredVersion]:
    ids, versions = uuids(each.job_id for each in batch), integers(each.of(JobRollback).version for each in batch)
    rows = writing.execute(_SQL["read_requested_versions"], job_ids=ids, versions=versions).fetchall()
    return {
        job_id: _StoredVersion(spec, decode(definition, JobDefinition))
        for job_id, spec, definition in cast("list[tuple[UUID, Mapping[str, object], bytes]]", rows)
    }


def _reason(request: JobRollback) -> str:
    return f"rollback to version {request.version}" + (f": {request.reason}" if request.reason else "")


def _target_version(received: ReceivedRequest, job: JobRow | None, earliest: int) -> int:
    request = received.of(JobRollback)
    if job is None:
        raise UnknownJob(received.tenant, received.key or "")
    if request.if_version is not None and request.if_version != job.version:
        raise VersionConflict(request.if_version, job.version)
    if not earliest <= request.version <= job.version:
        problem = f"there is no version {request.version} of {job.key!r}"
        remedy = f"write {earliest} to {job.version}" if earliest < job.version else "the job has no other version"
        refuse("version", problem, remedy)
    return request.version


def _submit(received: ReceivedRequest, stored: _StoredVersion | None, version: int) -> ReceivedRequest:
    if stored is None:
        problem = f"version {version} of {received.key!r} no longer exists"
        refuse("version", problem, "write another version, or submit the spec")
    try:
        spec = stored_spec(stored.spec, stored.definition)
    except InvalidInput as refused:
        raise InvalidInput([_version_error(version, error) for error in refused.errors]) from refused
    # The spec of a job that was submitted without a key has none: the request_id names the job.
    request = JobSubmit(type="job.submit", tenant=received.tenant, request_id=received.key, job=spec)
    return replace(received, request=request)


def _version_error(version: int, error: FieldError | ReplyError) -> FieldError:
    problem = f"the {error.path} of version {version}: {error.problem}" if error.path else error.problem
    return FieldError("version", problem, error.remedy)


def _reply(received: ReceivedRequest, reply: Reply) -> Reply:
    if reply.status is ReplyStatus.REJECTED:
        version = received.of(JobRollback).version
        return rejected(received, InvalidInput([_version_error(version, error) for error in reply.errors]))
    facts = {"job_id": reply.job_id, "job_version": reply.job_version, "next_run_at": reply.next_run_at}
    return accepted(received, **facts, unchanged=reply.unchanged)
