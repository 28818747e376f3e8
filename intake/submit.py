"""`job.submit`: creates jobs, or gives them a new version, set-wise.

An identical spec is a no-op. An edit settles what is overdue by the version in force, takes back what has not left, and
sets the timer to the new version's first instant after now; ids do not change, so an instant near the edit cannot fire
twice. Rows written: jobs, job_versions, timers (with firing, which meets it on the timer's lock).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from psycopg.types.json import Jsonb

from tidewheel.errors import FieldError, InvalidInput, Refused, VersionConflict
from tidewheel.ids import bucket_of, shard_of
from tidewheel.intake.calendars import hold_calendars, unknown_calendars, write_job_calendars
from tidewheel.intake.locks import JobRow, Locked, lock_jobs, read_now, settle
from tidewheel.intake.new_job_rows import write_new_jobs
from tidewheel.intake.new_jobs import NewJob, ScheduleStarts, find_jobs, new_job
from tidewheel.intake.next_version import (
    NextVersion,
    Place,
    ensure_not_fired,
    ensure_worth_it,
    fires_alike,
    next_version,
    once_at,
    once_text,
)
from tidewheel.intake.override_rules import fit_moves
from tidewheel.intake.request import ReceivedRequest, accepted, accepted_new, rejected
from tidewheel.intake.timers import TimerToPut, next_instants, put_timers, read_timer_runs
from tidewheel.jobs.requests import JobSubmit
from tidewheel.jobs.spec import JobSpec, canonical_spec
from tidewheel.outbox import append
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.runs import RunState
from tidewheel.schedules.decision import DaySet
from tidewheel.schemas.codec import encode
from tidewheel.schemas.definitions import definition_record, needs
from tidewheel.schemas.generated.records import Reply
from tidewheel.transitions.events import lifecycle_row
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.timers import drop_timers, find_open_fixed_delay_runs

_SQL = Statements("tidewheel.intake")
_INSERT_JOB_PLACEHOLDERS = _SQL["insert_job_placeholders"]
_DELETE_JOB_PLACEHOLDERS = _SQL["delete_job_placeholders"]
_UPDATE_JOBS = _SQL["update_jobs"]

_COPY_VERSIONS = (
    "COPY job_versions (job_id, version, tenant, effective_at, spec, schedule, policy, handler, queue, lane, overlap, "
    "definition, has_deadlines) FROM STDIN (FORMAT BINARY)"
)
_VERSION_TYPES = (
    "uuid", "int4", "text", "timestamptz", "jsonb", "text", "text", "text", "text", "text", "text", "bytea", "bool"
)  # fmt: skip

DaySets = Mapping[tuple[str, str], DaySet]


@dataclass(frozen=True, slots=True)
class _Submission:
    """A submit, before its job is looked at; `only_new`, where one that there is stays as it is."""

    received: ReceivedRequest
    request: JobSubmit
    job_id: UUID
    key: str
    spec_hash: bytes
    only_new: bool

    @property
    def spec(self) -> JobSpec:
        return self.request.job


def apply_submits(
    connection: Conn,
    installation: Installation,
    batch: Sequence[ReceivedRequest],
    *,
    reasons: Mapping[UUID, str] | None = None,
    told: bool = True,
    only_new: bool = False,
) -> list[Reply]:
    """Apply submits of different jobs, in the caller's transaction; an answer for each, in their order.

    Args:
        connection: Inside a transaction.
        installation: Shards and topics.
        batch: The submits.
        reasons: What the events say why, by job.
        told: Whether there are events.
        only_new: As of a bulk load: jobs that there are, deleted ones among them, are unchanged whatever is submitted,
            and the intervals of new ones are spread.
    """
    made = _make_new(connection, installation, batch, told=told) if reasons is None and not only_new else {}
    others = [_submission(received, only_new=only_new) for received in batch if received.job_id not in made]
    answers = iter(_apply_each(connection, installation, others, reasons or {}, told=told) if others else ())
    return [
        accepted_new(received, new.job_text, new.next_run_at)
        if (new := made.get(received.job_id)) is not None
        else next(answers)
        for received in batch
    ]


def _make_new(
    connection: Conn, installation: Installation, batch: Sequence[ReceivedRequest], *, told: bool
) -> dict[UUID, NewJob]:
    """Make those jobs of a batch that there are not yet and that nothing is to be looked up for."""
    asked = [one for one in batch if isinstance(one.request, JobSubmit) and one.request.known is not None]
    if not asked:
        return {}
    found = find_jobs(connection, [received.job_id for received in asked])
    starts = ScheduleStarts(read_now(connection))
    new = [new_job(received, starts) for received in asked if received.job_id not in found]
    made = {job.job_id: job for job in new if job is not None}
    written = write_new_jobs(connection, installation, list(made.values()), starts.now, told=told)
    return made if written else {}


def _apply_each(
    connection: Conn,
    installation: Installation,
    chosen: Sequence[_Submission],
    reasons: Mapping[UUID, str],
    *,
    told: bool,
) -> list[Reply]:
    """Apply submits to jobs that there may be, each by what stands."""
    # Before any timer, so that no change of a calendar passes the versions by that name it.
    day_sets = hold_calendars(connection, {pair for submission in chosen for pair in _calendars(submission)})
    unknown = {s.job_id: unknown_calendars(connection, s.received.tenant, s.spec, day_sets) for s in chosen}
    _enter(connection, installation, chosen)
    locked = lock_jobs(connection, installation, [s.received for s in chosen])
    fired = _fired(connection, chosen, locked)
    refused = {
        s.job_id: error
        for s in chosen
        if (error := _refusal(s, locked, day_sets, unknown[s.job_id], fired.get(s.job_id))) is not None
    }
    if refused:
        # The place that was made for a job that is not to be.
        connection.execute(_DELETE_JOB_PLACEHOLDERS, {"job_ids": list(refused)})
    taken = [s for s in chosen if s.job_id not in refused]
    changed = [s for s in taken if not _unchanged(s, locked.jobs[s.job_id])]
    versions = _versions(connection, installation, changed, locked, day_sets)
    pairs = [(s, versions[s.job_id]) for s in changed]
    _write(connection, installation, pairs, locked.now)
    if told:
        _tell(connection, installation, [version for _, version in pairs], locked.now, reasons)
    following = next_instants(connection, [s.job_id for s in taken])
    return [
        rejected(s.received, refused[s.job_id])
        if s.job_id in refused
        else accepted(
            s.received,
            job_id=str(s.job_id),
            job_version=versions[s.job_id].number if s.job_id in versions else locked.jobs[s.job_id].version,
            next_run_at=following.get(s.job_id),
            unchanged=s.job_id not in versions,
        )
        for s in chosen
    ]


def _submission(received: ReceivedRequest, *, only_new: bool) -> _Submission:
    request = received.request
    assert isinstance(request, JobSubmit)  # noqa: S101 - by accept's table
    return _Submission(received, request, received.job_id, received.key or "", received.spec_hash, only_new)


def _calendars(submission: _Submission) -> set[tuple[str, str]]:
    spec = submission.spec
    return {(submission.received.tenant, name) for name in (*spec.exclude_calendars, *spec.include_calendars)}


def _fired(connection: Conn, chosen: Sequence[_Submission], locked: Locked) -> dict[UUID, RunState]:
    """Of each `once` that is new to its job, and whose instant has come: where that instant's run stands."""
    asked: list[tuple[UUID, datetime]] = []
    for s in chosen:
        job = locked.jobs[s.job_id]
        at = once_at(s.spec, s.job_id) if job.version else None
        if at is not None and at <= locked.now and not (job.exists and job.schedule == once_text(s.spec)):
            asked.append((s.job_id, at))
    return {job: state for (job, _), state in read_timer_runs(connection, asked).items()}


