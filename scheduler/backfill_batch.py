"""Compute the next runs of a backfill: their instants, versions and overlap policy.

Reads only. The caller has locked the backfill and its job, so no other backfill of the job computes at the same time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.ids import JobId, run_id
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.runs import Cause, Gate, Overlap, order_gates
from tidewheel.schedules.ranges import Range, calendars_of, range_of
from tidewheel.transitions.backfills import Backfill, read_covered_instants, read_versions
from tidewheel.transitions.create import NewRun, RunInputs
from tidewheel.transitions.decision_inputs import read_day_sets

_READ_VERSION_FACTS = Statements("tidewheel.scheduler")["read_version_facts"]

MAX_INSTANTS = 500
"""Instants checked in one batch: five milliseconds."""

MAX_RUNS = 100
"""Runs created in one batch, as in a catch-up."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The next part of a backfill.

    Args:
        cursor_at: The start of the next batch; None if nothing is left.
        more: True if the next batch need not wait for a run to end.
    """

    runs: Sequence[NewRun]
    existing: int
    cursor_at: datetime | None
    more: bool


@dataclass(frozen=True, slots=True)
class _Facts:
    """The columns of a version that its runs need."""

    version: int
    handler: str
    queue: str
    lane: str
    overlap: str
    definition: bytes
    concurrency_key: str | None
    priority: int
    ordering_key: str | None
    passes: bool


def next_batch(connection: Conn, backfill: Backfill, opened: int, now: datetime) -> Batch:
    """Compute the next batch of a backfill.

    Args:
        connection: Inside the transaction that has locked it.

    Raises:
        ScheduleRefused: A version of the range cannot be read any more, or its calendar was deleted.
    """
    occurrences = _range(connection, backfill).iterate(backfill.cursor_at, newest_first=backfill.newest_first)
    instants = list(islice(occurrences, MAX_INSTANTS))
    if not instants:
        return Batch((), 0, None, more=True)
    following = next(occurrences, None)
    ends = instants[0][0], instants[-1][0]
    only_missing = backfill.what == "missing_only"
    accounted = read_covered_instants(connection, backfill.job_id, min(ends), max(ends)) if only_missing else ()
    versions = _read_facts(connection, backfill.job_id, {version for _, version in instants})
    runs: list[NewRun] = []
    existing = 0
    for at, version in instants:
        facts = versions[version]
        if at in accounted:
            existing += 1
        elif len(runs) == MAX_RUNS or opened + len(runs) >= _max_open(backfill, facts):
            return Batch(runs, existing, at, more=len(runs) == MAX_RUNS)
        else:
            runs.append(_run(backfill, at, facts, now))
    return Batch(runs, existing, following[0] if following else None, more=following is not None or not runs)


def _range(connection: Conn, backfill: Backfill) -> Range:
    """Return the rest of the backfill's range."""
    first, last, cursor = backfill.first_at, backfill.last_at, backfill.cursor_at
    if cursor is not None:
        first, last = (first, min(cursor, last)) if backfill.newest_first else (max(cursor, first), last)
    version = backfill.job_version if backfill.versions == "current" else None
    versions = read_versions(connection, backfill.job_id, version=version, first=first, last=last)
    day_sets = read_day_sets(connection, calendars_of(backfill.tenant, versions))
    return range_of(backfill.job_id, backfill.tenant, versions, day_sets, first=first, last=last)


def _read_facts(connection: Conn, job_id: UUID, versions: set[int]) -> dict[int, _Facts]:
    columns = {"job_id": job_id, "versions": sorted(versions)}
    with connection.cursor(row_factory=class_row(_Facts), binary=True) as cursor:
        return {facts.version: facts for facts in cursor.execute(_READ_VERSION_FACTS, columns)}


def _overlap(backfill: Backfill, facts: _Facts) -> str:
    """Return the requested policy, or the version's.

    One of the version's that lets no two runs overlap becomes `buffer_all`. Ordered runs start one after another in any
    case: a version with an order, which may be older than the request, keeps it.
    """
    if facts.ordering_key is not None:
        return Overlap.ALLOW_ALL
    if backfill.overlap is not None:
        return backfill.overlap
    return Overlap.ALLOW_ALL if facts.overlap == Overlap.ALLOW_ALL else Overlap.BUFFER_ALL


def _max_open(backfill: Backfill, facts: _Facts) -> int:
    # Buffered runs start oldest first. For newest first only one run may be open.
    one_by_one = backfill.newest_first and _overlap(backfill, facts) != Overlap.ALLOW_ALL
    return 1 if one_by_one else backfill.max_concurrent


def _run(backfill: Backfill, at: datetime, facts: _Facts, now: datetime) -> NewRun:
    order = facts.ordering_key
    inputs = RunInputs(overlap=None if order else backfill.overlap, traceparent=backfill.traceparent)
    return NewRun(
        run_id=run_id(backfill.job_id, at, Cause.BACKFILL, backfill.backfill_id.bytes, at=backfill.created_at),
        job_id=JobId(backfill.job_id),
        tenant=backfill.tenant,
        job_version=facts.version,
        shard=backfill.shard,
        cause=Cause.BACKFILL,
        queue=facts.queue,
        lane=facts.lane,
        handler=facts.handler,
        overlap=_overlap(backfill, facts),
        scheduled_at=at,
        publish_at=now,
        definition=facts.definition,
        inputs=None if inputs == RunInputs() else inputs,
        concurrency_key=facts.concurrency_key,
        ordering_key=order,
        gates=order_gates(passes=facts.passes) if order else Gate(0),
        priority=facts.priority,
        request_id=backfill.request_id,
        requested_from=backfill.requested_from,
    )
