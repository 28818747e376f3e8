"""The rows of jobs that there are not yet, copied in: what `submit` would write of each.

Whoever makes the same job at the same moment waits on its primary key, and then it is one that exists. Rows written:
jobs, job_versions, timers; with their events, outbox.

The definitions of new jobs, put together from what jobs of one pattern share.

The events of new jobs, `job.created`: those that `lifecycle_row` makes, cut where the jobs of one tenant differ.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import NamedTuple
from uuid import UUID

from psycopg import errors

from tidewheel.ids import bucket_of, hashed_text, micros, shard_of
from tidewheel.intake.new_jobs import FIRST, NewJob, ScheduleStart
from tidewheel.jobs.schedule import FixedDelaySpec, IntervalSpec, ManualSpec
from tidewheel.jobs.spec import policy_document
from tidewheel.jobs.spec_cache import CachedSpec, ScheduleTemplate, SpecTemplate
from tidewheel.jobs.strict_json import canonical
from tidewheel.outbox import OutboxLane, OutboxRow, append, pack
from tidewheel.postgres.pg_copy import NULL, bytea, columns, copy_rows, instant, int2, int4, int8, text, uuid
from tidewheel.postgres.session import Conn
from tidewheel.schedules.decision import HoldReason
from tidewheel.schemas import primitives
from tidewheel.schemas.codec import encode
from tidewheel.schemas.definitions import definition_record, needs
from tidewheel.schemas.templates import PLACEHOLDER, split_at
from tidewheel.transitions.events import lifecycle_row
from tidewheel.transitions.installation import Installation

# By pattern and tenant; each keeps its pattern, some 15 KiB, also where `jobs.pattern` has forgotten it.
_REMEMBERED = 512
_TRUE, _FALSE = b"\0\0\0\1\1", b"\0\0\0\1\0"  # boolean columns


class Definition(NamedTuple):
    """The message that carries a JobDefinition, cut where jobs of one pattern differ; with the columns beside it.

    Args:
        head: Up to the job's id.
        middle: From behind its version up to the payload.
        tail: From behind the payload.
        columns: Of the version: from its policy on.
        labels: A column of the job.
    """

    head: bytes
    middle: bytes
    tail: bytes
    columns: bytes
    labels: bytes

    def of(self, job: NewJob) -> bytes:
        """The definition of a new job."""
        key = job.key.encode()
        return b"".join(
            (
                self.head,
                primitives.text(job.job_text),
                primitives.blob(key),
                _VERSION_NUMBER,
                self.middle,
                primitives.blob(job.payload or b""),
                self.tail,
            )
        )


_VERSION_NUMBER = primitives.int32(FIRST)

_SCHEDULES = {
    (False, False): ScheduleTemplate(ManualSpec()),
    (True, False): ScheduleTemplate(IntervalSpec(interval=timedelta(hours=1))),
    (True, True): ScheduleTemplate(FixedDelaySpec(fixed_delay=timedelta(hours=1))),
}


@lru_cache(maxsize=_REMEMBERED)
def definition_of(pattern: SpecTemplate, recurring: bool, chains: bool, tenant: str) -> Definition:  # noqa: FBT001 - a key
    """The definition of such jobs: of the schedule it says whether it recurs, and whether by chaining."""
    spec = pattern.job(_SCHEDULES[recurring, chains], PLACEHOLDER, PLACEHOLDER.encode())
    record = definition_record(spec, tenant=tenant, job_id=PLACEHOLDER, job_version=FIRST, job_key=PLACEHOLDER)
    mark = primitives.text(PLACEHOLDER)
    head, middle, tail = split_at(encode(record), mark + mark + _VERSION_NUMBER, mark)
    policy = canonical(policy_document(spec)).decode()
    words = (policy, needs(record.target), record.queue, record.lane, record.overlap)
    limited = _FALSE if spec.schedule_to_start is None and spec.schedule_to_close is None else _TRUE
    labels = bytea(b"\1" + canonical(spec.labels))
    return Definition(head, middle, tail, b"".join((*map(text, words), limited)), labels)


def created_events(
    installation: Installation, jobs: Iterable[NewJob], shards: Iterable[int], now: datetime
) -> Iterator[OutboxRow]:
    """The event of each job, in their order."""
    cut: dict[str, _Event] = {}
    for job, shard in zip(jobs, shards, strict=True):
        event = cut.get(job.tenant)
        if event is None:
            event = cut[job.tenant] = _Event(installation, job.tenant, now)
        yield event.of(job, shard)


class _Event:
    """The event of a tenant's new jobs."""

    def __init__(self, installation: Installation, tenant: str, now: datetime) -> None:
        self._installation, self._tenant, self._now = installation, tenant, now
        self._told = f"|job.created|{FIRST}|{micros(now)}|None|[]".encode()
        self._avro = installation.content_type == "application/avro"
        row = self._row = self._whole(UUID(PLACEHOLDER), PLACEHOLDER, 0)
        event_id = row.headers[0][1] if not isinstance(row.headers, bytes) else b""
        mark = primitives.text(PLACEHOLDER)
        if self._avro:
            self._head, self._middle, self._tail = split_at(row.value or b"", primitives.blob(event_id), mark + mark)
        packed = pack(row.headers) if not isinstance(row.headers, bytes) else row.headers
        self._first_header, self._headers, self._last_headers = split_at(packed, event_id, PLACEHOLDER.encode())

    def of(self, job: NewJob, shard: int) -> OutboxRow:
        if not self._avro:
            return self._whole(job.job_id, job.key, shard)
        subject = job.job_text.encode()
        event_id = hashed_text(subject + self._told).encode()
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


