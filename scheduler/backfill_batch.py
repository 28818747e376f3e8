"""What the next runs of a backfill are: which instants, of which versions, under which overlap policy.

Reads only. Who calls has locked the backfill and its job, so that no other backfill of the job looks at the same time.
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
from tidewheel.runs import Cause, Overlap
from tidewheel.schedules.ranges import Range, calendars_of, range_of
from tidewheel.transitions.backfills import Backfill, read_covered_instants, read_versions
from tidewheel.transitions.create import NewRun, RunInputs
from tidewheel.transitions.decision_inputs import read_day_sets

_READ_VERSION_FACTS = Statements("tidewheel.scheduler")["read_version_facts"]

MAX_INSTANTS = 500
"""Instants of one batch: five milliseconds."""

MAX_RUNS = 100
"""Runs of one batch, as in catching up."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What becomes of the next instants.

    Args:
        runs: Those that become runs.
        passed_over: How many are not missing.
        cursor_at: Where the next batch begins; None where nothing is left.
        more: Whether the next batch need not wait for a run to end.
    """

    runs: Sequence[NewRun]
    passed_over: int
    cursor_at: datetime | None
    more: bool


@dataclass(frozen=True, slots=True)
class _Facts:
    """What runs need of their version."""

    version: int
    handler: str | None
    queue: str
    lane: str
    overlap: str
    definition: bytes


def next_batch(connection: Conn, backfill: Backfill, opened: int, now: datetime) -> Batch:
    """Look at the next instants of a backfill.

    Args:
        connection: Inside the transaction that has locked it.
        backfill: Its row.
        opened: How many of its runs are open.
        now: The database's clock.

    Raises:
        ScheduleRefused: A version of the range cannot be read any more, or its calendar is gone.
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
    passed_over = 0
    for at, version in instants:
        facts = versions[version]
        if at in accounted:
            passed_over += 1
        elif len(runs) == MAX_RUNS or opened + len(runs) >= _max_open(backfill, facts):
            return Batch(runs, passed_over, at, more=len(runs) == MAX_RUNS)
        else:
            runs.append(_run(backfill, at, facts, now))
    return Batch(runs, passed_over, following[0] if following else None, more=following is not None or not runs)


def _range(connection: Conn, backfill: Backfill) -> Range:
    """What is left of the backfill's range."""
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
    """The policy asked for, or the job's; one that lets no two run together then lets them wait for each other."""
    if backfill.overlap is not None:
        return backfill.overlap
    return Overlap.ALLOW_ALL if facts.overlap == Overlap.ALLOW_ALL else Overlap.BUFFER_ALL


def _max_open(backfill: Backfill, facts: _Facts) -> int:
    # Runs that wait for a turn get it oldest first: where the newest is to be first, nobody may wait beside it.
    in_turn = backfill.newest_first and _overlap(backfill, facts) != Overlap.ALLOW_ALL
    return 1 if in_turn else backfill.max_concurrent


def _run(backfill: Backfill, at: datetime, facts: _Facts, now: datetime) -> NewRun:
    inputs = RunInputs(overlap=backfill.overlap, traceparent=backfill.traceparent, request_id=backfill.request_id)
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
    )
