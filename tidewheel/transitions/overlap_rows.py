"""Runs that need their job's turn, all those of one claim together: who starts, who waits, who ends.

What is decided comes from the pure `overlap.decide`; here the rows it needs are locked and what it says is written, in
the claiming transaction, with the turns of all jobs concerned in hand.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.postgres.pg_arrays import uuids, words
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.runs import Overlap, RunState
from tidewheel.transitions.active_runs import Seeker, Turn, buffer_runs, pass_turns, take_turns
from tidewheel.transitions.finish import end_runs
from tidewheel.transitions.finished import RunEnd
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.overlap import REPLACING, Contender, Fate, Verdict, decide
from tidewheel.transitions.signal import Attempting, Signal, add_signals, ask_to_cancel

_SQL = Statements("tidewheel.transitions")
_FIND_WAITING = _SQL["find_waiting"]
_LOCK_HOLDERS = _SQL["lock_holders"]
_PLAN_EACH_TIME = _SQL["plan_each_time"]

_REASON = "overlap"
_LOOKS_AT_THE_LINE = REPLACING | {Overlap.BUFFER_ONE}


class Candidate(NamedTuple):
    """A run that a claim has locked; lock_claims returns its columns in this order."""

    run_id: UUID
    job_id: UUID
    tenant: str
    overlap: str
    state: str
    attempt: int
    scheduled_at: datetime

    @property
    def contender(self) -> Contender:
        """As its job's policy sees it."""
        queued = self.state == RunState.QUEUED
        return Contender(self.run_id, self.overlap, self.scheduled_at, self.attempt, queued=queued)

    @property
    def seeker(self) -> Seeker:
        """As the turn sees it."""
        return Seeker(self.job_id, self.tenant, self.run_id)


@dataclass(slots=True)
class Contested:
    """What became of runs that needed a turn.

    Args:
        losers: Candidates that are not to start now.
        skipped: Of them, and of the runs that waited: those that ended skipped.
        buffered: Candidates that wait for their turn from now on.
        left: Candidates about which nothing is decided, for somebody has the holder's row: to be claimed again.
        replaced: Runs that had begun and ended cancelled.
        asked: Holders that run and were asked to cancel.
    """

    losers: set[UUID] = field(default_factory=set[UUID])
    skipped: set[UUID] = field(default_factory=set[UUID])
    buffered: set[UUID] = field(default_factory=set[UUID])
    left: set[UUID] = field(default_factory=set[UUID])
    replaced: set[UUID] = field(default_factory=set[UUID])
    asked: set[UUID] = field(default_factory=set[UUID])


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A run that waits for its job's turn."""

    run_id: UUID
    job_id: UUID
    overlap: str
    attempt: int
    scheduled_at: datetime


@dataclass(frozen=True, slots=True)
class _Holder:
    """Who has a turn and is to make way."""

    run_id: UUID
    state: str
    attempt: int
    tenant: str
    executor_id: UUID | None


@dataclass(frozen=True, slots=True)
class _Case:
    """One job's turn, with everybody who has to do with it, and what is decided."""

    turn: Turn
    runs: Sequence[Candidate]
    waiting: Sequence[_Waiting]
    holder: _Holder | None
    verdict: Verdict

    def attempt_of(self, run_id: UUID) -> int:
        """The attempt of a candidate or of a run that waits."""
        attempts = {run.run_id: run.attempt for run in self.runs} | {each.run_id: each.attempt for each in self.waiting}
        return attempts[run_id]


def contest(connection: Conn, installation: Installation, candidates: Sequence[Candidate]) -> Contested:
    """Take the turns that are to be had, and do with everybody else as the policies say.

    Args:
        connection: Inside the transaction that has locked the candidates.
        installation: For events and messages.
        candidates: Runs whose policy is not `allow_all`.
    """
    connection.execute(_PLAN_EACH_TIME)  # runs may end here, and messages be made again: both look at partitions
    by_job: defaultdict[UUID, list[Candidate]] = defaultdict(list)
    for candidate in candidates:
        by_job[candidate.job_id].append(candidate)
    for runs in by_job.values():
        if len(runs) > 1:
            runs.sort(key=lambda each: each.contender.age)
    turns = take_turns(connection, installation, [runs[0].seeker for runs in by_job.values()])
    contested = [
        (turns[job], runs) for job, runs in by_job.items() if len(runs) > 1 or runs[0].run_id != turns[job].run_id
    ]
    if not contested:
        return Contested()
    return _carry_out(connection, installation, _decide(connection, contested))


