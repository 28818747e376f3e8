"""`job.submit`: creates jobs, or gives them a new version, set-wise.

An identical spec is a no-op. An edit settles what is overdue by the version in force, takes back what has not left, and
sets the timer to the new version's first instant after now; ids do not change, so an instant near the edit cannot fire
twice. Rows written: jobs, job_versions, timers (with firing, which meets it on the timer's lock).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from uuid import UUID

from psycopg.types.json import Jsonb

from tidewheel.db import Conn
from tidewheel.errors import ScheduleRefused
from tidewheel.ids import bucket_of, shard_of
from tidewheel.intake.incoming import Incoming, accepted, rejected
from tidewheel.intake.locks import JobRow, job_id_of, lock_jobs, read_now, settle
from tidewheel.jobs.requests import JobSubmit
from tidewheel.jobs.spec import JobSpec, canonical_spec, schedule_document
from tidewheel.jobs.strict_json import canonical
from tidewheel.outbox import append
from tidewheel.scheduler.recurrence.kinds import Schedule
from tidewheel.scheduler.recurrence.memo import schedule_from_text
from tidewheel.scheduler.recurrence.once import Once
from tidewheel.scheduler.recurrence.schedules import ensure_can_fire
from tidewheel.schemas.codec import encode
from tidewheel.schemas.definitions import definition_record
from tidewheel.schemas.records import Reply
from tidewheel.sql import Statements
from tidewheel.transitions.events import lifecycle_row
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.timers import drop_timers

_SQL = Statements("tidewheel.intake")
_ENTER_JOBS = _SQL["enter_jobs"]
_UPDATE_JOBS = _SQL["update_jobs"]
_PUT_TIMERS = _SQL["put_timers"]
_READ_TIMERS = _SQL["read_timers"]

OLDEST_ONCE = timedelta(days=90)  # the retention of runs: an older one would lie in a partition that is gone

_COPY_VERSIONS = (
    "COPY job_versions (job_id, version, tenant, effective_at, spec, schedule, catch_up, on_resume, handler, queue, "
    "lane, overlap, definition) FROM STDIN (FORMAT BINARY)"
)
_VERSION_TYPES = (
    "uuid", "int4", "text", "timestamptz", "jsonb", "text", "text", "text", "text", "text", "text", "text", "bytea"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Submission:
    """A submit that is well-formed, before its job is looked at."""

    incoming: Incoming
    request: JobSubmit
    job_id: UUID
    key: str
    spec_hash: bytes

    @property
    def spec(self) -> JobSpec:
        return self.request.job


@dataclass(frozen=True, slots=True)
class _Version:
    """A version to be written."""

    submission: _Submission
    job: JobRow
    number: int
    schedule_text: str
    schedule: Schedule
    anchor: datetime | None
    every_us: int | None
    paused: bool
    next_at: datetime | None

    @property
    def created(self) -> bool:
        return not self.job.exists


def apply_submits(connection: Conn, installation: Installation, batch: Sequence[Incoming]) -> list[Reply]:
    """Apply submits of different jobs, in the caller's transaction; an answer for each, in their order."""
    replies: dict[int, Reply] = {}
    submissions: dict[int, _Submission] = {}
    now = read_now(connection)
    for position, incoming in enumerate(batch):
        try:
            submissions[position] = _submission(incoming, now)
        except ScheduleRefused as refused:
            replies[position] = rejected(incoming, refused)
    if submissions:
        replies |= _apply(connection, installation, submissions)
    return [replies[position] for position in range(len(batch))]


def _submission(incoming: Incoming, now: datetime) -> _Submission:
    request = incoming.request
    assert isinstance(request, JobSubmit)  # noqa: S101 - by accept's table
    job = job_id_of(incoming)
    try:
        schedule = schedule_from_text(_schedule_text(request.job, now), job)
        ensure_can_fire(schedule, now)
        _refuse_ancient(schedule, now)
    except ScheduleRefused as refused:
        raise _at_root(refused) from refused
    spec_hash = sha256(canonical_spec(request.job)).digest()
    return _Submission(incoming, request, job, incoming.key or "", spec_hash)


def _apply(connection: Conn, installation: Installation, submissions: dict[int, _Submission]) -> dict[int, Reply]:
    chosen = list(submissions.values())
    _enter(connection, installation, chosen)
    locked = lock_jobs(connection, [submission.incoming for submission in chosen])
    changed = [s for s in chosen if not _unchanged(s, locked.jobs[s.job_id])]
    left = settle(connection, installation, locked, [s.job_id for s in changed if locked.jobs[s.job_id].version])
    settled = {job for job in locked.timers if job not in left}
    versions = {
        s.job_id: _version(
            s, locked.jobs[s.job_id], locked.now, settled=s.job_id in settled, taken_back=s.job_id in left
        )
        for s in changed
    }
    _write(connection, installation, list(versions.values()), locked.now)
    standing = _next_instants(connection, [s.job_id for s in chosen if s.job_id not in versions])
    replies: dict[int, Reply] = {}
    for position, submission in submissions.items():
        version = versions.get(submission.job_id)
        following = standing.get(submission.job_id)
        if version is not None:
            following = None if version.paused else version.next_at
        replies[position] = accepted(
            submission.incoming,
            job_id=str(submission.job_id),
            job_version=version.number if version else locked.jobs[submission.job_id].version,
            next_run_at=following,
            unchanged=version is None,
        )
    return replies


