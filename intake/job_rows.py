"""Write the rows of new jobs, and of new versions of existing ones, by binary COPY.

The jobs of one batch have few specs and schedules. `_SharedColumns` holds the columns that such jobs share, encoded
once. The definition and the event `job.created` are encoded once, with a placeholder for the values that differ, and
split there (`_DefinitionTemplate`, `_EventTemplate`). Another transaction that creates the same job waits for the
primary key; afterwards the job exists. Rows written: jobs, job_versions, timers, and the events in outbox.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import NamedTuple
from uuid import UUID

from psycopg import errors

from tidewheel.ids import bucket_of, hashed_text, micros, shard_of
from tidewheel.intake.next_version import WITHOUT_OCCURRENCES, NextVersion
from tidewheel.intake.writing import Writing
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.keys import fill_key, is_template
from tidewheel.jobs.schedule import FixedDelaySpec, IntervalSpec, ManualSpec
from tidewheel.jobs.spec import JobSpec, canonical_spec, policy_document
from tidewheel.jobs.spec_cache import CachedSpec, ScheduleTemplate, SpecTemplate
from tidewheel.jobs.strict_json import canonical
from tidewheel.jobs.values import microseconds
from tidewheel.outbox import OutboxLane, OutboxRow, pack
from tidewheel.postgres.pg_binary import (
    NULL,
    bytea,
    columns,
    copy_rows,
    instant,
    int2,
    int4,
    int8,
    text,
    uuid,
)
from tidewheel.postgres.session import Conn
from tidewheel.schedules.decision import HoldReason
from tidewheel.schemas import primitives
from tidewheel.schemas.codec import encode
from tidewheel.schemas.definitions import definition_record, needs
from tidewheel.schemas.generated.records import JobDefinition
from tidewheel.schemas.primitives import PLACEHOLDER, split_at
from tidewheel.transitions.events import lifecycle_row
from tidewheel.transitions.installation import Installation

FIRST = 1  # the version of a new job

# By pattern and tenant. Each entry keeps its pattern, about 15 KiB, even if `jobs.spec_cache` has dropped it.
_TEMPLATES = 512
_TRUE, _FALSE = b"\0\0\0\1\1", b"\0\0\0\1\0"  # boolean columns
_NO_LIMIT = NULL + NULL + NULL + int4(1)
_NO_ORDER = NULL + _FALSE
_NEVER = int8((1 << 63) - 1)  # infinity, as timestamptz
_JSONB = b"\1"  # the version of the binary form; text follows
_FIRST_BYTES = primitives.INT32S[FIRST]

_COPY_JOBS = (
    "COPY jobs (job_id, spec_hash, key, bucket, shard, tenant, version, schedule_kind, interval_anchor, interval_us, "
    "labels, paused, paused_at, created_at, updated_at, finished_at) FROM STDIN (FORMAT BINARY)"
)
_JOB = columns(16)
_COPY_VERSIONS = (
    "COPY job_versions (job_id, spec, definition, tenant, version, effective_at, schedule_json, policy_json, handler, "
    "queue, lane, overlap, has_deadlines, concurrency_key, at_once, every_us, burst, key_template, "
    "workflow_timeout_us, holds_place, priority, ordering_key, passes, dedupe) FROM STDIN (FORMAT BINARY)"
)
_VERSION = columns(24)
_COPY_TIMERS = (
    "COPY timers (job_id, shard, tenant, version, scheduled_at, due_at, hold_reason) FROM STDIN (FORMAT BINARY)"
)
_TIMER = columns(7)


class ScheduleStart(NamedTuple):
    """The start of a new job's schedule.

    `text` is canonical, `anchor` the time when it was first accepted. Without calendars the timer is first due at
    `next_at`, the first instant; that is None for a job that only triggers start.
    """

    text: str
    kind: str
    interval_us: int | None
    anchor: datetime | None
    next_at: datetime | None
    due_at: datetime | None
    fires_at: datetime | None


class NewJob(NamedTuple):
    """A job to create; the spec of a job that was submitted without a key has none."""

    job_id: UUID
    job_text: str
    tenant: str
    key: str
    spec: JobSpec
    spec_hash: bytes
    cached: CachedSpec | None
    start: ScheduleStart

    @property
    def next_run_at(self) -> datetime | None:
        """The time of the next run, for the reply."""
        return None if self.spec.paused else self.start.fires_at


def write_new_jobs(writing: Writing, jobs: Sequence[NewJob], now: datetime, *, emit_events: bool = True) -> bool:
    """Write the rows of new jobs in the caller's transaction; return False, and write none, if one exists."""
    if not jobs:
        return True
    # In one order, so that two transactions which create the same jobs wait in one direction only.
    jobs = sorted(jobs, key=lambda job: job.job_id.int)
    connection, installation = writing.connection, writing.installation
    shards = [shard_of(bucket_of(job.job_id), installation.shards) for job in jobs]
    rows = _Rows(jobs, shards, now)
    try:
        with connection.transaction():  # a savepoint
            copy_rows(connection, _COPY_JOBS, rows.jobs)
    except errors.UniqueViolation:
        return False
    copy_rows(connection, _COPY_VERSIONS, rows.versions)
    copy_rows(connection, _COPY_TIMERS, rows.timers)
    if emit_events:
        writing.append(_created_events(installation, jobs, shards, now))
    return True


