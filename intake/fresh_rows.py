"""The rows of jobs that there are not yet, copied in: what `submit` would write of each.

Whoever makes the same job at the same moment waits on its primary key, and then it is one that exists. Rows written:
jobs, job_versions, timers; with their events, outbox.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from psycopg import errors

from tidewheel.binary_rows import NULL, bytea, columns, copy_rows, instant, int2, int4, int8, text, uuid
from tidewheel.db import Conn
from tidewheel.ids import bucket_of, shard_of
from tidewheel.intake.fresh import FIRST, Beginning, NewJob
from tidewheel.intake.fresh_definitions import Definition, definition_of
from tidewheel.intake.fresh_events import created_events
from tidewheel.jobs.pattern import Known, Pattern, Timing
from tidewheel.occurrences import Held
from tidewheel.outbox import append
from tidewheel.transitions.installation import Installation

_COPY_JOBS = (
    "COPY jobs (job_id, spec_hash, key, bucket, shard, tenant, version, schedule_kind, anchor, every_us, labels, "
    "paused, paused_at, created_at, updated_at) FROM STDIN (FORMAT BINARY)"
)
_JOB = columns(15)
_COPY_VERSIONS = (
    "COPY job_versions (job_id, spec, definition, tenant, version, effective_at, schedule, policy, handler, queue, "
    "lane, overlap, limited) FROM STDIN (FORMAT BINARY)"
)
_VERSION = columns(13)
_COPY_TIMERS = "COPY timers (job_id, shard, tenant, version, scheduled_at, due_at, held) FROM STDIN (FORMAT BINARY)"
_TIMER = columns(7)

_NEVER = int8((1 << 63) - 1)  # infinity, as timestamptz
_TRUE, _FALSE = b"\0\0\0\1\1", b"\0\0\0\1\0"


def write_new_jobs(
    connection: Conn, installation: Installation, jobs: Sequence[NewJob], now: datetime, *, told: bool = True
) -> bool:
    """Write jobs that there are not yet, in the caller's transaction.

    Args:
        connection: Inside a transaction.
        installation: Shards and topics.
        jobs: Each once.
        now: The clock that their beginnings are of.
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
        ends: dict[tuple[str, Pattern, Timing, str], _Ends] = {}
        for job, shard in zip(jobs, shards, strict=True):
            pattern, timing = job.known
            common = job.tenant, pattern, timing, job.beginning.text
            end = ends.get(common)
            if end is None:
                end = ends[common] = self._made(job.tenant, job.known, job.beginning)
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

    def _made(self, tenant: str, known: Known, beginning: Beginning) -> _Ends:
        (pattern, timing), now = known, self._now
        spec, definition = pattern.spec, definition_of(pattern, timing.recurring, timing.chains, tenant)
        begins = text(tenant) + int4(FIRST)
        every = NULL if timing.every_us is None else int8(timing.every_us)
        paused, paused_at = (_TRUE, now) if spec.paused else (_FALSE, NULL)
        at_anchor = instant(beginning.anchor)
        job = (begins, text(timing.kind), at_anchor, every, definition.labels, paused, paused_at, now, now)
        version = (begins, now, text(beginning.text), definition.columns)
        timer = None
        if beginning.next_at is not None:
            at = instant(beginning.next_at)
            due_at, held = (_NEVER, text(Held.PAUSE)) if spec.paused else (at, NULL)
            timer = b"".join((begins, at, due_at, held))
        return _Ends(b"".join(job), b"".join(version), timer, definition)
