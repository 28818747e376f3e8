"""Decide about the timers of a batch, and quarantine or pause a job whose own error fails it.

Firing quarantines a job for an error of its own data only: SQLSTATE classes 22, 23 and 54 of its row, or an error of
computing its next instant. Any other error leaves the timer due, a little later. So does an error of a job's own that
more than `MAX_ALIKE` jobs have: it is not their data, and the first of them are freed again (docs/adr/0029).

Each is one transaction. The timer's position stays, so no occurrence is lost. Killed before its commit: the timer is
due and fails again, or the job stays quarantined until a submit or `tidewheel job release`.
"""

import logging
import threading
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

import psycopg

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import UndecodableMessage
from tidewheel.outbox import append
from tidewheel.postgres.faults import MAX_ALIKE, cause_of, kind_of
from tidewheel.postgres.session import Session, is_data_fault
from tidewheel.postgres.statements import Statements
from tidewheel.process.failpoint import failpoint
from tidewheel.process.logs import faults
from tidewheel.process.metrics import metrics
from tidewheel.schedules.decide import decide, decide_on_time, hold_for_run, on_resume, with_jitter
from tidewheel.schedules.decision import Decision, HoldReason
from tidewheel.schedules.schedule import TICK
from tidewheel.schedules.timer_state import TimerState, timer_state
from tidewheel.transitions.decision_inputs import DecisionInputs
from tidewheel.transitions.events import lifecycle_row
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.timers import LockedTimer, release_quarantined

_LOG = logging.getLogger("tidewheel.scheduler")

_SQL = Statements("tidewheel.scheduler")

_DecisionKey = tuple[str, str, datetime, datetime | None]

_WINDOW_SECONDS = 3600.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 30.0
_QUIET_SECONDS = 2 * _LONGEST_PAUSE_SECONDS  # without a failure: each postponed job has been tried again by then
_WORK = "jobs that fail alike"


class DecisionFailed(Exception):
    """The next occurrence of a job cannot be computed; `__cause__` is the error."""


class BatchDecider:
    """Decides each distinct (schedule, policy, instant) once: timers that share them share the decision.

    `waiting` has the fixed_delay jobs whose last run is open.
    """

    def __init__(
        self,
        inputs: DecisionInputs,
        waiting: Collection[UUID],
        pause_ends: Mapping[UUID, datetime],
        *,
        now: datetime,
        horizon: datetime,
        misfire_after: timedelta,
    ) -> None:
        self._inputs, self._waiting, self._pause_ends = inputs, waiting, pause_ends
        self._now, self._horizon, self._misfire_after = now, horizon, misfire_after
        self._decided: dict[_DecisionKey, tuple[TimerState | None, Decision]] = {}

    def __call__(self, timer: LockedTimer) -> Decision:
        """Decide about a timer."""
        try:
            if timer.hold_reason is not None or timer.overridden:
                return self._decide_alone(timer)
            key = (timer.schedule_json, timer.policy_json, timer.scheduled_at, timer.catch_up_end)
            state, decision = self._decided.get(key) or self._decide(timer, key)
            return decision if state is None else with_jitter(decision, state, timer.job_id)
        except MemoryError:
            raise  # of this process
        except Exception as error:
            # Only this job's schedule, policy and overrides are read here: the error is its own.
            raise DecisionFailed from error

    def _decide(self, timer: LockedTimer, key: _DecisionKey) -> tuple[TimerState | None, Decision]:
        decided = decide_on_time(timer, now=self._now, horizon=self._horizon, misfire_after=self._misfire_after)
        if decided is not None:
            self._decided[key] = answer = None, decided
            return answer
        state = self._state(timer)
        decision = decide(state, now=self._now, horizon=self._horizon, misfire_after=self._misfire_after)
        if state.plain and not state.schedule.hashed:
            self._decided[key] = state, decision
        return state, decision

    def _decide_alone(self, timer: LockedTimer) -> Decision:
        """Decide about a timer with a hold or overrides, whose decision no other timer shares."""
        state = self._state(timer)
        if timer.hold_reason == HoldReason.PAUSE:
            # The pause ended at `paused_until`, not at this poll. The time since then counts as downtime.
            ended = on_resume(state, now=self._pause_ends.get(timer.job_id, self._now) - TICK)
            return hold_for_run(ended) if timer.job_id in self._waiting else ended
        decision = decide(state, now=self._now, horizon=self._horizon, misfire_after=self._misfire_after)
        return with_jitter(decision, state, timer.job_id)

    def _state(self, timer: LockedTimer) -> TimerState:
        return timer_state(timer, self._inputs.day_sets, self._inputs.of(timer))


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
            faults.report(
                _WORK, f"{text}; the scheduler keeps trying these jobs and quarantines none. Correct the cause"
            )
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


def postpone(session: Session, timer: LockedTimer, until: datetime) -> None:
    """Try a timer again later."""
    columns = {
        "job_id": timer.job_id,
        "version": timer.version,
        "scheduled_at": timer.scheduled_at,
        "due_at": timer.due_at,
        "until": until,
    }
    with session.transaction() as connection:
        connection.execute(_SQL["postpone_timer"], columns)


def quarantine(
    session: Session, installation: Installation, timer: LockedTimer, error: BaseException, now: datetime
) -> None:
    """Quarantine a job with its error."""
    job_id = timer.job_id
    text = describe(error)
    _LOG.error(
        "job %s is quarantined: %s; correct the cause, then submit the job again or run `tidewheel job release`",
        job_id,
        text,
        extra={"job_id": str(job_id)},
    )
    with session.transaction() as connection:
        key_columns = {"job_id": job_id, "version": timer.version, "scheduled_at": timer.scheduled_at}
        disabled = connection.execute(_SQL["quarantine_timer"], key_columns).fetchone()
        if disabled is None:
            return
        tenant, shard, version = disabled
        key = connection.execute(_SQL["read_key"], {"job_id": job_id}).fetchone()
        connection.execute(_SQL["quarantine_job"], {"tenant": tenant, "job_id": job_id, "error": text})
        event = lifecycle_row(
            installation,
            kind="job.quarantined",
            tenant=str(tenant),
            job_id=job_id,
            job_key=str(key[0]) if key else "",
            job_version=version if isinstance(version, int) else None,
            shard=shard if isinstance(shard, int) else 0,
            now=now,
            reason=text[:1000],
        )
        append(connection, [event], shards=installation.shards)
    metrics.count("jobs_quarantined")


def free(
    session: Session,
    installation: Installation,
    timers: Sequence[LockedTimer],
    error: BaseException,
    *,
    now: datetime,
    until: datetime,
) -> None:
    """Release quarantined jobs whose error is common, and postpone them as the others that have it.

    A job that was edited or released since its timer was quarantined stays as it is.
    """
    common = f"more jobs fail with {kind_of(error)}"
    with session.transaction() as connection:
        connection.execute(_SQL["lock_quarantined_timers"], {"job_ids": [timer.job_id for timer in timers]})
        freed = release_quarantined(connection, installation, timers, now=now, until=until, reason=common)
        failpoint("freeing.before_commit")
    failpoint("freeing.after_commit")
    if freed:
        keys = ", ".join(job.key for job in freed)
        _LOG.warning("released quarantined jobs to try them again, because %s: %s", common, keys)
