"""Setting timers after a change; whoever calls has locked the jobs and settled what was overdue."""

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import cast
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.errors import ScheduleRefused
from tidewheel.ids import RunId, run_id
from tidewheel.postgres.pg_arrays import uuids
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.runs import Cause, RunState
from tidewheel.schedules.decision import HoldReason
from tidewheel.schedules.timer_state import timer_state
from tidewheel.transitions.decision_inputs import read_decision_inputs
from tidewheel.transitions.timers import LockedTimer

_SQL = Statements("tidewheel.intake")
_PUT_TIMERS = _SQL["put_timers"]
_READ_TIMERS = _SQL["read_timers"]
_READ_LOCKED_TIMERS = _SQL["read_locked_timers"]
_READ_TIMER_RUNS = _SQL["read_timer_runs"]

_NEVER = datetime.max.replace(tzinfo=UTC)
_TICK = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class TimerToPut:
    """Where a job's timer is to stand.

    Args:
        job_id: The job.
        tenant: Its tenant.
        shard: Its shard.
        version: The version it fires.
        scheduled_at: The first instant that nothing is recorded of yet.
        due_at: When firing must look; None: at `scheduled_at`.
        hold_reason: Why it is not due then.
        until: When a pause ends by itself.
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
    """Set timers; what people said about single occurrences goes on counting."""
    if not timers:
        return
    columns: dict[str, object] = {
        "job_ids": [timer.job_id for timer in timers],
        "tenants": [timer.tenant for timer in timers],
        "shards": [timer.shard for timer in timers],
        "due_at": [_due_at(timer) for timer in timers],
        "scheduled_at": [timer.scheduled_at for timer in timers],
        "versions": [timer.version for timer in timers],
        "held": [timer.hold_reason for timer in timers],
    }
    connection.execute(_PUT_TIMERS, columns)


def next_instants(connection: Conn, job_ids: Sequence[UUID]) -> dict[UUID, datetime]:
    """When these jobs fire next; nothing for those that are held."""
    if not job_ids:
        return {}
    rows = cast(
        "list[tuple[UUID, datetime, bool, datetime | None]]",
        connection.execute(_READ_TIMERS, {"job_ids": list(job_ids)}, binary=True).fetchall(),
    )
    found = {job: written or due for job, due, _, written in rows}
    # A timer is also due to record what people or calendars have left out, which is no run.
    looked = {job for job, _, leaves_out, written in rows if leaves_out and written is None}
    if not looked:
        return found
    return {job: at for job, at in found.items() if job not in looked} | _firing(connection, looked)


def _firing(connection: Conn, job_ids: Collection[UUID]) -> dict[UUID, datetime]:
    """When jobs with overrides or calendars fire next, by deciding as firing does."""
    with connection.cursor(row_factory=class_row(LockedTimer), binary=True) as cursor:
        timers = cursor.execute(_READ_LOCKED_TIMERS, {"job_ids": list(job_ids)}).fetchall()
    circumstances = read_decision_inputs(connection, timers)
    found: dict[UUID, datetime] = {}
    for timer in timers:
        with suppress(ScheduleRefused):  # firing sets it aside
            where = timer_state(timer, circumstances.day_sets, circumstances.of(timer))
            following = where.live.after(where.cursor - _TICK)
            found[timer.job_id] = min([*where.moved.values(), following or _NEVER])
    return {job: at for job, at in found.items() if at is not _NEVER}


def read_timer_runs(
    connection: Conn, occurrences: Sequence[tuple[UUID, datetime]]
) -> dict[tuple[UUID, datetime], RunState]:
    """Where the runs of these occurrences of locked jobs stand, of those that have become one."""
    if not occurrences:
        return {}
    named = {run_id(job, at, Cause.TIMER): (job, at) for job, at in occurrences}
    rows = connection.execute(_READ_TIMER_RUNS, {"run_ids": uuids(named)}, binary=True).fetchall()
    return {named[run]: RunState(state) for run, state in cast("list[tuple[RunId, str]]", rows)}


def _due_at(timer: TimerToPut) -> str:
    at = timer.due_at or timer.scheduled_at if timer.hold_reason is None else timer.until
    return "infinity" if at is None else at.isoformat()
