"""Preview what the end of a freeze or of a pause does with the occurrences that came due meanwhile.

The decision is that of the scheduler, `on_resume` of tidewheel/schedules/decide.py, about the timers that are held now,
or that a freeze holds once a scheduler has seen it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import LiteralString, NamedTuple
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.control.reads.stored import readable
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.pg_binary import uuids
from tidewheel.postgres.session import Conn, read_rows
from tidewheel.postgres.statements import Statements
from tidewheel.runs import SkipReason
from tidewheel.schedules.decide import MAX_CAUGHT_UP, on_resume
from tidewheel.schedules.decision import policies_from_text
from tidewheel.schedules.schedule import TICK, FixedDelay, Once
from tidewheel.schedules.timer_state import TimerState, timer_state
from tidewheel.transitions.decision_inputs import DecisionInputs, read_decision_inputs

_SQL = Statements("tidewheel.control")

_UNWANTED = {SkipReason.EXCLUDED, SkipReason.MANUAL}  # they would not fire without a hold either

MAX_JOBS = 200
"""The held jobs that one preview decides about."""


@dataclass(frozen=True, slots=True)
class ResumedJob:
    """A held job with the numbers of its occurrences that fire at once and that are skipped."""

    key: str
    fires: int
    skips: int
    at_least: bool

    @property
    def words(self) -> str:
        """The job in a line.

        >>> ResumedJob("nightly", 1, 13, at_least=False).words
        'nightly: 1 fires, 13 skipped'
        """
        least = "at least " if self.at_least else ""
        return f"{self.key}: {least}{self.fires:,} fire{'s' if self.fires == 1 else ''}, {least}{self.skips:,} skipped"


@dataclass(frozen=True, slots=True)
class Resumption:
    """The occurrences that came due while jobs were held.

    Args:
        jobs: The jobs with such occurrences, those that lose most of them first.
        at_least: True if more may fire, and more may be skipped.
        words: The same in sentences.
    """

    jobs: tuple[ResumedJob, ...]
    fires: int
    skips: int
    at_least: bool
    words: tuple[str, ...]


def preview_resume(connection: Conn, tenant: str, job_ids: Sequence[UUID]) -> Resumption:
    """Return what the end of the pauses of these jobs does."""
    columns: dict[str, object] = {"tenant": tenant, "job_ids": uuids(job_ids), "limit": MAX_JOBS + 1}
    return resumption(connection, _SQL["read_paused_timers"], columns, "pause")


class _HeldTimer(NamedTuple):
    key: str
    job_id: UUID
    tenant: str
    scheduled_at: datetime
    schedule_json: str
    policy_json: str
    catch_up_end: datetime | None
    overridden: bool
    since: datetime | None = None  # the begin of the freeze, of a timer that no scheduler has held yet


def resumption(connection: Conn, statement: LiteralString, columns: Mapping[str, object], hold: str) -> Resumption:
    """Return what the end of a hold does to the timers that a statement reads."""
    found = read_rows(connection, class_row(_HeldTimer), statement, columns)
    timers, now = [each for each in found[:MAX_JOBS] if _is_legible(each)], read_now(connection)
    inputs = read_decision_inputs(connection, timers)
    decided = [each for timer in timers if (each := _decide(timer, inputs, now)) is not None]
    jobs = sorted((each for each in decided if each.fires or each.skips), key=lambda each: -each.skips)
    fires, skips = sum(each.fires for each in jobs), sum(each.skips for each in jobs)
    at_least = len(found) > MAX_JOBS or any(each.at_least for each in jobs)
    return Resumption(tuple(jobs), fires, skips, at_least, _words(fires, skips, hold, at_least=at_least))


def _words(fires: int, skips: int, hold: str, *, at_least: bool) -> tuple[str, ...]:
    count, least = fires + skips, "At least " if at_least else ""
    if not count:
        return (f"No occurrence came due during the {hold}.",)
    due = f"{least}{count:,} occurrence{'' if count == 1 else 's'} came due during the {hold}"
    ends = [f"{fires:,} {'fires' if fires == 1 else 'fire'} at once"] if fires else []
    ends += [f"{skips:,} {'is' if skips == 1 else 'are'} skipped"] if skips else []
    words = f"{due}: {', '.join(ends)}."
    return (words, "To run a skipped occurrence later, use a backfill.") if skips else (words,)


def _decide(timer: _HeldTimer, inputs: DecisionInputs, now: datetime) -> ResumedJob | None:
    """Return the job of a timer; None if its schedule cannot be read: firing sets the job aside."""
    row = f"job {timer.key}"
    state = readable("schedule", row, lambda: timer_state(timer, inputs.day_sets, inputs.of(timer)), None)
    if state is None:
        return None
    if timer.since is not None:  # what came before fires
        if timer.scheduled_at <= timer.since and isinstance(state.schedule, FixedDelay | Once):
            return None
        moved = {at: to for at, to in state.moved.items() if to > timer.since}
        state = replace(state, cursor=max(state.cursor, timer.since + TICK), moved=moved)
    decision = on_resume(state, now=now)
    fires, exact = _fires(state, decision.next_at, now)
    fires += sum(to <= now and at not in decision.moved for at, to in state.moved.items())
    lost = [skip for skip in decision.skips if skip.reason not in _UNWANTED]
    exact = exact and all(skip.exact for skip in lost)
    return ResumedJob(timer.key, fires, sum(skip.occurrences for skip in lost), at_least=not exact)


def _is_legible(timer: _HeldTimer) -> bool:
    return readable("policy", f"job {timer.key}", lambda: policies_from_text(timer.policy_json), None) is not None


def _fires(state: TimerState, first: datetime | None, now: datetime) -> tuple[int, bool]:
    if first is None or first > now:
        return 0, True
    if isinstance(state.schedule, FixedDelay):
        return 1, True
    return state.live.count(first - TICK, now, MAX_CAUGHT_UP)