def _decide(connection: Conn, contested: Sequence[tuple[Turn, Sequence[Candidate]]]) -> list[_Case]:
    waiting = _find_waiting(connection, contested)
    holders = _lock_holders(connection, contested)
    cases: list[_Case] = []
    for turn, runs in contested:
        holder, line = holders.get(turn.run_id), waiting.get(turn.job_id, [])
        standing = RunState(holder.state) if holder else None
        contenders = [Contender(each.run_id, each.overlap, each.scheduled_at, each.attempt) for each in line]
        verdict = decide(turn.run_id, standing, contenders, [run.contender for run in runs])
        cases.append(_Case(turn, runs, line, holder, verdict))
    return cases


def _find_waiting(
    connection: Conn, contested: Sequence[tuple[Turn, Sequence[Candidate]]]
) -> dict[UUID, list[_Waiting]]:
    jobs = [turn.job_id for turn, runs in contested if turn.waiting and _any(turn, runs, _LOOKS_AT_THE_LINE)]
    if not jobs:
        return {}
    columns = {"job_ids": uuids(jobs), "buffered": RunState.BUFFERED, "replacing": words(sorted(REPLACING))}
    found: defaultdict[UUID, list[_Waiting]] = defaultdict(list)
    with connection.cursor(row_factory=class_row(_Waiting), binary=True) as cursor:
        for each in cursor.execute(_FIND_WAITING, columns):
            found[each.job_id].append(each)
    return found


def _lock_holders(connection: Conn, contested: Sequence[tuple[Turn, Sequence[Candidate]]]) -> dict[UUID, _Holder]:
    outside = [(turn, runs) for turn, runs in contested if turn.run_id not in {run.run_id for run in runs}]
    wanted = [turn.run_id for turn, runs in outside if _any(turn, runs, REPLACING)]
    if not wanted:
        return {}
    with connection.cursor(row_factory=class_row(_Holder), binary=True) as cursor:
        return {each.run_id: each for each in cursor.execute(_LOCK_HOLDERS, {"run_ids": uuids(wanted)})}


def _any(turn: Turn, runs: Sequence[Candidate], policies: frozenset[Overlap]) -> bool:
    return any(run.overlap in policies for run in runs if run.run_id != turn.run_id)


def _carry_out(connection: Conn, installation: Installation, cases: Sequence[_Case]) -> Contested:
    # First, so that the holders' ends find no turn to give up.
    pass_turns(connection, [(c.turn.job_id, c.verdict.turn) for c in cases if c.verdict.turn != c.turn.run_id])
    told = [c.holder for c in cases if c.holder and c.verdict.fate is not Fate.STAYS]
    asked = ask_to_cancel(connection, [holder.run_id for holder in told]) if told else set[UUID]()
    ended = [c.holder for c in cases if c.holder and c.verdict.fate is Fate.ENDED]
    ends = [_end(each.run_id, each.attempt, RunState.CANCELLED, each.executor_id) for each in ended]
    ends += [_end(run, c.attempt_of(run), RunState.CANCELLED) for c in cases for run in c.verdict.cancelled]
    ends += [_end(run, c.attempt_of(run), RunState.SKIPPED) for c in cases for run in c.verdict.skipped]
    states = end_runs(connection, installation, ends).states
    # After their ends, which have dropped every signal there was.
    hands = [Attempting(e.run_id, e.attempt, e.tenant, e.executor_id) for e in ended if e.executor_id is not None]
    add_signals(connection, Signal.TERMINATE, hands)
    waiting = [run.seeker for c in cases for run in c.runs if run.run_id in c.verdict.buffered]
    return Contested(
        losers={run.run_id for c in cases for run in c.runs if run.run_id != c.verdict.turn},
        skipped={run for run, state in states.items() if state is RunState.SKIPPED},
        buffered=buffer_runs(connection, waiting),
        left={run for c in cases for run in c.verdict.left},
        replaced={run for run, state in states.items() if state is RunState.CANCELLED},
        asked=asked - set(states),
    )


def _end(run_id: UUID, attempt: int, state: RunState, executor_id: UUID | None = None) -> RunEnd:
    return RunEnd(run_id=run_id, attempt=attempt, state=state, executor_id=executor_id, reason=_REASON)
