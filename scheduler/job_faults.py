"""Decide which errors are a job's own, and when many jobs fail too much alike for that.

Firing quarantines a job for an error of its own data only: SQLSTATE classes 22, 23 and 54 of its row, or an error of
computing its next instant. Any other error leaves the timer due, a little later. So does an error of a job's own that
more than `MAX_ALIKE` jobs have: it is not their data, and the first of them are freed again (docs/adr/0029).
"""

import threading
from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

import psycopg

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import UndecodableMessage
from tidewheel.postgres.faults import MAX_ALIKE, cause_of, kind_of
from tidewheel.postgres.session import is_data_fault
from tidewheel.process.faults import faults
from tidewheel.process.metrics import metrics
from tidewheel.scheduler.decide_batch import DecisionFailed
from tidewheel.transitions.timers import LockedTimer

_WINDOW_SECONDS = 3600.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 30.0
_QUIET_SECONDS = 2 * _LONGEST_PAUSE_SECONDS  # without a failure: each postponed job has been tried again by then
_WORK = "jobs that fail alike"


def is_jobs_own(error: BaseException) -> bool:
    """Return True if a job's own data cause an error, so that it is quarantined.

    A run that has ended twice is none of its job's doing: `finished_runs` refuses it (SQLSTATE 23505).
    """
    if isinstance(error, psycopg.errors.UniqueViolation):
        return not (error.diag.table_name or "").startswith("finished_runs")
    return isinstance(error, DecisionFailed | UndecodableMessage) or is_data_fault(error)


def describe(error: BaseException) -> str:
    """Return an error's type and text, without PostgreSQL's detail, which quotes the row."""
    cause = cause_of(error)
    message = cause.diag.message_primary if isinstance(cause, psycopg.Error) else None
    return f"{type(cause).__name__}: {message or cause}"


class Breaker:
    """Stops quarantining when jobs fail alike; safe from both threads that fire.

    Errors are alike if their SQLSTATE, constraint and column are the same, or their type if PostgreSQL did not raise
    them. The count is of one process.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failed: dict[str, dict[UUID, float]] = {}
        self._quarantined: dict[str, dict[UUID, LockedTimer]] = {}
        self._open_since: dict[str, float] = {}
        self._last = 0.0

    def quarantines(self, error: BaseException, job_id: UUID) -> bool:
        """Record that a job failed alone; return True if its timer is to be quarantined."""
        now, kind = monotonic_seconds(), kind_of(error)
        with self._lock:
            jobs = self._failed.setdefault(kind, {})
            jobs.pop(job_id, None)
            jobs[job_id] = now  # the oldest are in front
            while jobs[oldest := next(iter(jobs))] < now - _WINDOW_SECONDS:
                del jobs[oldest]
            alike = len(jobs)
            own = is_jobs_own(error) and alike <= MAX_ALIKE
            if not own:
                self._open_since.setdefault(kind, now)
                self._last = now
        if not own:
            metrics.count("timers_postponed")
            text = f"more than {MAX_ALIKE} jobs fail with {kind}" if alike > MAX_ALIKE else describe(error)
            faults.report(_WORK, f"{text}; they are not quarantined but tried again. Correct the cause")
        return own

    def add_quarantined(self, error: BaseException, timer: LockedTimer) -> None:
        """Remember a job that was quarantined for an error, with its position."""
        with self._lock:
            timers, failed = self._quarantined.setdefault(kind_of(error), {}), self._failed[kind_of(error)]
            timers[timer.job_id] = timer
            for gone in [job_id for job_id in timers if job_id not in failed]:
                del timers[gone]

    def quarantined(self, error: BaseException) -> list[LockedTimer]:
        """Return the jobs quarantined for an error within the window, once more than `MAX_ALIKE` have it."""
        with self._lock:
            failed = self._failed.get(kind_of(error), {})
            timers = self._quarantined.get(kind_of(error), {}) if len(failed) > MAX_ALIKE else {}
            return [timer for job_id, timer in sorted(timers.items()) if job_id in failed]

    def forget_quarantined(self, error: BaseException, timers: Sequence[LockedTimer]) -> None:
        """Forget quarantined jobs that are freed."""
        with self._lock:
            known = self._quarantined.get(kind_of(error), {})
            for timer in timers:
                known.pop(timer.job_id, None)

    def pause(self, error: BaseException) -> timedelta:
        """Return the time until a postponed job is tried again: as long as its error has lasted."""
        with self._lock:
            since = self._open_since.get(kind_of(error), monotonic_seconds())
        lasted = monotonic_seconds() - since
        return timedelta(seconds=min(max(lasted, _FIRST_PAUSE_SECONDS), _LONGEST_PAUSE_SECONDS))

    def settle(self) -> None:
        """Report that it is over, once no job has failed for a while."""
        if self._open_since and monotonic_seconds() > self._last + _QUIET_SECONDS:
            with self._lock:
                self._open_since.clear()
            faults.clear(_WORK)
