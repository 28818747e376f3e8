"""`job.submit`: create jobs, and give existing jobs a new version.

An identical spec changes nothing. That of a quarantined job is written again as a new version, which releases it. An
edit first fires the overdue occurrences by the version in force and retracts the runs whose instant is ahead. It then
sets the timer to the first instant of the new version after now, or to the position of a quarantined job whose schedule
stays. Run ids do not change, so an instant near the edit cannot fire twice. Rows written: jobs, job_versions, timers.
Firing and edits exclude each other by the timer's lock. A submit that may change the edges of a graph is applied alone,
after those before it in the batch (`graphs`).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from types import MappingProxyType
from uuid import UUID

from psycopg.types.json import Jsonb

from tidewheel.errors import InvalidInput, Refused, Unavailable, VersionConflict
from tidewheel.intake.calendars import (
    fit_moves,
    lock_calendars,
    named_calendars,
    unknown_calendars,
    write_job_calendars,
)
from tidewheel.intake.graphs import EdgeChange, check_edges, outside_graphs, write_edges
from tidewheel.intake.group_requests import keep_frozen_jobs
from tidewheel.intake.job_rows import write_next_versions
from tidewheel.intake.locks import JobRow, Locked, lock_jobs
from tidewheel.intake.new_jobs import create_jobs
from tidewheel.intake.next_version import (
    NextVersion,
    VersionInputs,
    at_root,
    ensure_allowed,
    ensure_can_run,
    ensure_not_fired,
    ensure_remembered,
    next_version,
    once_at,
    once_text,
    same_schedule,
)
from tidewheel.intake.request import ReceivedRequest, accepted, accepted_new, rejected
from tidewheel.intake.timers import TimerToPut, apply_overdue, next_instants, put_timers, read_timer_runs
from tidewheel.intake.writing import Writing
from tidewheel.jobs.requests import JobSubmit
from tidewheel.jobs.spec import JobSpec
from tidewheel.postgres.partitions import day_of, start_of
from tidewheel.postgres.statements import Statements
from tidewheel.runs import RunState
from tidewheel.schedules.timer_state import DaySets
from tidewheel.schemas.generated.records import Reply, ReplyStatus
from tidewheel.transitions.events import lifecycle_row
from tidewheel.transitions.kept_since import share_kept_since
from tidewheel.transitions.timers import drop_timers, find_open_fixed_delay_runs

_UPDATE_JOBS = Statements("tidewheel.intake")["update_jobs"]

_NO_REASONS: Mapping[UUID, str] = MappingProxyType({})


def apply_submits(
    writing: Writing, batch: Sequence[ReceivedRequest], reasons: Mapping[UUID, str] = _NO_REASONS
) -> list[Reply]:
    """Apply submits of different jobs."""
    concerned = [received for received in batch if received.job_id in writing.graphs.jobs]
    if concerned and len(batch) > 1:
        groups = _apart(batch, writing.graphs.jobs)
        return [reply for group in groups for reply in apply_submits(writing, group, reasons)]
    change: EdgeChange | None = None
    if concerned:
        try:
            change = check_edges(writing, batch[0])
        except InvalidInput as refused:
            return [rejected(batch[0], refused)]
    replies = _apply(writing, batch, reasons)
    if change is not None and replies[0].status is ReplyStatus.ACCEPTED:
        write_edges(writing, change, writing.now())
    return replies


def _apart(batch: Sequence[ReceivedRequest], nodes: Collection[UUID]) -> Iterator[list[ReceivedRequest]]:
    for concerned, neighbours in groupby(batch, key=lambda received: received.job_id in nodes):
        together = list(neighbours)
        yield from ([one] for one in together) if concerned else [together]


def _apply(writing: Writing, batch: Sequence[ReceivedRequest], reasons: Mapping[UUID, str]) -> list[Reply]:
    # Before any timer, so that no change of a calendar misses the versions that name it.
    day_sets = lock_calendars(writing.connection, named_calendars(batch))
    created = create_jobs(writing, batch, day_sets)
    edits = [
        received for received in batch if received.job_id not in created.jobs and received.job_id not in created.refused
    ]
    edited = iter(_apply_edits(writing, edits, day_sets, reasons) if edits else ())
    replies: list[Reply] = []
    for received in batch:
        job, refused = created.jobs.get(received.job_id), created.refused.get(received.job_id)
        if job is not None:
            replies.append(accepted_new(received, job.job_text, job.next_run_at))
        else:
            replies.append(next(edited) if refused is None else rejected(received, refused))
    return replies


def _apply_edits(
    writing: Writing, edits: Sequence[ReceivedRequest], day_sets: DaySets, reasons: Mapping[UUID, str]
) -> list[Reply]:
    connection = writing.connection
    unknown = {e.job_id: unknown_calendars(connection, e.tenant, e.of(JobSubmit).job, day_sets) for e in edits}
    locked = lock_jobs(writing, edits)
    for e in edits:
        if e.job_id not in locked.jobs:
            raise Unavailable(f"job {e.key!r} ended long ago, and retention has removed it")
        if e.job_id not in writing.graphs.jobs and locked.jobs[e.job_id].root_job_id not in (None, e.job_id):
            raise outside_graphs(locked.jobs[e.job_id].key)
    passed = _passed(edits, locked)
    fired = {job: state for (job, _), state in read_timer_runs(writing, list(passed.items())).items()}
    today = start_of(day_of(locked.now))  # its runs are all stored
    tenants = {e.tenant for e in edits if passed.get(e.job_id, today) < today}
    kept_since = {tenant: share_kept_since(connection, tenant) for tenant in tenants}
    refused: dict[UUID, Refused] = {}
    for e in edits:
        try:
            ensure_allowed(e.of(JobSubmit).job.target, writing.installation.allow_lists)
            _ensure_fits(e, locked, day_sets, unknown[e.job_id], fired.get(e.job_id))
            _ensure_remembered(passed.get(e.job_id, today), kept_since.get(e.tenant))
        except Refused as error:
            refused[e.job_id] = error.without_frames()
    taken = [e for e in edits if e.job_id not in refused]
    changed = [e for e in taken if not _identical(e, locked.jobs[e.job_id]) or e.job_id in locked.quarantined]
    versions = _versions(writing, changed, locked, day_sets)
    _write(writing, [(e, versions[e.job_id]) for e in changed], locked.now, reasons)
    next_run_at = next_instants(writing, [e.job_id for e in taken])
    return [
        rejected(e, refused[e.job_id])
        if e.job_id in refused
        else accepted(
            e,
            job_id=str(e.job_id),
            job_version=versions[e.job_id].number if e.job_id in versions else locked.jobs[e.job_id].version,
            next_run_at=next_run_at.get(e.job_id),
            unchanged=e.job_id not in versions,
        )
        for e in edits
    ]


def _passed(edits: Sequence[ReceivedRequest], locked: Locked) -> dict[UUID, datetime]:
    passed: dict[UUID, datetime] = {}
    for e in edits:
        job, spec = locked.jobs[e.job_id], e.of(JobSubmit).job
        at = once_at(spec, e.job_id)
        if at is not None and at <= locked.now and not (job.exists and job.schedule_json == once_text(spec)):
            passed[e.job_id] = at
    return passed


def _ensure_remembered(at: datetime, kept_since: datetime | None) -> None:
    try:
        ensure_remembered(at, kept_since)
    except Refused as refused:
        raise at_root(refused) from refused


def _ensure_fits(
    edit: ReceivedRequest, locked: Locked, day_sets: DaySets, unknown: Refused | None, fired: RunState | None
) -> None:
    """Refuse a submit: wrong version, unknown calendar, or it can never fire."""
    job, request = locked.jobs[edit.job_id], edit.of(JobSubmit)
    if request.if_version is not None and request.if_version != (job.version if job.exists else 0):
        raise VersionConflict(request.if_version, job.version if job.exists else None)
    if _identical(edit, job):
        return  # also when nothing is left to fire: a deploy submits the same specs each time
    if unknown is not None:
        raise unknown
    try:
        ensure_can_run(request.job, job, locked.now, day_sets)
        ensure_not_fired(request.job, job, fired)
    except Refused as refused:
        raise at_root(refused) from refused


def _versions(
    writing: Writing, changed: Sequence[ReceivedRequest], locked: Locked, day_sets: DaySets
) -> dict[UUID, NextVersion]:
    specs: dict[UUID, JobSpec] = {e.job_id: e.of(JobSubmit).job for e in changed}
    same = {job for job, spec in specs.items() if same_schedule(spec, locked.jobs[job], locked.now)}
    remaining = apply_overdue(
        writing,
        locked.timers,
        list(specs),
        now=locked.now,
        keep_pauses=same,
        drop_once=[job for job, spec in specs.items() if locked.jobs[job].schedule_json != once_text(spec)],
        skip_quarantined={job: locked.jobs[job].key for job in locked.quarantined - same},
    )
    timers = [locked.timers[job] for job in specs if job in locked.timers]
    run_open = find_open_fixed_delay_runs(writing.connection, timers)
    return {
        job: next_version(
            spec,
            locked.jobs[job],
            VersionInputs(
                now=locked.now,
                remaining_from=remaining.get(job),
                timer_used_up=job in locked.timers and job not in remaining,
                run_open=job in run_open,
                keep_cursor=job in same and (locked.jobs[job].paused or job in locked.quarantined),
            ),
            day_sets,
        )
        for job, spec in specs.items()
    }


def _identical(edit: ReceivedRequest, job: JobRow) -> bool:
    return job.exists and job.spec_hash == edit.spec_hash


def _write(
    writing: Writing, edits: Sequence[tuple[ReceivedRequest, NextVersion]], now: datetime, reasons: Mapping[UUID, str]
) -> None:
    if not edits:
        return
    versions = [version for _, version in edits]
    writing.execute(
        _UPDATE_JOBS,
        job_ids=[v.job.job_id for v in versions],
        versions=[v.number for v in versions],
        spec_hashes=[e.spec_hash for e, _ in edits],
        schedule_kinds=[v.kind for v in versions],
        anchors=[v.anchor for v in versions],
        interval_us=[v.interval_us for v in versions],
        labels=[Jsonb(v.spec.labels) for v in versions],
        paused=[v.paused for v in versions],
        finished=[v.finished for v in versions],
        now=now,
    )
    write_next_versions(writing.connection, versions, now)
    write_job_calendars(writing, {v.job.job_id: (v.job.tenant, v.calendars) for v in versions})
    fit_moves(writing, {v.job.job_id: (v.job, v.effective) for v in versions}, now)
    put_timers(writing, [_timer(version, version.next_at) for version in versions if version.next_at is not None])
    keep_frozen_jobs(writing.connection, [version.job.job_id for version in versions])
    without = [version.job.job_id for version in versions if version.next_at is None]
    if without:
        drop_timers(writing.connection, without)
    events = [
        lifecycle_row(
            writing.installation,
            kind="job.created" if v.created else "job.updated",
            tenant=v.job.tenant,
            job_id=v.job.job_id,
            job_key=v.job.key,
            job_version=v.number,
            shard=v.job.shard,
            now=now,
            reason=reasons.get(v.job.job_id),
        )
        for v in versions
    ]
    writing.append(events)


def _timer(version: NextVersion, next_at: datetime) -> TimerToPut:
    until = version.job.paused_until if version.job.exists else None
    return TimerToPut(version.job, next_at, version.due_at, version.hold_reason, until, version.number)