def write_next_versions(connection: Conn, versions: Sequence[NextVersion], now: datetime) -> None:
    """Write the `job_versions` rows of edited jobs, in the caller's transaction."""
    copy_rows(connection, _COPY_VERSIONS, [_next_version_row(version, instant(now)) for version in versions])


class _SharedColumns(NamedTuple):
    """The last columns of each table's row, which jobs that differ in key and payload share."""

    job: bytes
    version: bytes
    timer: bytes | None


class _Rows:
    """The rows of one batch of new jobs; shared columns are encoded once."""

    def __init__(self, jobs: Sequence[NewJob], shards: Sequence[int], now: datetime) -> None:
        self.jobs: list[bytes] = []
        self.versions: list[bytes] = []
        self.timers: list[bytes] = []
        self._now = instant(now)
        cache: dict[tuple[str, SpecTemplate, ScheduleTemplate, str], tuple[_SharedColumns, _DefinitionTemplate]] = {}
        for job, shard in zip(jobs, shards, strict=True):
            if job.cached is None:
                self._add_uncached(job, shard)
                continue
            pattern, timing = job.cached
            same = job.tenant, pattern, timing, job.start.text
            cached = cache.get(same)
            if cached is None:
                template = _definition_template(pattern, timing.recurring, timing.chains, job.tenant)
                cached = cache[same] = self._shared(job, template.labels, template.columns), template
            shared, template = cached
            shown = pattern.shown(timing, job.key if job.spec.key is not None else None)
            self._add(job, shard, shown, template.fill(job), shared)

    def _add_uncached(self, job: NewJob, shard: int) -> None:
        record = _definition(job.spec, job.tenant, job.job_text, FIRST, job.key)
        policy = canonical(policy_document(job.spec)).decode()
        shared = self._shared(job, _labels(job.spec), _spec_columns(job.spec, record, policy))
        self._add(job, shard, _spec_without_payload(job.spec), encode(record), shared)

    def _shared(self, job: NewJob, labels: bytes, spec_columns: bytes) -> _SharedColumns:
        start, now, paused = job.start, self._now, job.spec.paused
        begins = text(job.tenant) + int4(FIRST)
        every = NULL if start.interval_us is None else int8(start.interval_us)
        pause = (_TRUE, now) if paused else (_FALSE, NULL)
        finished_at = now if start.next_at is None and start.kind not in WITHOUT_OCCURRENCES else NULL
        columns = (begins, text(start.kind), instant(start.anchor), every, labels, *pause, now, now, finished_at)
        timer = None
        if start.next_at is not None:
            due_at, hold_reason = (_NEVER, text(HoldReason.PAUSE)) if paused else (instant(start.due_at), NULL)
            timer = b"".join((begins, instant(start.next_at), due_at, hold_reason))
        return _SharedColumns(b"".join(columns), _version_columns(begins, now, start.text, spec_columns), timer)

    def _add(self, job: NewJob, shard: int, spec: bytes, definition: bytes, shared: _SharedColumns) -> None:
        job_id, shard_column = uuid(job.job_id), int2(shard)
        own = (_JOB, job_id, bytea(job.spec_hash), text(job.key), int2(bucket_of(job.job_id)), shard_column, shared.job)
        self.jobs.append(b"".join(own))
        self.versions.append(_version_row(job_id, spec, definition, shared.version))
        if shared.timer is not None:
            self.timers.append(b"".join((_TIMER, job_id, shard_column, shared.timer)))


