"""End or requeue open runs whose deadline has passed while no executor owns them.

No executor owns a run that waits for its start, for the job's active run, for its next attempt or for an external
result. PostgreSQL keeps its deadline, and any scheduler acts on it. While an executor owns a run, that executor
enforces its deadlines. No claim starts a run whose deadline has passed. A heartbeat or an external result that comes
first wins, since each row is locked before the decision.

The deadline of an occurrence of a workflow ends it as a cancel does, but as `timed_out`. No drain releases a run of it
from the commit on. Its open runs are cancelled within about a second, and it ends when all of them have ended. A paused
occurrence has its deadline too.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import cast
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.clock import monotonic_seconds
from tidewheel.postgres.pg_binary import uuids
from tidewheel.postgres.session import Conn, RowsLocked, Session, list_ids, read_rows, readable_rows
from tidewheel.postgres.statements import Statements
from tidewheel.process.failpoint import failpoint
from tidewheel.runs import OWNED, AttemptOutcome, Cause, Move, RunState, sources
from tidewheel.scheduler.set_aside import SetAside
from tidewheel.schemas.generated.records import JobDefinition
from tidewheel.transitions.finish import finish_runs
from tidewheel.transitions.finished import (
    FINAL_TIMEOUTS,
    Failure,
    RunEnd,
    Timeout,
    next_attempt,
    timeout_message,
    timeout_type,
)
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.messages import DEFINITIONS, read_definitions
from tidewheel.transitions.places import FreedPlace
from tidewheel.transitions.requeue import Requeue, requeue_runs
from tidewheel.transitions.run_keys import settle_keys
from tidewheel.transitions.workflows import cancel_open_runs, lock_workflows

_LOG = logging.getLogger("tidewheel.scheduler")

_SQL = Statements("tidewheel.scheduler")
_SET_WAITS = Statements("tidewheel.transitions")["set_waits"]

FROZEN = "frozen"  # the reason of a run whose deadline passed under a freeze
WORKFLOW_TIMEOUT = "workflow_timeout"

_STATES = [state for state in sources(Move.TIME_OUT) if state not in OWNED]
_AHEAD = timedelta(seconds=1)  # the range of a probe, and the time for which its result holds
_BUSY_SECONDS = 0.05  # until the next step when other transactions hold all overdue rows
_MAX_RUNS = 500  # runs in one transaction: some tens of milliseconds
_MAX_WORKFLOWS = 50  # in one step, each in a transaction of its own: an occurrence may have 10,000 open runs
_LOCK_TIMEOUT = "50ms"  # a drain holds an occurrence for some tens of milliseconds


@dataclass(frozen=True, slots=True)
class OverdueRun:
    """An open run whose deadline has passed, with the keys of the rows to lock before it."""

    run_id: UUID
    job_id: UUID
    job_version: int
    cause: str


@dataclass(frozen=True, slots=True)
class LockedOverdueRun:
    """An overdue run under its lock."""

    run_id: UUID
    job_id: UUID
    job_version: int
    state: str
    attempt: int
    failed_attempts: int
    executor_id: UUID | None
    deadline_at: datetime
    schedule_to_close_at: datetime | None
    external_deadline_at: datetime | None
    now: datetime
    frozen: bool = False


class Deadlines:
    """Probes the earliest deadline at most once a second, unless one is about to pass, and times out runs."""

    def __init__(self, session: Session, installation: Installation) -> None:
        self._session, self._installation = session, installation
        self._failed = SetAside[UUID]()
        self._next_poll = 0.0

    def step(self) -> tuple[int, float]:
        """Time out up to `_MAX_RUNS` runs; return their number and the seconds until the next step."""
        now = monotonic_seconds()
        if now < self._next_poll:
            return 0, self._next_poll - now
        pause = self._pause()
        moved = 0
        if pause <= 0:
            moved = self._time_out()
            pause = 0.0 if moved else _BUSY_SECONDS
        self._next_poll = monotonic_seconds() + pause
        return moved, pause

    def _pause(self) -> float:
        """Return the seconds until the next deadline, at most `_AHEAD`; 0 or less if one has passed."""
        columns: dict[str, object] = {"ahead": _AHEAD, "states": _STATES, "left": uuids(self._failed.current())}
        with self._session.transaction() as connection:
            row = connection.execute(_SQL["probe_deadlines"], columns, binary=True).fetchone()
        now, earliest = cast("tuple[datetime, datetime | None]", row)
        return (_AHEAD if earliest is None else earliest - now).total_seconds()

    def _time_out(self) -> int:
        columns: dict[str, object] = {"states": _STATES, "left": uuids(self._failed.current()), "limit": _MAX_RUNS}
        with (
            self._session.transaction() as connection,
            connection.cursor(row_factory=class_row(OverdueRun), binary=True) as cursor,
        ):
            found = readable_rows(cursor.execute(_SQL["find_overdue_runs"], columns))
        return self._failed.runs_together({one.run_id: one for one in found}, self._apply, "apply the timeout of run")

    def _apply(self, found: Sequence[OverdueRun]) -> int:
        with self._session.transaction() as connection:
            versions = [(one.job_id, one.job_version) for one in found]
            stored = read_definitions(connection, versions)
            definitions = {version: DEFINITIONS.of(stored[version]) for version in set(versions)}
            _lock_before(connection, found, definitions)
            ends: list[RunEnd] = []
            requeues: list[Requeue] = []
            for row in _lock(connection, found):
                decided = decide_timeout(row, definitions[row.job_id, row.job_version])
                if isinstance(decided, RunEnd):
                    ends.append(decided)
                else:
                    requeues.append(decided)
            freed: list[FreedPlace] = []
            requeued = requeue_runs(connection, self._installation, requeues, freed_keys=freed).runs
            ended = finish_runs(connection, self._installation, ends, freed_keys=freed).states
            settle_keys(connection, self._installation, freed=freed)
        return len(requeued) + len(ended)


def expired_timeout(row: LockedOverdueRun) -> Timeout:
    """Return the timeout that has passed: of several a final one first, then the earliest."""
    if (
        row.schedule_to_close_at is not None
        and row.schedule_to_close_at <= row.now
        and (row.attempt or row.schedule_to_close_at <= row.deadline_at)
    ):
        return Timeout.SCHEDULE_TO_CLOSE
    if row.state != RunState.WAITING:
        return Timeout.SCHEDULE_TO_START
    if row.external_deadline_at is not None and row.external_deadline_at <= row.deadline_at:
        return Timeout.ASYNC_TIMEOUT
    return Timeout.HEARTBEAT


def decide_timeout(row: LockedOverdueRun, definition: JobDefinition) -> RunEnd | Requeue:
    """Decide whether an overdue run ends or is requeued."""
    which = expired_timeout(row)
    if which is Timeout.ASYNC_TIMEOUT and definition.target.kafka is not None:
        which = Timeout.REPLY_TIMEOUT
    error_type, message = timeout_type(which), timeout_message(which, _milliseconds(which, definition) / 1000)
    failure = Failure(error_type, permanent=which in FINAL_TIMEOUTS)
    delay = next_attempt(
        definition, failure, run_id=row.run_id, attempt=row.attempt, failed_attempts=row.failed_attempts
    )
    if delay is None:
        state = RunState.TIMED_OUT
        reason = FROZEN if row.frozen else str(which)
        return RunEnd(row.run_id, row.attempt, state, row.executor_id, reason, error_type, message)
    return Requeue(row.run_id, row.attempt, row.executor_id, AttemptOutcome.TIMED_OUT, delay, error_type, message)


class WorkflowDeadlines:
    """Finds the occurrences whose deadline has passed, and has their open runs cancelled."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._failed = SetAside[UUID]()

    def step(self) -> int:
        """Time out up to `_MAX_WORKFLOWS` occurrences; return their number."""
        columns = {"limit": _MAX_WORKFLOWS, "left": uuids(self._failed.current())}
        done = 0
        for root in self._session.within(list_ids, _SQL["find_overdue_workflows"], columns):
            try:
                with self._failed.alone(root, "apply the deadline of occurrence"):
                    done += self._time_out(root)
            except RowsLocked:
                _LOG.debug("occurrence %s is locked; its deadline is applied in the next step", root)
        return done

    def _time_out(self, root: UUID) -> bool:
        with self._session.transaction() as connection:
            connection.execute(_SET_WAITS, {"lock_timeout": _LOCK_TIMEOUT})
            workflow = lock_workflows(connection, [root]).get(root)
            if workflow is None or workflow.state not in ("open", "paused"):
                return False  # a request or a drain came first
            cancel_open_runs(connection, workflow, "timing_out", reason=WORKFLOW_TIMEOUT, cause=WORKFLOW_TIMEOUT)
            failpoint("timing_out.before_commit")
        failpoint("timing_out.after_commit")
        _LOG.warning("the occurrence of run %s has passed its deadline: its open runs are cancelled", root)
        return True