def _refusal(
    submission: _Submission, locked: Locked, day_sets: DaySets, unknown: Refused | None, fired: RunState | None
) -> Refused | None:
    """Why a submit is refused, if it is: its version's time has passed, it names no calendar, or it can never fire."""
    job, wanted = locked.jobs[submission.job_id], submission.request.if_version
    if wanted is not None and wanted != (job.version if job.exists else 0):
        return VersionConflict(wanted, job.version if job.exists else None)
    if _unchanged(submission, job):
        return None  # also when nothing is left to fire: a deploy submits again what it always submits
    if unknown is not None:
        return unknown
    try:
        ensure_worth_it(submission.spec, job, locked.now, day_sets, spread=submission.only_new)
        ensure_not_fired(submission.spec, job, fired)
    except Refused as refused:
        return at_root(refused)
    return None


def _versions(
    connection: Conn, installation: Installation, changed: Sequence[_Submission], locked: Locked, day_sets: DaySets
) -> dict[UUID, NextVersion]:
    going_on = {s.job_id for s in changed if fires_alike(s.spec, locked.jobs[s.job_id], locked.now)}
    left = settle(
        connection,
        installation,
        locked,
        [s.job_id for s in changed if locked.jobs[s.job_id].version],
        pauses_go_on=going_on,
        given_up=[s.job_id for s in changed if locked.jobs[s.job_id].schedule != once_text(s.spec)],
    )
    waiting = find_open_fixed_delay_runs(
        connection, [locked.timers[s.job_id] for s in changed if s.job_id in locked.timers]
    )
    return {
        s.job_id: next_version(
            s.spec,
            locked.jobs[s.job_id],
            Place(
                now=locked.now,
                left=left.get(s.job_id),
                settled=s.job_id in locked.timers and s.job_id not in left,
                chained=s.job_id in waiting,
                goes_on=s.job_id in going_on and locked.jobs[s.job_id].paused,
                spread=s.only_new,
            ),
            day_sets,
        )
        for s in changed
    }


