"""Hold timers by freezes, retract runs written ahead, decide what was held (ADR 0043).

Scheduler and intake call these under the timers' locks, so a freeze comes wholly before a change of the job or after.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple, cast
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.errors import ScheduleRefused
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.pg_binary import instants, uuids
from tidewheel.postgres.session import Conn, read_ids, read_rows
from tidewheel.postgres.statements import Statements
from tidewheel.runs import HOLDS, Move, SkipReason, sources
from tidewheel.schedules.decide import hold_for_run, on_resume
from tidewheel.schedules.decision import Decision, HoldReason
from tidewheel.schedules.timer_state import timer_state
from tidewheel.transitions.decision_inputs import read_decision_inputs
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.timers import (
    LockedTimer,
    advance_timers,
    find_open_fixed_delay_runs,
    move_timers,
    retract_runs,
)

_SQL = Statements("tidewheel.transitions")


class Frozen(NamedTuple):
    """Timers that freezes concern.

    Args:
        held: The jobs of those that come due under a freeze, which are held now.
        earlier: Those that have instants before one, by its beginning.
    """

    held: list[UUID]
    earlier: Mapping[datetime, list[LockedTimer]]


def has_freeze(connection: Conn) -> bool:
    """Return True if a freeze is in force, or timers may lie behind a thawed one."""
    [(found,)] = connection.execute(_SQL["has_freeze"]).fetchall()
    return bool(found)


def hold_frozen(connection: Conn, timers: Sequence[LockedTimer]) -> Frozen:
    """Hold locked timers that come due under a freeze.

    A timer whose freeze was deleted meanwhile is left as it is: it stays due.
    """
    by_job = {timer.job_id: timer for timer in timers}
    held: list[LockedTimer] = []
    earlier: defaultdict[datetime, list[LockedTimer]] = defaultdict(list)
    if not _find_frozen(connection, by_job):
        return Frozen([], earlier)
    connection.execute(_SQL["lock_freezes"])  # only now: they are rows of all tenants
    for job, began, hold_reason, is_held in _find_frozen(connection, by_job):
        if is_held:
            held.append(by_job[job])
        else:
            earlier[began].append(by_job[job]._replace(hold_reason=hold_reason))
    move_timers(
        connection,
        [
            (
                timer.job_id,
                Decision(next_at=timer.scheduled_at, hold_reason=HoldReason.FREEZE, overridden=timer.overridden),
            )
            for timer in held
        ],
    )
    return Frozen([timer.job_id for timer in held], earlier)


def _find_frozen(connection: Conn, job_ids: Iterable[UUID]) -> list[tuple[UUID, datetime, str | None, bool]]:
    rows = connection.execute(_SQL["find_frozen_timers"], {"job_ids": uuids(job_ids)}, binary=True).fetchall()
    return cast("list[tuple[UUID, datetime, str | None, bool]]", rows)


def find_written_ahead_of(connection: Conn, job_ids: Sequence[UUID]) -> dict[UUID, datetime]:
    """Return those of these jobs with runs written ahead of a freeze, and the begin of the first one."""
    columns = {"job_ids": uuids(job_ids), "sources": sources(Move.SKIP), "holds": HOLDS}
    rows = connection.execute(_SQL["find_written_ahead_of"], columns, binary=True).fetchall()
    return dict(cast("list[tuple[UUID, datetime]]", rows))


def retract_frozen(connection: Conn, began: Mapping[UUID, datetime]) -> int:
    """Retract the runs that were written ahead of instants under a freeze, and hold their timers there.

    Jobs whose rows another transaction holds are left out.

    Returns:
        The number of jobs.
    """
    columns: dict[str, object] = {"job_ids": uuids(began)}
    columns["locked"] = uuids(read_ids(connection, _SQL["lock_timers_written_ahead"], columns))
    locked = read_ids(connection, _SQL["lock_jobs_written_ahead"], columns)
    by_instant: defaultdict[datetime, list[UUID]] = defaultdict(list)
    for job in sorted(locked):
        by_instant[began[job]].append(job)
    earliest: dict[UUID, datetime] = {}
    for at, jobs in by_instant.items():
        earliest |= retract_runs(connection, jobs, now=at)
    back = {"job_ids": uuids(earliest), "instants": instants(earliest.values())}
    connection.execute(_SQL["rewind_timers"], back)
    connection.execute(_SQL["reopen_jobs"], back)
    return len(locked)


def decide_held(
    connection: Conn, installation: Installation, job_ids: Sequence[UUID], *, standing: bool = False
) -> dict[UUID, bool]:
    """Decide held timers by `on_resume`, up to the end of their freezes.

    Args:
        standing: Decide those too whose freezes have not ended, up to now.

    Returns:
        The jobs that were decided; True if their freezes have ended.
    """
    locked = read_rows(connection, class_row(LockedTimer), _SQL["lock_held_timers"], {"job_ids": uuids(job_ids)})
    columns = {"job_ids": uuids(timer.job_id for timer in locked)}
    rows = connection.execute(_SQL["find_freeze_ends"], columns, binary=True).fetchall()
    ends = dict(cast("list[tuple[UUID, datetime | None]]", rows))
    timers = [timer for timer in locked if standing or timer.job_id in ends]
    inputs, waiting = read_decision_inputs(connection, timers), find_open_fixed_delay_runs(connection, timers)
    now = read_now(connection)

    def decide_by(timer: LockedTimer) -> Decision:
        until = ends.get(timer.job_id) or now
        try:
            state = timer_state(timer, inputs.day_sets, inputs.of(timer))
        except ScheduleRefused:
            return _undecided(timer, until)  # firing quarantines the job
        decision = on_resume(state, now=until, reason=SkipReason.FROZEN)
        if decision.next_at is not None and min(decision.next_at, decision.due_at or decision.next_at) <= until:
            # All up to here is decided: the freeze, whose row may still be there, does not hold it again.
            decision = decision._replace(catch_up_end=until)
        return hold_for_run(decision) if timer.job_id in waiting else decision

    advance_timers(connection, installation, timers, decide_by, now=now)
    return {timer.job_id: timer.job_id in ends for timer in timers}


def _undecided(timer: LockedTimer, until: datetime) -> Decision:
    """Return the decision that leaves a timer's instants up to here to firing, past its freezes."""
    return Decision(next_at=timer.scheduled_at, overridden=timer.overridden, catch_up_end=until)
