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
from uuid import UUID

from psycopg.types.json import Jsonb

from tidewheel.errors import InvalidInput, Refused, Unavailable, VersionConflict
from tidewheel.intake.allowed_targets import ensure_allowed
from tidewheel.intake.calendars import lock_calendars, unknown_calendars, write_job_calendars
from tidewheel.intake.freezes import keep_frozen_jobs
from tidewheel.intake.graphs import EdgeChange, Graphs, check_edges, outside_graphs, write_edges
from tidewheel.intake.job_rows import write_next_versions
from tidewheel.intake.locks import JobRow, Locked, lock_jobs
from tidewheel.intake.new_jobs import create_jobs
from tidewheel.intake.next_version import (
    NextVersion,
    VersionInputs,
    at_root,
    ensure_can_run,
    ensure_not_fired,
    ensure_remembered,
    next_version,
    once_at,
    once_text,
    same_schedule,
)
from tidewheel.intake.overdue import apply_overdue
from tidewheel.intake.override_rows import fit_moves
from tidewheel.intake.request import ReceivedRequest, accepted, accepted_new, rejected
from tidewheel.intake.timers import TimerToPut, next_instants, put_timers, read_timer_runs
from tidewheel.jobs.requests import JobSubmit
from tidewheel.outbox import append
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.partitions import day_of, start_of
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.runs import RunState
from tidewheel.schedules.timer_state import DaySets
from tidewheel.schemas.generated.records import Reply, ReplyStatus
from tidewheel.transitions.events import lifecycle_row
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.kept_since import share_kept_since
from tidewheel.transitions.timers import drop_timers, find_open_fixed_delay_runs

_UPDATE_JOBS = Statements("tidewheel.intake")["update_jobs"]


def apply_submits(
    connection: Conn,
    installation: Installation,
    batch: Sequence[ReceivedRequest],
    *,
    graphs: Graphs,
    reasons: Mapping[UUID, str] | None = None,
) -> list[Reply]:
    """Apply submits of different jobs in the caller's transaction; return a reply for each.

    Raises:
        Unavailable: A job has come into a graph meanwhile: roll back and try again.
    """
    concerned = [received for received in batch if received.job_id in graphs.jobs]
    if concerned and len(batch) > 1:
        groups = _apart(batch, graphs.jobs)
        done = (apply_submits(connection, installation, group, graphs=graphs, reasons=reasons) for group in groups)
        return [reply for replies in done for reply in replies]
    change: EdgeChange | None = None
    if concerned:
        try:
            change = check_edges(connection, batch[0])
        except InvalidInput as refused:
            return [rejected(batch[0], refused)]
    replies = _apply(connection, installation, batch, graphs, reasons or {})
    if change is not None and replies[0].status is ReplyStatus.ACCEPTED:
        write_edges(connection, change, read_now(connection))
    return replies


def _apart(batch: Sequence[ReceivedRequest], nodes: Collection[UUID]) -> Iterator[list[ReceivedRequest]]:
    """Yield each submit that may change edges alone, and the neighbours between them together."""
    for concerned, neighbours in groupby(batch, key=lambda received: received.job_id in nodes):
        together = list(neighbours)
        yield from ([one] for one in together) if concerned else [together]


def _apply(
    connection: Conn,
    installation: Installation,
    batch: Sequence[ReceivedRequest],
    graphs: Graphs,
    reasons: Mapping[UUID, str],
) -> list[Reply]:
    # Before any timer, so that no change of a calendar misses the versions that name it.
    day_sets = lock_calendars(connection, named_calendars(batch))
    created = create_jobs(connection, installation, batch, day_sets)
    edits = [
        received for received in batch if received.job_id not in created.jobs and received.job_id not in created.refused
    ]
    edited = iter(_apply_edits(connection, installation, edits, day_sets, reasons, graphs=graphs) if edits else ())
    replies: list[Reply] = []
    for received in batch:
        job, refused = created.jobs.get(received.job_id), created.refused.get(received.job_id)
        if job is not None:
            replies.append(accepted_new(received, job.job_text, job.next_run_at))
        else:
            replies.append(next(edited) if refused is None else rejected(received, refused))
    return replies