def _milliseconds(which: Timeout, definition: JobDefinition) -> int:
    http, kafka = definition.target.http, definition.target.kafka
    found = {
        Timeout.SCHEDULE_TO_START: definition.schedule_to_start_ms,
        Timeout.SCHEDULE_TO_CLOSE: definition.schedule_to_close_ms,
        Timeout.HEARTBEAT: definition.heartbeat_ms,
        Timeout.ASYNC_TIMEOUT: http.async_timeout_ms if http else None,
        Timeout.REPLY_TIMEOUT: kafka.reply_timeout_ms if kafka else None,
    }
    return found.get(which) or 0


def _lock_before(
    connection: Conn, found: Sequence[OverdueRun], definitions: Mapping[tuple[UUID, int], JobDefinition]
) -> None:
    """Lock timers, then jobs, before any open run: the same order as edits."""
    known = [(one, definitions[one.job_id, one.job_version]) for one in found]
    timers = {one.job_id for one, known_as in known if known_as.fixed_delay and one.cause == Cause.TIMER}
    jobs = {one.job_id for one, known_as in known if known_as.pause_on_failure is not None}
    if timers:
        connection.execute(_SQL["lock_overdue_runs_timers"], {"job_ids": uuids(timers)})
    if jobs:
        connection.execute(_SQL["lock_overdue_runs_jobs"], {"job_ids": uuids(jobs)})


def _lock(connection: Conn, found: Sequence[OverdueRun]) -> list[LockedOverdueRun]:
    columns: dict[str, object] = {
        "run_ids": uuids(one.run_id for one in found),
        "states": _STATES,
        "waiting": RunState.WAITING,
    }
    return read_rows(connection, class_row(LockedOverdueRun), _SQL["lock_overdue_runs"], columns)
