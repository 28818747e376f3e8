"""Create the runs of backfills, a bounded batch at a time.

A batch is one transaction: runs, their messages and the cursor. After a crash the next batch begins where the last
committed one ended. The batch locks the job's row, so that two backfills of one job do not both create a run for one
instant. At most `max_concurrent` runs of a backfill are open at any time.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import Unavailable
from tidewheel.ids import JobId, run_id, run_range
from tidewheel.postgres.session import Conn, Session, list_ids, read_row, read_rows
from tidewheel.postgres.statements import Statements
from tidewheel.process.failpoint import failpoint
from tidewheel.process.metrics import metrics
from tidewheel.runs import Cause, Gate, Overlap, order_gates
from tidewheel.scheduler.job_faults import describe, is_jobs_own
from tidewheel.scheduler.set_aside import SetAside
from tidewheel.schedules.decision import BackfillState
from tidewheel.schedules.ranges import Range, calendars_of, range_of
from tidewheel.transitions.backfills import Backfill, append_backfill_event, read_covered_instants, read_versions
from tidewheel.transitions.create import create_runs
from tidewheel.transitions.decision_inputs import read_day_sets
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.new_runs import NewRun, RunInputs

_LOG = logging.getLogger("tidewheel.scheduler")

_SQL = Statements("tidewheel.scheduler")

MAX_INSTANTS = 500  # checked in one batch: five milliseconds
MAX_RUNS = 100  # created in one batch, as in a catch-up

_EVERY_SECONDS = 0.2  # between two steps: the longest wait of the next run after one has ended
_SHARE_SECONDS = 0.05  # of each step; a batch that has begun by then is the last, since firing comes first
_BEFORE_ALL = UUID(int=0)


@dataclass(frozen=True, slots=True)
class Batch:
    """The next part of a backfill; without `more` the next one waits for a run to end."""

    runs: Sequence[NewRun]
    existing: int
    cursor_at: datetime | None  # the start of the next batch; None if nothing is left
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
    """Compute the next batch of a backfill, which the caller has locked with its job.

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
    first, last, cursor = backfill.first_at, backfill.last_at, backfill.cursor_at
    if cursor is not None:
        first, last = (first, min(cursor, last)) if backfill.newest_first else (max(cursor, first), last)
    version = backfill.job_version if backfill.versions == "current" else None
    versions = read_versions(connection, backfill.job_id, version=version, first=first, last=last)
    day_sets = read_day_sets(connection, calendars_of(backfill.tenant, versions))
    return range_of(backfill.job_id, backfill.tenant, versions, day_sets, first=first, last=last)


def _read_facts(connection: Conn, job_id: UUID, versions: set[int]) -> dict[int, _Facts]:
    columns = {"job_id": job_id, "versions": sorted(versions)}
    return {
        facts.version: facts for facts in read_rows(connection, class_row(_Facts), _SQL["read_version_facts"], columns)
    }


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


@dataclass(frozen=True, slots=True)
class _Progress:
    """The progress of a backfill: `gone` if its job was deleted, `open` runs that have not ended."""

    key: str
    gone: bool
    open: int
    now: datetime


class BackfillLoop:
    """Creates runs for the backfills of a scheduler's shards, in rotation."""

    def __init__(self, session: Session, installation: Installation) -> None:
        self._session, self._installation = session, installation
        self._next = 0.0
        self._after = _BEFORE_ALL
        self._failed = SetAside[UUID]()

    def step(self, shards: Sequence[int]) -> tuple[int, float]:
        """Create runs for up to `_SHARE_SECONDS`; return their number and the seconds until the next step."""
        now = monotonic_seconds()
        if now < self._next:
            return 0, self._next - now
        running = self._running(shards)
        created = self._create(running, until=now + _SHARE_SECONDS)
        self._next = monotonic_seconds() + _EVERY_SECONDS
        return created, _EVERY_SECONDS if running else math.inf

    def _running(self, shards: Sequence[int]) -> list[UUID]:
        """Return the open backfills, beginning after the one that was served last."""
        if not shards:
            return []
        rows = self._session.within(list_ids, _SQL["find_open_backfills"], {"shards": list(shards)})
        left = self._failed.current()
        found = [backfill_id for backfill_id in rows if backfill_id not in left]
        return sorted(found, key=lambda backfill_id: (backfill_id <= self._after, backfill_id))

    def _create(self, running: Sequence[UUID], *, until: float) -> int:
        created = 0
        for backfill_id in running:
            more = True
            while more and monotonic_seconds() < until:
                self._after = backfill_id
                written, more = 0, False
                with self._failed.alone(backfill_id, "go on with, or pause, backfill"):
                    written, more = create_next_runs(self._session, self._installation, backfill_id)
                created += written
        return created