def named_calendars(batch: Sequence[ReceivedRequest]) -> set[tuple[str, str]]:
    """Return the calendars that these submits name, by tenant; a cached spec names none."""
    return {
        (received.tenant, name)
        for received in batch
        if isinstance(received.request, JobSubmit) and received.request.cached is None
        for name in (*received.request.job.exclude_calendars, *received.request.job.include_calendars)
    }


def _submit(received: ReceivedRequest) -> JobSubmit:
    request = received.request
    assert isinstance(request, JobSubmit)  # noqa: S101 - by the table of `apply`
    return request


def _apply_edits(
    connection: Conn,
    installation: Installation,
    edits: Sequence[ReceivedRequest],
    day_sets: DaySets,
    reasons: Mapping[UUID, str],
    *,
    graphs: Graphs,
) -> list[Reply]:
    unknown = {e.job_id: unknown_calendars(connection, e.tenant, _submit(e).job, day_sets) for e in edits}
    locked = lock_jobs(connection, installation, edits)
    for e in edits:
        if e.job_id not in locked.jobs:
            message = f"job {e.key!r} ended long ago, and retention has removed it meanwhile"
            raise Unavailable(message)
        if e.job_id not in graphs.jobs and locked.jobs[e.job_id].root_job_id not in (None, e.job_id):
            raise outside_graphs(locked.jobs[e.job_id].key)
    passed = _passed(edits, locked)
    fired = {job: state for (job, _), state in read_timer_runs(connection, list(passed.items())).items()}
    today = start_of(day_of(locked.now))  # its runs are all stored
    old = {e.job_id: e.tenant for e in edits if passed.get(e.job_id, today) < today}
    kept_since = {job: share_kept_since(connection, tenant, job) for job, tenant in old.items()}
    refused = {
        e.job_id: error
        for e in edits
        if (error := _disallowed(e, installation)) is not None
        or (error := _refusal(e, locked, day_sets, unknown[e.job_id], fired.get(e.job_id))) is not None
        or (error := _forgotten(passed.get(e.job_id, today), kept_since.get(e.job_id))) is not None
    }
    taken = [e for e in edits if e.job_id not in refused]
    changed = [e for e in taken if not _unchanged(e, locked)]
    versions = _versions(connection, installation, changed, locked, day_sets)
    pairs = [(e, versions[e.job_id]) for e in changed]
    _write(connection, installation, pairs, locked.now)
    _append_events(connection, installation, [version for _, version in pairs], locked.now, reasons)
    next_run_at = next_instants(connection, [e.job_id for e in taken])
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
    """Return the instant of each new `once` that has passed."""
    passed: dict[UUID, datetime] = {}
    for e in edits:
        job, at = locked.jobs[e.job_id], once_at(_submit(e).job, e.job_id)
        if at is not None and at <= locked.now and not (job.exists and job.schedule_json == once_text(_submit(e).job)):
            passed[e.job_id] = at
    return passed


def _forgotten(at: datetime, kept_since: datetime | None) -> Refused | None:
    """Return the refusal of a `once` from before the first kept day."""
    try:
        ensure_remembered(at, kept_since)
    except Refused as refused:
        return at_root(refused)
    return None


def _disallowed(edit: ReceivedRequest, installation: Installation) -> Refused | None:
    """Return the refusal of a submit whose target the allow-lists do not name."""
    try:
        ensure_allowed(_submit(edit).job.target, installation.allow_lists)
    except Refused as refused:
        return refused
    return None


def _refusal(
    edit: ReceivedRequest, locked: Locked, day_sets: DaySets, unknown: Refused | None, fired: RunState | None
) -> Refused | None:
    """Return the refusal of a submit: wrong version, unknown calendar, or it can never fire."""
    job, expected = locked.jobs[edit.job_id], _submit(edit).if_version
    if expected is not None and expected != (job.version if job.exists else 0):
        return VersionConflict(expected, job.version if job.exists else None)
    if _identical(edit, job):
        return None  # also when nothing is left to fire: a deploy submits the same specs each time
    if unknown is not None:
        return unknown
    try:
        ensure_can_run(_submit(edit).job, job, locked.now, day_sets)
        ensure_not_fired(_submit(edit).job, job, fired)
    except Refused as refused:
        return at_root(refused)
    return None