def _enter(connection: Conn, installation: Installation, submissions: Sequence[_Submission]) -> None:
    columns: dict[str, object] = {
        "job_ids": [s.job_id for s in submissions],
        "tenants": [s.received.tenant for s in submissions],
        "keys": [s.key for s in submissions],
        "buckets": [bucket_of(s.job_id) for s in submissions],
        "shards": [shard_of(bucket_of(s.job_id), installation.shards) for s in submissions],
    }
    connection.execute(_INSERT_JOB_PLACEHOLDERS, columns)


def _unchanged(submission: _Submission, job: JobRow) -> bool:
    if submission.only_new:
        return job.version > 0
    return job.exists and job.spec_hash == submission.spec_hash


def _write(
    connection: Conn,
    installation: Installation,
    versions: Sequence[tuple[_Submission, NextVersion]],
    now: datetime,
) -> None:
    if not versions:
        return
    _write_jobs(connection, versions, now)
    _copy_versions(connection, versions, now)
    made = [version for _, version in versions]
    named = {v.job.job_id: (v.job.tenant, v.calendars) for v in made if v.job.version or v.calendars}
    write_job_calendars(connection, named)
    fit_moves(connection, installation, {v.job.job_id: (v.job, v.effective) for v in made if v.job.version}, now)
    put_timers(connection, [_timer(version) for version in made if version.next_at is not None])
    without = [version.job.job_id for version in made if version.next_at is None]
    if without:
        drop_timers(connection, without)


def _tell(
    connection: Conn,
    installation: Installation,
    made: Sequence[NextVersion],
    now: datetime,
    reasons: Mapping[UUID, str],
) -> None:
    if not made:
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
        for v in made
    ]
    append(connection, events, shards=installation.shards)


def _timer(version: NextVersion) -> TimerToPut:
    assert version.next_at is not None  # noqa: S101 - who calls has looked
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


def _write_jobs(connection: Conn, versions: Sequence[tuple[_Submission, NextVersion]], now: datetime) -> None:
    columns: dict[str, object] = {
        "job_ids": [v.job.job_id for _, v in versions],
        "versions": [v.number for _, v in versions],
        "spec_hashes": [s.spec_hash for s, _ in versions],
        "schedule_kinds": [v.kind for _, v in versions],
        "anchors": [v.anchor for _, v in versions],
        "interval_us": [v.interval_us for _, v in versions],
        "labels": [Jsonb(v.spec.labels) for _, v in versions],
        "paused": [v.paused for _, v in versions],
        "finished": [v.next_at is None and v.kind != "manual" for _, v in versions],
        "now": now,
    }
    connection.execute(_UPDATE_JOBS, columns)


def _copy_versions(connection: Conn, versions: Sequence[tuple[_Submission, NextVersion]], now: datetime) -> None:
    with connection.cursor() as cursor, cursor.copy(_COPY_VERSIONS) as copy:
        copy.set_types(_VERSION_TYPES)
        for _, v in versions:
            spec = v.spec
            definition = definition_record(
                spec,
                tenant=v.job.tenant,
                job_id=str(v.job.job_id),
                job_version=v.number,
                job_key=v.job.key,
            )
            shown = json.loads(canonical_spec(spec.model_copy(update={"payload": None, "payload_base64": None})))
            copy.write_row(
                (
                    v.job.job_id, v.number, v.job.tenant, now, Jsonb(shown), v.schedule_text, v.policy_text,
                    needs(definition.target), definition.queue, definition.lane, definition.overlap,
                    encode(definition), spec.schedule_to_start is not None or spec.schedule_to_close is not None,
                )
            )  # fmt: skip


def at_root(refused: Refused) -> InvalidInput:
    """The refusal of a spec, with its path from the request's root."""
    error = refused.errors[0]
    base = "job" if error.path in _BESIDE_SCHEDULE else "job.schedule"
    path = f"{base}.{error.path}" if error.path else base
    return InvalidInput([FieldError(path, error.problem, error.remedy)])


_BESIDE_SCHEDULE = {"start_at", "end_at", "max_runs", "exclude_calendars", "include_calendars"}