def _next_version_row(version: NextVersion, now: bytes) -> bytes:
    job, spec = version.job, version.spec
    record = _definition(spec, job.tenant, str(job.job_id), version.number, job.key)
    columns = _version_columns(
        text(job.tenant) + int4(version.number),
        now,
        version.schedule_text,
        _spec_columns(spec, record, version.policy_text),
    )
    return _version_row(uuid(job.job_id), _spec_without_payload(spec), encode(record), columns)


def _version_row(job_id: bytes, spec: bytes, definition: bytes, columns: bytes) -> bytes:
    return b"".join((_VERSION, job_id, bytea(_JSONB + spec), bytea(definition), columns))


def _version_columns(tenant_and_number: bytes, effective_at: bytes, schedule: str, spec_columns: bytes) -> bytes:
    return b"".join((tenant_and_number, effective_at, text(schedule), spec_columns))


def _spec_columns(spec: JobSpec, record: JobDefinition, policy: str) -> bytes:
    values = (policy, needs(record.target), record.queue, record.lane, record.overlap)
    has_deadlines = _FALSE if spec.schedule_to_start is None and spec.schedule_to_close is None else _TRUE
    shares = _limit(spec), _template(spec), _occurrences(spec), int2(spec.priority), _order(spec), _dedupe(spec)
    return b"".join((*map(text, values), has_deadlines, *shares))


def _limit(spec: JobSpec) -> bytes:
    key = spec.concurrency_key
    if key is None:
        return _NO_LIMIT
    at_once = NULL if key.places is None else int4(key.places)
    every_us = NULL if key.every_us is None else int8(key.every_us)
    return text(_own_key(key.key, spec)) + at_once + every_us + int4(key.burst or 1)


def _template(spec: JobSpec) -> bytes:
    key = spec.concurrency_key or spec.ordering_key
    return NULL if key is None or not is_template(key.key) else text(key.key)


def _order(spec: JobSpec) -> bytes:
    key = spec.ordering_key
    if key is None:
        return _NO_ORDER
    return text(_own_key(key.key, spec)) + (_TRUE if key.on_failure == "skip" else _FALSE)


def _dedupe(spec: JobSpec) -> bytes:
    return NULL if spec.dedupe is None else text(spec.dedupe.stored())


def _own_key(template: str, spec: JobSpec) -> str:
    """Return the key of runs with the job's own payload; the template if that lacks a field."""
    try:
        return fill_key(template, spec.carried)
    except InvalidValue:  # runs by triggers alone, whose payloads fill it
        return template


def _occurrences(spec: JobSpec) -> bytes:
    timeout = None if spec.workflow is None else spec.workflow.timeout
    return (NULL if timeout is None else int8(microseconds(timeout))) + (_TRUE if spec.holds_place else _FALSE)


def _labels(spec: JobSpec) -> bytes:
    return bytea(_JSONB + canonical(spec.labels))


def _spec_without_payload(spec: JobSpec) -> bytes:
    return canonical_spec(spec.model_copy(update={"payload": None, "payload_base64": None}))


def _definition(spec: JobSpec, tenant: str, job_id: str, version: int, key: str) -> JobDefinition:
    return definition_record(spec, tenant=tenant, job_id=job_id, job_version=version, job_key=key)