def _enter(connection: Conn, installation: Installation, submissions: Sequence[_Submission]) -> None:
    columns: dict[str, object] = {
        "job_ids": [s.job_id for s in submissions],
        "tenants": [s.incoming.tenant for s in submissions],
        "keys": [s.key for s in submissions],
        "buckets": [bucket_of(s.job_id) for s in submissions],
        "shards": [shard_of(bucket_of(s.job_id), installation.shards) for s in submissions],
    }
    connection.execute(_ENTER_JOBS, columns)


def _unchanged(submission: _Submission, job: JobRow) -> bool:
    return job.exists and job.spec_hash == submission.spec_hash


def _version(submission: _Submission, job: JobRow, now: datetime, *, settled: bool, taken_back: bool) -> _Version:
    spec = submission.spec
    document = schedule_document(spec)
    every = document.get("every_us")
    every_us = every if isinstance(every, int) else None
    anchor = None
    if every_us is not None:
        kept = job.anchor if job.exists and job.every_us == every_us else None
        anchor = kept or now
    text = _schedule_text(spec, anchor or now)
    schedule = schedule_from_text(text, job.job_id)
    following = schedule.after(now)
    if isinstance(schedule, Once):
        # One whose time has passed fires at once, unless this very instant has fired already and was not taken back.
        over = settled or (job.finished_at is not None and not taken_back)
        following = None if job.exists and job.schedule == text and over else schedule.at
    paused = job.paused if job.exists else spec.paused
    return _Version(submission, job, job.version + 1, text, schedule, anchor, every_us, paused, following)


def _write(connection: Conn, installation: Installation, versions: Sequence[_Version], now: datetime) -> None:
    if not versions:
        return
    _write_jobs(connection, versions, now)
    _copy_versions(connection, versions, now)
    put_timers(
        connection,
        [
            (v.job.job_id, v.job.tenant, v.job.shard, v.next_at, v.number, v.paused)
            for v in versions
            if v.next_at is not None
        ],
    )
    without = [v.job.job_id for v in versions if v.next_at is None]
    if without:
        drop_timers(connection, without)
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
        )
        for v in versions
    ]
    append(connection, events, shards=installation.shards)


def _write_jobs(connection: Conn, versions: Sequence[_Version], now: datetime) -> None:
    columns: dict[str, object] = {
        "job_ids": [v.job.job_id for v in versions],
        "versions": [v.number for v in versions],
        "spec_hashes": [v.submission.spec_hash for v in versions],
        "schedule_kinds": [_kind(v.schedule_text) for v in versions],
        "anchors": [v.anchor for v in versions],
        "every_us": [v.every_us for v in versions],
        "labels": [Jsonb(v.submission.spec.labels) for v in versions],
        "paused": [v.paused for v in versions],
        "finished": [v.next_at is None and _kind(v.schedule_text) != "manual" for v in versions],
        "now": now,
    }
    connection.execute(_UPDATE_JOBS, columns)


def _copy_versions(connection: Conn, versions: Sequence[_Version], now: datetime) -> None:
    with connection.cursor() as cursor, cursor.copy(_COPY_VERSIONS) as copy:
        copy.set_types(_VERSION_TYPES)
        for v in versions:
            spec = v.submission.spec
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
                    v.job.job_id, v.number, v.job.tenant, now, Jsonb(shown), v.schedule_text, spec.catch_up,
                    spec.on_resume, definition.target.handler, definition.queue, definition.lane, definition.overlap,
                    encode(definition),
                )
            )  # fmt: skip


def put_timers(connection: Conn, timers: Sequence[tuple[UUID, str, int, datetime, int, bool]]) -> None:
    """Set timers: (job_id, tenant, shard, next instant, version, paused); the timer of a paused job is never due."""
    if not timers:
        return
    columns: dict[str, object] = {
        "job_ids": [timer[0] for timer in timers],
        "tenants": [timer[1] for timer in timers],
        "shards": [timer[2] for timer in timers],
        "due_at": ["infinity" if paused else at.isoformat() for *_, at, _, paused in timers],
        "scheduled_at": [timer[3] for timer in timers],
        "versions": [timer[4] for timer in timers],
    }
    connection.execute(_PUT_TIMERS, columns)


def _next_instants(connection: Conn, job_ids: Sequence[UUID]) -> dict[UUID, datetime]:
    if not job_ids:
        return {}
    found = connection.execute(_READ_TIMERS, {"job_ids": list(job_ids)}, binary=True).fetchall()
    return {job: at for job, at in found if isinstance(job, UUID) and isinstance(at, datetime)}


def _schedule_text(spec: JobSpec, anchor: datetime) -> str:
    """The canonical schedule: what recurrence reads and remembers answers by."""
    document: dict[str, object] = dict(schedule_document(spec))
    if document["kind"] == "interval":
        document["anchor_fires"] = document["anchor"] is not None
        document["anchor"] = document["anchor"] or anchor.isoformat()
    return canonical(document).decode()


def _kind(schedule_text: str) -> str:
    return str(json.loads(schedule_text)["kind"])


def _refuse_ancient(schedule: Schedule, now: datetime) -> None:
    if isinstance(schedule, Once) and schedule.at < now - OLDEST_ONCE:
        problem = f"{schedule.at.isoformat()} is more than {OLDEST_ONCE.days} days ago, longer than runs are kept"
        raise ScheduleRefused(problem, "trigger the job instead", "once")


def _at_root(refused: ScheduleRefused) -> ScheduleRefused:
    error = refused.errors[0]
    base = "job" if error.path in {"start_at", "end_at"} else "job.schedule"
    return ScheduleRefused(error.problem, error.remedy, f"{base}.{error.path}" if error.path else base)
