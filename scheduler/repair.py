"""Repair timers, active runs and occurrences that a crash or a manual change has left behind.

No transaction of Tidewheel leaves such a job behind. A manual change, or a restore that missed a table, can. Each
repair is logged and counted, since it always has a cause that an operator must find.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import cast
from uuid import UUID

from tidewheel.errors import ScheduleRefused, Unavailable
from tidewheel.ids import first_ids, job_range
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.pg_binary import uuids
from tidewheel.postgres.session import Session, list_ids
from tidewheel.postgres.statements import Statements
from tidewheel.process.metrics import metrics
from tidewheel.runs import RunState
from tidewheel.scheduler.set_aside import SetAside
from tidewheel.schedules.parse import schedule_from_text
from tidewheel.schedules.schedule import FixedDelay, Once, Schedule
from tidewheel.transitions.active_runs import NO_RUN, mark_waiters, release_stale_active_runs, settle_places
from tidewheel.transitions.cancellation import Signal
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.resume import mend_workflow
from tidewheel.transitions.workflows import NO_JOB, lock_workflows

_LOG = logging.getLogger("tidewheel.scheduler")

_SQL = Statements("tidewheel.scheduler")

_MAX_SCANNED = 1000  # active runs scanned in one step: about ten milliseconds
_STALE_AFTER = timedelta(minutes=1)  # a live executor reads its signals within seconds


def repair_missing_timers(session: Session, shard: int, shards: int) -> int:
    """Restore the missing timers of one shard; return their number."""
    first, last = job_range(shard, shards)
    jobs = session.within(list_ids, _SQL["find_missing_timers"], {"first": first, "last": last})
    repaired = _each(jobs, partial(_repair, session), "restore the timer of job")
    what = f"restored the missing timers of {len(repaired)} jobs of shard {shard}"
    return _report("timers_repaired", repaired, what)


def release_stuck_chains(session: Session) -> int:
    """Release fixed_delay jobs that wait for a run that is not open; return their number."""
    released = session.within(list_ids, _SQL["release_held_chains"])
    what = f"released {len(released)} fixed_delay jobs that waited for runs that are not open"
    return _report("timers_repaired", released, what)


def mend_workflows(session: Session, installation: Installation, shard: int) -> int:
    """Mend the occurrences of one shard that have stopped; return their number.

    Places that no occurrence holds any more are released too. Each is found by one statement, so at one instant: a
    transaction that ends a run writes its release, and one that drains a release writes runs or ends the occurrence.
    It is checked again under its lock.
    """
    roots = session.within(list_ids, _SQL["find_stalled_workflows"], _stalled(shard, None))
    mended = _each(roots, partial(_mend, session, installation, shard), "mend occurrence")
    _report("workflows_mended", mended, f"restarted {len(mended)} stalled occurrences")
    _free_places(session, installation, shard)
    return len(mended)


class ActiveRunRepair:
    """Scans the active runs that have waiters, `_MAX_SCANNED` at a time, again and again.

    A run that ends transfers its place as active run in the same transaction, so there is little to repair:

    - an active run all of whose waiters were locked by another transaction at that moment
    - an active run that another transaction had locked when it became active: its end may not release it (ADR 0008)
    - runs that ended, or active runs that were removed, by something other than Tidewheel
    - signals for executors that have died

    Each repair locks the active run first and checks under the lock that its holder is gone.
    """

    def __init__(self, session: Session, installation: Installation) -> None:
        self._session, self._installation = session, installation
        self._after = NO_RUN
        self._failed = SetAside[UUID]()

    def step(self) -> int:
        """Scan some active runs; return how many were transferred or released."""
        with self._session.transaction() as connection:
            columns: dict[str, object] = {"after": self._after, "limit": _MAX_SCANNED}
            rows = connection.execute(_SQL["scan_active_runs"], columns, binary=True).fetchall()
            self._after = cast("UUID", rows[-1][0]) if len(rows) == _MAX_SCANNED else NO_RUN
        left = self._failed.current()
        gone = [job for job, held in cast("list[tuple[UUID, bool]]", rows) if not held and job not in left]
        if not gone:
            return 0
        freed = self._failed.together(gone, self._release, "release the active run of job")
        metrics.count("active_runs_repaired", freed)
        return freed

    def _release(self, jobs: Sequence[UUID]) -> int:
        with self._session.transaction() as connection:
            held = list_ids(connection, _SQL["lock_active_runs"], {"job_ids": list(jobs)})
            return len(release_stale_active_runs(connection, self._installation, held))

    def repair_shard(self, shard: int) -> int:
        """Mark active runs of one shard that have unmarked waiters; return the number of their jobs."""
        first, last = job_range(shard, self._installation.shards)
        columns: dict[str, object] = {"first": first, "last": last, "buffered": RunState.BUFFERED}
        with self._session.transaction() as connection:
            rows = connection.execute(_SQL["find_unmarked_waiters"], columns, binary=True).fetchall()
            jobs = [(cast("UUID", job), str(tenant)) for job, tenant in rows]
            if jobs:
                mark_waiters(connection, jobs)
            stale: dict[str, object] = {"terminate": Signal.TERMINATE, "stale_after": _STALE_AFTER}
            connection.execute(_SQL["drop_stale_signals"], stale)
        ids = [job for job, _ in jobs]
        self._failed.together(ids, self._release, "release the active run of job")
        what = f"released ended active runs of {len(ids)} jobs of shard {shard}, for which other runs waited"
        return _report("active_runs_repaired", ids, what)


def _report(metric: str, repaired: Sequence[UUID], what: str) -> int:
    """Count and log what was repaired; return the number."""
    if repaired:
        metrics.count(metric, len(repaired))
        text = "the scheduler %s: %s; check for manual changes or a partial restore"
        _LOG.error(text, what, first_ids(repaired))
    return len(repaired)


def _each(ids: Iterable[UUID], mend: Callable[[UUID], bool], name: str) -> list[UUID]:
    """Repair one after the other; return those repaired. One that fails is left to the next pass."""
    repaired = list[UUID]()
    for each in ids:
        try:
            if mend(each):
                repaired.append(each)
        except (Unavailable, MemoryError):
            raise
        except Exception:  # noqa: BLE001 - the others must not wait for it
            _LOG.exception("the scheduler cannot %s %s; it tries again at the next pass over the shard", name, each)
    return repaired


def _repair(session: Session, job_id: UUID) -> bool:
    with session.transaction() as connection:
        row = connection.execute(_SQL["lock_job_without_timer"], {"job_id": job_id}, binary=True).fetchone()
        if row is None:
            return False
        tenant, shard, version, schedule, last_at, updated_at, _ = row
        # From the last run that was created, so that occurrences since then are decided like any other downtime.
        known_until = max(cast("datetime", last_at or updated_at), cast("datetime", updated_at))
        try:
            known = schedule_from_text(str(schedule), job_id)
        except ScheduleRefused as error:
            text = "job %s has no timer, and the scheduler cannot restore it: %s; submit the job with a valid schedule"
            _LOG.error(text, job_id, error, extra={"job_id": str(job_id)})
            return False
        following = _following(known, cast("datetime | None", last_at), known_until)
        if following is None:
            return False
        columns = {"job_id": job_id, "tenant": tenant, "shard": shard, "scheduled_at": following, "version": version}
        connection.execute(_SQL["repair_timer"], columns)
    return True


def _following(schedule: Schedule, last_at: datetime | None, known_until: datetime) -> datetime | None:
    if isinstance(schedule, Once):
        # A `once` always fires, even if its instant had passed when it was submitted.
        return schedule.at if last_at is None or last_at < schedule.at else None
    if isinstance(schedule, FixedDelay):
        return schedule.due(known_until, None)
    return schedule.after(known_until)


def _mend(session: Session, installation: Installation, shard: int, root: UUID) -> bool:
    with session.transaction() as connection:
        workflow = lock_workflows(connection, [root]).get(root)
        columns = _stalled(shard, root)
        if workflow is None or not connection.execute(_SQL["find_stalled_workflows"], columns).fetchall():
            return False
        mend_workflow(connection, installation, workflow, read_now(connection))
    return True


def _stalled(shard: int, root: UUID | None) -> dict[str, object]:
    roots = None if root is None else uuids([root])
    return {"shard": shard, "roots": roots, "blocked": RunState.BLOCKED, "no_job": NO_JOB}


def _free_places(session: Session, installation: Installation, shard: int) -> None:
    first, last = job_range(shard, installation.shards)
    with session.transaction() as connection:
        rows = connection.execute(_SQL["find_lost_places"], {"first": first, "last": last}, binary=True).fetchall()
        lost = cast("list[tuple[UUID, UUID]]", rows)
        settle_places(connection, installation, [], lost)
    _report("active_runs_repaired", [job for job, _ in lost], f"released places of {len(lost)} ended occurrences")