def _versions(
    connection: Conn, installation: Installation, changed: Sequence[ReceivedRequest], locked: Locked, day_sets: DaySets
) -> dict[UUID, NextVersion]:
    same = {e.job_id for e in changed if same_schedule(_submit(e).job, locked.jobs[e.job_id], locked.now)}
    remaining = apply_overdue(
        connection,
        installation,
        locked.timers,
        [e.job_id for e in changed],
        now=locked.now,
        keep_pauses=same,
        drop_once=[e.job_id for e in changed if locked.jobs[e.job_id].schedule_json != once_text(_submit(e).job)],
        skip_quarantined={job: locked.jobs[job].key for job in locked.quarantined - same},
    )
    run_open = find_open_fixed_delay_runs(
        connection, [locked.timers[e.job_id] for e in changed if e.job_id in locked.timers]
    )
    return {
        e.job_id: next_version(
            _submit(e).job,
            locked.jobs[e.job_id],
            VersionInputs(
                now=locked.now,
                remaining_from=remaining.get(e.job_id),
                timer_used_up=e.job_id in locked.timers and e.job_id not in remaining,
                run_open=e.job_id in run_open,
                keep_cursor=e.job_id in same and (locked.jobs[e.job_id].paused or e.job_id in locked.quarantined),
            ),
            day_sets,
        )
        for e in changed
    }


def _unchanged(edit: ReceivedRequest, locked: Locked) -> bool:
    return _identical(edit, locked.jobs[edit.job_id]) and edit.job_id not in locked.quarantined


def _identical(edit: ReceivedRequest, job: JobRow) -> bool:
    return job.exists and job.spec_hash == edit.spec_hash


def _write(
    connection: Conn, installation: Installation, edits: Sequence[tuple[ReceivedRequest, NextVersion]], now: datetime
) -> None:
    if not edits:
        return
    _update_jobs(connection, edits, now)
    versions = [version for _, version in edits]
    write_next_versions(connection, versions, now)
    write_job_calendars(connection, {v.job.job_id: (v.job.tenant, v.calendars) for v in versions})
    fit_moves(connection, installation, {v.job.job_id: (v.job, v.effective) for v in versions}, now)
    put_timers(connection, [_timer(version) for version in versions if version.next_at is not None])
    keep_frozen_jobs(connection, [version.job.job_id for version in versions])
    without = [version.job.job_id for version in versions if version.next_at is None]
    if without:
        drop_timers(connection, without)


def _append_events(
    connection: Conn,
    installation: Installation,
    versions: Sequence[NextVersion],
    now: datetime,
    reasons: Mapping[UUID, str],
) -> None:
    if not versions:
        return
    events = [
        lifecycle_row(
            installation,
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
    append(connection, events, shards=installation.shards)


def _timer(version: NextVersion) -> TimerToPut:
    assert version.next_at is not None  # noqa: S101 - the caller has checked
    return TimerToPut(
        job_id=version.job.job_id,
        tenant=version.job.tenant,
        shard=version.job.shard,
        version=version.number,
        scheduled_at=version.next_at,
        due_at=version.due_at,
        hold_reason=version.hold_reason,
        until=version.job.paused_until if version.job.exists else None,
    )


def _update_jobs(connection: Conn, edits: Sequence[tuple[ReceivedRequest, NextVersion]], now: datetime) -> None:
    columns: dict[str, object] = {
        "job_ids": [v.job.job_id for _, v in edits],
        "versions": [v.number for _, v in edits],
        "spec_hashes": [e.spec_hash for e, _ in edits],
        "schedule_kinds": [v.kind for _, v in edits],
        "anchors": [v.anchor for _, v in edits],
        "interval_us": [v.interval_us for _, v in edits],
        "labels": [Jsonb(v.spec.labels) for _, v in edits],
        "paused": [v.paused for _, v in edits],
        "finished": [v.finished for _, v in edits],
        "now": now,
    }
    connection.execute(_UPDATE_JOBS, columns)