_COPY_JOBS = (
    "COPY jobs (job_id, spec_hash, key, bucket, shard, tenant, version, schedule_kind, interval_anchor, interval_us, "
    "labels, paused, paused_at, created_at, updated_at) FROM STDIN (FORMAT BINARY)"
)
_JOB = columns(15)
_COPY_VERSIONS = (
    "COPY job_versions (job_id, spec, definition, tenant, version, effective_at, schedule, policy, handler, queue, "
    "lane, overlap, has_deadlines) FROM STDIN (FORMAT BINARY)"
)
_VERSION = columns(13)
_COPY_TIMERS = (
    "COPY timers (job_id, shard, tenant, version, scheduled_at, due_at, hold_reason) FROM STDIN (FORMAT BINARY)"
)
_TIMER = columns(7)

_NEVER = int8((1 << 63) - 1)  # infinity, as timestamptz


def write_new_jobs(
    connection: Conn, installation: Installation, jobs: Sequence[NewJob], now: datetime, *, told: bool = True
) -> bool:
    """Write jobs that there are not yet, in the caller's transaction.

    Args:
        connection: Inside a transaction.
        installation: Shards and topics.
        jobs: Each once.
        now: The clock that their starts are of.
        told: Whether each has its event.

    Returns:
        False where somebody else has made one of them at the same moment; then none was written.
    """
    if not jobs:
        return True
    # In one order: two who make the same ones wait for each other in one direction only.
    jobs = sorted(jobs, key=lambda job: job.job_id.int)
    shards = [shard_of(bucket_of(job.job_id), installation.shards) for job in jobs]
    rows = _Rows(jobs, shards, now)
    try:
        with connection.transaction():  # a savepoint
            copy_rows(connection, _COPY_JOBS, rows.jobs)
    except errors.UniqueViolation:
        return False
    copy_rows(connection, _COPY_VERSIONS, rows.versions)
    copy_rows(connection, _COPY_TIMERS, rows.timers)
    if told:
        append(connection, created_events(installation, jobs, shards, now), shards=installation.shards)
    return True


class _Ends(NamedTuple):
    """What the rows of jobs that differ in key and payload have in common: their last columns."""

    job: bytes
    version: bytes
    timer: bytes | None
    definition: Definition


class _Rows:
    """The rows of one batch; what they have in common is made once."""

    def __init__(self, jobs: Sequence[NewJob], shards: Sequence[int], now: datetime) -> None:
        self.jobs: list[bytes] = []
        self.versions: list[bytes] = []
        self.timers: list[bytes] = []
        self._now = instant(now)
        ends: dict[tuple[str, SpecTemplate, ScheduleTemplate, str], _Ends] = {}
        for job, shard in zip(jobs, shards, strict=True):
            pattern, timing = job.known
            common = job.tenant, pattern, timing, job.start.text
            end = ends.get(common)
            if end is None:
                end = ends[common] = self._made(job.tenant, job.known, job.start)
            self._add(job, shard, end)

    def _add(self, job: NewJob, shard: int, end: _Ends) -> None:
        pattern, timing = job.known
        named, placed = uuid(job.job_id), int2(shard)
        # jsonb as it is sent: its version, and text.
        spec = bytea(b"\1" + pattern.shown(timing, job.key if job.named else None))
        own = (_JOB, named, bytea(job.spec_hash), text(job.key), int2(bucket_of(job.job_id)), placed, end.job)
        self.jobs.append(b"".join(own))
        self.versions.append(b"".join((_VERSION, named, spec, bytea(end.definition.of(job)), end.version)))
        if end.timer is not None:
            self.timers.append(b"".join((_TIMER, named, placed, end.timer)))

    def _made(self, tenant: str, known: CachedSpec, start: ScheduleStart) -> _Ends:
        (pattern, timing), now = known, self._now
        spec, definition = pattern.spec, definition_of(pattern, timing.recurring, timing.chains, tenant)
        begins = text(tenant) + int4(FIRST)
        every = NULL if timing.interval_us is None else int8(timing.interval_us)
        paused, paused_at = (_TRUE, now) if spec.paused else (_FALSE, NULL)
        at_anchor = instant(start.anchor)
        job = (begins, text(timing.kind), at_anchor, every, definition.labels, paused, paused_at, now, now)
        version = (begins, now, text(start.text), definition.columns)
        timer = None
        if start.next_at is not None:
            at = instant(start.next_at)
            due_at, held = (_NEVER, text(HoldReason.PAUSE)) if spec.paused else (at, NULL)
            timer = b"".join((begins, at, due_at, held))
        return _Ends(b"".join(job), b"".join(version), timer, definition)