def create_next_runs(session: Session, installation: Installation, backfill_id: UUID) -> tuple[int, bool]:
    """Create the next runs of a backfill, or end it.

    A backfill without a remaining run is finished. One whose job was deleted is cancelled.

    A backfill whose own data fail, or whose next instants cannot be computed, is paused with the error as its reason.

    Returns:
        The number of created runs, and True if the next batch need not wait for a run to end.

    Raises:
        Unavailable: The database was lost. The batch happened wholly or not at all.
    """
    try:
        with session.transaction() as connection:
            result = _batch(connection, installation, backfill_id)
            failpoint("backfilling.before_commit")
    except Unavailable:
        raise
    except Exception as error:
        if not (is_jobs_own(error) or isinstance(error, ValueError | ArithmeticError)):
            raise  # code is wrong: every backfill may fail alike
        _pause_failed(session, installation, backfill_id, error)
        return 0, False
    failpoint("backfilling.after_commit")
    metrics.count("backfilled_runs", result[0])
    return result


def _batch(connection: Conn, installation: Installation, backfill_id: UUID) -> tuple[int, bool]:
    backfill = _lock(connection, backfill_id)
    if backfill is None:
        return 0, False
    progress = _read_progress(connection, backfill)
    if progress.gone:
        _end(connection, installation, backfill, progress, BackfillState.CANCELLED, reason="job_deleted")
    elif backfill.state == BackfillState.PAUSED:
        pass
    elif backfill.cursor_at is not None and progress.open < backfill.max_concurrent:
        return _create_batch(connection, installation, backfill, progress)
    elif backfill.cursor_at is None and not progress.open:
        _end(connection, installation, backfill, progress, BackfillState.FINISHED)
    return 0, False


def _lock(connection: Conn, backfill_id: UUID) -> Backfill | None:
    backfill = read_row(connection, class_row(Backfill), _SQL["lock_open_backfill"], {"backfill_id": backfill_id})
    if backfill is None or not connection.execute(_SQL["lock_backfilled_job"], {"job_id": backfill.job_id}).fetchone():
        return None
    return backfill


def _create_batch(
    connection: Conn, installation: Installation, backfill: Backfill, progress: _Progress
) -> tuple[int, bool]:
    batch = next_batch(connection, backfill, progress.open, progress.now)
    written = create_runs(connection, installation, batch.runs, now=progress.now, repeats=True)
    columns: dict[str, object] = {
        "backfill_id": backfill.backfill_id, "created": len(written), "existing": batch.existing,
        "cursor_at": batch.cursor_at,
    }  # fmt: skip
    connection.execute(_SQL["advance_backfill"], columns)
    return len(written), batch.more


def _read_progress(connection: Conn, backfill: Backfill) -> _Progress:
    first, last = run_range(backfill.job_id, backfill.created_at)
    columns: dict[str, object] = {
        "job_id": backfill.job_id, "job_version": backfill.job_version, "first_run_id": first, "last_run_id": last
    }  # fmt: skip
    progress = read_row(connection, class_row(_Progress), _SQL["read_backfill_progress"], columns)
    assert progress is not None  # noqa: S101 - the job's row is locked
    return progress


def _end(
    connection: Conn,
    installation: Installation,
    backfill: Backfill,
    progress: _Progress,
    state: BackfillState,
    *,
    reason: str | None = None,
) -> None:
    finished_at = None if state is BackfillState.PAUSED else progress.now
    columns: dict[str, object] = {
        "backfill_id": backfill.backfill_id, "state": state, "reason": reason, "finished_at": finished_at
    }  # fmt: skip
    connection.execute(_SQL["end_backfill"], columns)
    kind = f"job.backfill_{state}"
    append_backfill_event(
        connection, installation, kind, backfill, job_key=progress.key, now=progress.now, reason=reason
    )


def _pause_failed(session: Session, installation: Installation, backfill_id: UUID, error: Exception) -> None:
    reason = describe(error)[:1000]
    _LOG.error("backfill %s failed and is paused: %s; correct the error, then resume it", backfill_id, reason)
    with session.transaction() as connection:
        backfill = _lock(connection, backfill_id)
        if backfill is not None and backfill.state == BackfillState.RUNNING:
            progress = _read_progress(connection, backfill)
            _end(connection, installation, backfill, progress, BackfillState.PAUSED, reason=reason)
