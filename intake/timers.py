"""Set timers after a change; the caller has locked the jobs and applied their overdue occurrences."""

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import cast
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.errors import ScheduleRefused
from tidewheel.ids import RunId, run_id
from tidewheel.postgres.pg_binary import uuids
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.runs import Cause, RunState
from tidewheel.schedules.decision import HoldReason
from tidewheel.schedules.schedule import TICK
from tidewheel.schedules.timer_state import timer_state
from tidewheel.transitions.decision_inputs import read_decision_inputs
from tidewheel.transitions.timers import LockedTimer

_SQL = Statements("tidewheel.intake")
_PUT_TIMERS = _SQL["put_timers"]
_READ_TIMERS = _SQL["read_timers"]
_READ_LOCKED_TIMERS = _SQL["read_locked_timers"]
_READ_TIMER_RUNS = _SQL["read_timer_runs"]

_NEVER = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class TimerToPut:
    """The new position of a job's timer.

    Args:
        scheduled_at: The first instant without a record.
        due_at: The time of its next wakeup; None for `scheduled_at`.
    """

    job_id: UUID
    tenant: str
    shard: int
    version: int
    scheduled_at: datetime
    due_at: datetime | None = None
    hold_reason: HoldReason | None = None
    until: datetime | None = None


def put_timers(connection: Conn, timers: Sequence[TimerToPut]) -> None:
    """Set timers; overrides of single occurrences stay in force."""
    if not timers:
        return
    columns: dict[str, object] = {
        "job_ids": [timer.job_id for timer in timers],
        "tenants": [timer.tenant for timer in timers],
        "shards": [timer.shard for timer in timers],
        "due_at": [_due_at(timer) for timer in timers],
        "scheduled_at": [timer.scheduled_at for timer in timers],
        "versions": [timer.version for timer in timers],
        "hold_reasons": [timer.hold_reason for timer in timers],
    }
    connection.execute(_PUT_TIMERS, columns)


def next_instants(connection: Conn, job_ids: Sequence[UUID]) -> dict[UUID, datetime]:
    """Return the time of each job's next run; none for jobs on hold."""
    if not job_ids:
        return {}
    rows = cast(
        "list[tuple[UUID, datetime, bool, datetime | None]]",
        connection.execute(_READ_TIMERS, {"job_ids": list(job_ids)}, binary=True).fetchall(),
    )
    found = {job: written or due for job, due, _, written in rows}
    # A timer with overrides or calendars is also due to record a skip, which is no run.
    undecided = {job for job, _, may_skip, written in rows if may_skip and written is None}
    if not undecided:
        return found
    return {job: at for job, at in found.items() if job not in undecided} | _next_fires(connection, undecided)


def _next_fires(connection: Conn, job_ids: Collection[UUID]) -> dict[UUID, datetime]:
    """Return the next fire time of jobs with overrides or calendars, decided as the scheduler does."""
    with connection.cursor(row_factory=class_row(LockedTimer), binary=True) as cursor:
        timers = cursor.execute(_READ_LOCKED_TIMERS, {"job_ids": list(job_ids)}).fetchall()
    inputs = read_decision_inputs(connection, timers)
    found: dict[UUID, datetime] = {}
    for timer in timers:
        with suppress(ScheduleRefused):  # firing quarantines the job
            state = timer_state(timer, inputs.day_sets, inputs.of(timer))
            following = state.live.after(state.cursor - TICK)
            found[timer.job_id] = min([*state.moved.values(), following or _NEVER])
    return {job: at for job, at in found.items() if at is not _NEVER}


def read_timer_runs(
    connection: Conn, occurrences: Sequence[tuple[UUID, datetime]]
) -> dict[tuple[UUID, datetime], RunState]:
    """Return the states of the runs of these occurrences of locked jobs; none where there is no run."""
    if not occurrences:
        return {}
    named = {run_id(job, at, Cause.TIMER): (job, at) for job, at in occurrences}
    rows = connection.execute(_READ_TIMER_RUNS, {"run_ids": uuids(named)}, binary=True).fetchall()
    return {named[run]: RunState(state) for run, state in cast("list[tuple[RunId, str]]", rows)}


def _due_at(timer: TimerToPut) -> str:
    at = timer.due_at or timer.scheduled_at if timer.hold_reason is None else timer.until
    return "infinity" if at is None else at.isoformat()