class _DefinitionTemplate(NamedTuple):
    """The encoded definition of one pattern's jobs, in parts between the fields that differ.

    `columns` are those of `job_versions` from the policy on, `labels` that of `jobs`.
    """

    head: bytes
    middle: bytes
    tail: bytes
    columns: bytes
    labels: bytes

    def fill(self, job: NewJob) -> bytes:
        return b"".join(
            (
                self.head,
                primitives.text(job.job_text),
                primitives.blob(job.key.encode()),
                _FIRST_BYTES,
                self.middle,
                primitives.blob(job.spec.payload or b""),
                self.tail,
            )
        )


# The definition has of the schedule only whether it recurs, and whether by chaining.
_SCHEDULES = {
    (False, False): ScheduleTemplate(ManualSpec()),
    (True, False): ScheduleTemplate(IntervalSpec(interval=timedelta(hours=1))),
    (True, True): ScheduleTemplate(FixedDelaySpec(fixed_delay=timedelta(hours=1))),
}


@lru_cache(maxsize=_TEMPLATES)
def _definition_template(pattern: SpecTemplate, recurring: bool, chains: bool, tenant: str) -> _DefinitionTemplate:  # noqa: FBT001 - a key
    spec = pattern.job(_SCHEDULES[recurring, chains], PLACEHOLDER, PLACEHOLDER.encode())
    record = _definition(spec, tenant, PLACEHOLDER, FIRST, PLACEHOLDER)
    placeholder = primitives.text(PLACEHOLDER)
    head, middle, tail = split_at(encode(record), placeholder + placeholder + _FIRST_BYTES, placeholder)
    policy = canonical(policy_document(spec)).decode()
    return _DefinitionTemplate(head, middle, tail, _spec_columns(spec, record, policy), _labels(spec))


def _created_events(
    installation: Installation, jobs: Iterable[NewJob], shards: Iterable[int], now: datetime
) -> Iterator[OutboxRow]:
    templates: dict[str, _EventTemplate] = {}
    for job, shard in zip(jobs, shards, strict=True):
        template = templates.get(job.tenant)
        if template is None:
            template = templates[job.tenant] = _EventTemplate(installation, job.tenant, now)
        yield template.fill(job, shard)


class _EventTemplate:
    """The outbox row of a tenant's `job.created` events, without id and key."""

    def __init__(self, installation: Installation, tenant: str, now: datetime) -> None:
        self._installation, self._tenant, self._now = installation, tenant, now
        # The content that `lifecycle_row` derives the event's id from, after the job's id.
        self._content = f"|job.created|{FIRST}|{micros(now)}|None|[]".encode()
        self._avro = installation.content_type == "application/avro"
        row = self._row = self._whole(UUID(PLACEHOLDER), PLACEHOLDER, 0)
        event_id = row.headers[0][1] if not isinstance(row.headers, bytes) else b""
        names = 2 * primitives.text(PLACEHOLDER)
        if self._avro:
            self._head, self._middle, self._tail = split_at(row.value or b"", primitives.blob(event_id), names)
        packed = pack(row.headers) if not isinstance(row.headers, bytes) else row.headers
        self._first_header, self._headers, self._last_headers = split_at(packed, event_id, PLACEHOLDER.encode())

    def fill(self, job: NewJob, shard: int) -> OutboxRow:
        if not self._avro:
            return self._whole(job.job_id, job.key, shard)
        subject = job.job_text.encode()
        event_id = hashed_text(subject + self._content).encode()
        ids = (self._head, primitives.blob(event_id), self._middle, primitives.blob(subject))
        value = b"".join((*ids, primitives.text(job.key), self._tail))
        headers = b"".join((self._first_header, event_id, self._headers, subject, self._last_headers))
        return OutboxRow(shard, OutboxLane.EVENTS, self._row.topic, subject, value, self._now, headers)

    def _whole(self, job_id: UUID, key: str, shard: int) -> OutboxRow:
        return lifecycle_row(
            self._installation,
            kind="job.created",
            tenant=self._tenant,
            job_id=job_id,
            job_key=key,
            job_version=FIRST,
            shard=shard,
            now=self._now,
        )
