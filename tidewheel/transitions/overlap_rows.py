"""Resolve overlaps among the runs of one claim: start, buffer, skip or cancel each.

The pure `overlap.decide` decides. This module locks the rows that it needs and writes its decisions, in the claiming
transaction, with the active runs of all jobs concerned locked.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple, cast
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.ids import run_bucket, shard_of, tenant_key_id
from tidewheel.outbox import OutboxRow, append
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.pg_binary import uuids, words
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.runs import Gate, Overlap, RunState
from tidewheel.transitions.active_runs import (
    AcquireRequest,
    ActiveRun,
    acquire_active_runs,
    buffer_runs,
    mark_waiters,
    release_active_runs,
    transfer_active_runs,
)
from tidewheel.transitions.cancellation import RunningAttempt, Signal, add_signals, request_cancel
from tidewheel.transitions.finish import finish_runs
from tidewheel.transitions.finished import RunEnd
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.messages import request_row
from tidewheel.transitions.overlap import (
    DEPENDS_ON_WAITING,
    REPLACING,
    Contender,
    HolderAction,
    OverlapDecision,
    decide,
)
from tidewheel.transitions.places import Arrival, FreedPlace, held_places

REPLACING_WORDS = words(sorted(REPLACING))

_SQL = Statements("tidewheel.transitions")
_FIND_WAITING_RUNS = _SQL["find_waiting_runs"]
_LOCK_REPLACED_RUNS = _SQL["lock_replaced_runs"]
_FIND_CONTENDERS = _SQL["find_contenders"]

_REASON = "overlap"


class LockedRun(NamedTuple):
    """A run that a claim has locked; `lock_claims` returns its columns in this order."""

    run_id: UUID
    job_id: UUID
    tenant: str
    overlap: str
    state: str
    attempt: int
    scheduled_at: datetime
    active: bool
    gates: int
    key_id: int | None

    def arrival(self, limited: Collection[str]) -> Arrival:
        """Return the request for places of its key and of its tenant, if that is among the limited ones."""
        tenant = tenant_key_id(self.tenant) if self.tenant in limited else None
        holds, holds_tenant = bool(self.gates & Gate.HOLDS_KEY), bool(self.gates & Gate.HOLDS_TENANT)
        own = self.key_id if self.gates & Gate.KEY else None  # of an ordered run the id is that of its order
        return Arrival(self.run_id, own, holds, self.scheduled_at, tenant_key=tenant, holds_tenant=holds_tenant)

    @property
    def contender(self) -> Contender:
        """The part that the overlap policy needs."""
        queued = self.state == RunState.QUEUED
        return Contender(self.run_id, self.overlap, self.scheduled_at, self.attempt, queued=queued)

    @property
    def acquire_request(self) -> AcquireRequest:
        """The request to become its job's active run."""
        return AcquireRequest(self.job_id, self.tenant, self.run_id)


@dataclass(slots=True)
class OverlapResult:
    """The result for claimed runs whose policy limits overlaps.

    Args:
        skipped: Claimed or waiting runs that ended as skipped.
        undecided: Claimed runs to be claimed again, because another transaction holds the row of a run to be replaced.
        replaced: Started runs that ended as cancelled.
        cancel_requested: Active runs that execute and now have a cancel request.
        freed_keys: The places that ended and buffered runs held; the caller gives them back.
    """

    not_started: set[UUID] = field(default_factory=set[UUID])
    skipped: set[UUID] = field(default_factory=set[UUID])
    buffered: set[UUID] = field(default_factory=set[UUID])
    undecided: set[UUID] = field(default_factory=set[UUID])
    replaced: set[UUID] = field(default_factory=set[UUID])
    cancel_requested: set[UUID] = field(default_factory=set[UUID])
    freed_keys: list[FreedPlace] = field(default_factory=list[FreedPlace])


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A buffered run: it waits to become its job's active run."""

    run_id: UUID
    job_id: UUID
    overlap: str
    attempt: int
    scheduled_at: datetime


@dataclass(frozen=True, slots=True)
class _Holder:
    """A locked run that another run may replace: the active run, or one that waits."""

    run_id: UUID
    state: str
    attempt: int
    tenant: str
    executor_id: UUID | None
    occurrence: UUID | None


@dataclass(frozen=True, slots=True)
class _Case:
    """One job with an overlap: its active run, the claimed and the waiting runs, and the decision."""

    active: ActiveRun
    runs: Sequence[LockedRun]
    waiting: Sequence[_Waiting]
    holder: _Holder | None
    decision: OverlapDecision

    def attempt_of(self, run_id: UUID) -> int:
        attempts = {run.run_id: run.attempt for run in self.runs} | {each.run_id: each.attempt for each in self.waiting}
        return attempts[run_id]

    @property
    def replaced_occurrence(self) -> UUID | None:
        """The occurrence that the new run replaces, if the active run belongs to one and has begun."""
        if self.decision.holder_action is HolderAction.KEEP:
            return None
        began = self.holder is not None and self.holder.attempt > 0
        return self.active.held_by or (self.holder.occurrence if self.holder is not None and began else None)


def resolve_overlaps(connection: Conn, installation: Installation, candidates: Sequence[LockedRun]) -> OverlapResult:
    """Make runs active where their job has no active run; apply the overlap policies to the rest.

    Args:
        connection: Inside the transaction that has locked the candidates.
        candidates: Runs whose policy is not `allow_all`.
    """
    by_job: defaultdict[UUID, list[LockedRun]] = defaultdict(list)
    for candidate in candidates:
        by_job[candidate.job_id].append(candidate)
    for runs in by_job.values():
        if len(runs) > 1:
            runs.sort(key=lambda each: each.contender.age)
    active = acquire_active_runs(connection, installation, [runs[0].acquire_request for runs in by_job.values()])
    left = _respect_contenders(connection, installation, by_job, active)
    overlapping = [
        (active[job], runs) for job, runs in by_job.items() if len(runs) > 1 or runs[0].run_id != active[job].run_id
    ]
    result = _apply(connection, installation, _decide(connection, overlapping)) if overlapping else OverlapResult()
    result.not_started |= left
    result.undecided |= left
    return result


def _respect_contenders(
    connection: Conn, installation: Installation, by_job: dict[UUID, list[LockedRun]], active: dict[UUID, ActiveRun]
) -> set[UUID]:
    """Find started runs of jobs that had no active run, and make them active in place of a candidate.

    A run that another transaction holds and that has not started may be about to start, unseen: its job is removed from
    `by_job`. The end of one that has started may miss the active run: the scheduler releases it.

    Returns:
        The candidates of the removed jobs.
    """
    new = [
        job
        for job, runs in by_job.items()
        if active[job].run_id in {run.run_id for run in runs} and not any(run.active for run in runs)
    ]
    if not new:
        return set()
    rows = connection.execute(
        _FIND_CONTENDERS, {"job_ids": uuids(new), "free": Overlap.ALLOW_ALL, "met": Gate.MET}, binary=True
    )
    found = cast("list[tuple[UUID, UUID, bool, bool]]", rows.fetchall())
    busy = {job for _, job, started, uncontested in found if uncontested and not started}
    release_active_runs(connection, installation, [(job, active[job].run_id) for job in sorted(busy)])
    transfers: dict[UUID, tuple[UUID, bool]] = {}
    for run_id, job, _, uncontested in found:
        if job not in busy:
            transfers.setdefault(job, (run_id, uncontested))
    transfer_active_runs(connection, [(job, run_id) for job, (run_id, _) in sorted(transfers.items())])
    mark_waiters(
        connection, {(job, by_job[job][0].tenant) for job, (_, uncontested) in transfers.items() if uncontested}
    )
    for job, (run_id, _) in transfers.items():
        active[job] = active[job]._replace(run_id=run_id)
    return {run.run_id for job in busy for run in by_job.pop(job)}


def _decide(connection: Conn, overlapping: Sequence[tuple[ActiveRun, Sequence[LockedRun]]]) -> list[_Case]:
    waiting = _find_waiting(connection, overlapping)
    locked = _lock_replaced(connection, overlapping, waiting)
    cases: list[_Case] = []
    for active, runs in overlapping:
        holder, buffered = locked.get(active.run_id), waiting.get(active.job_id, [])
        # An occurrence that keeps the place after its root's end counts as a run that executes.
        held = None if active.held_by is None else RunState.RUNNING
        state = RunState(holder.state) if holder else held
        contenders = [
            Contender(each.run_id, each.overlap, each.scheduled_at, each.attempt, busy=each.run_id not in locked)
            for each in buffered
        ]
        decision = decide(active.run_id, state, contenders, [run.contender for run in runs])
        cases.append(_Case(active, runs, buffered, holder, decision))
    return cases


def _find_waiting(
    connection: Conn, overlapping: Sequence[tuple[ActiveRun, Sequence[LockedRun]]]
) -> dict[UUID, list[_Waiting]]:
    jobs = [each.job_id for each, runs in overlapping if each.has_waiters and _any(each, runs, DEPENDS_ON_WAITING)]
    if not jobs:
        return {}
    columns = {"job_ids": uuids(jobs), "buffered": RunState.BUFFERED, "replacing": REPLACING_WORDS}
    found: defaultdict[UUID, list[_Waiting]] = defaultdict(list)
    with connection.cursor(row_factory=class_row(_Waiting), binary=True) as cursor:
        for each in cursor.execute(_FIND_WAITING_RUNS, columns):
            found[each.job_id].append(each)
    return found


def _lock_replaced(
    connection: Conn,
    overlapping: Sequence[tuple[ActiveRun, Sequence[LockedRun]]],
    waiting: Mapping[UUID, Sequence[_Waiting]],
) -> dict[UUID, _Holder]:
    """Lock the active and the waiting runs that others would replace; return those that are free."""
    replaceable: list[UUID] = []
    for active, runs in overlapping:
        if _any(active, runs, REPLACING):
            replaceable += [each.run_id for each in waiting.get(active.job_id, ()) if each.overlap in REPLACING]
            if active.run_id not in {run.run_id for run in runs}:
                replaceable.append(active.run_id)
    if not replaceable:
        return {}
    with connection.cursor(row_factory=class_row(_Holder), binary=True) as cursor:
        columns = {"run_ids": uuids(replaceable), "whole": Gate.WHOLE}
        return {each.run_id: each for each in cursor.execute(_LOCK_REPLACED_RUNS, columns)}


def _any(active: ActiveRun, runs: Sequence[LockedRun], policies: frozenset[Overlap]) -> bool:
    return any(run.overlap in policies for run in runs if run.run_id != active.run_id)


def _apply(connection: Conn, installation: Installation, cases: Sequence[_Case]) -> OverlapResult:
    # First, so that the ends of replaced runs find no active run to release.
    transfer_active_runs(
        connection, [(c.active.job_id, c.decision.active) for c in cases if c.decision.active != c.active.run_id]
    )
    affected = [c.holder for c in cases if c.holder and c.decision.holder_action is not HolderAction.KEEP]
    requested = request_cancel(connection, {holder.run_id: _REASON for holder in affected}) if affected else set[UUID]()
    ended = [c.holder for c in cases if c.holder and c.decision.holder_action is HolderAction.END]
    ends = [_end(each.run_id, each.attempt, RunState.CANCELLED, each.executor_id) for each in ended]
    ends += [_end(run, c.attempt_of(run), RunState.CANCELLED) for c in cases for run in c.decision.cancelled]
    ends += [_end(run, c.attempt_of(run), RunState.SKIPPED) for c in cases for run in c.decision.skipped]
    freed_keys: list[FreedPlace] = []
    states = finish_runs(connection, installation, ends, freed_keys=freed_keys).states
    # After the ends, which delete all signals of these runs.
    running = [RunningAttempt(e.run_id, e.attempt, e.tenant, e.executor_id) for e in ended if e.executor_id is not None]
    add_signals(connection, Signal.TERMINATE, running)
    replaced = [(occurrence, c.runs[-1]) for c in cases if (occurrence := c.replaced_occurrence) is not None]
    append(connection, _cancels(connection, installation, replaced), shards=installation.shards)
    waiting = [run for c in cases for run in c.runs if run.run_id in c.decision.buffered]
    buffered = buffer_runs(connection, [run.acquire_request for run in waiting])
    freed_keys += [
        place
        for run in waiting
        if run.run_id in buffered
        for place in held_places(run.gates, run.key_id, run.tenant, started=False)
    ]
    return OverlapResult(
        not_started={run.run_id for c in cases for run in c.runs if run.run_id != c.decision.active},
        skipped={run for run, state in states.items() if state is RunState.SKIPPED},
        buffered=buffered,
        undecided={run for c in cases for run in c.decision.undecided},
        replaced={run for run, state in states.items() if state is RunState.CANCELLED},
        cancel_requested=requested - set(states),
        freed_keys=freed_keys,
    )


def _cancels(
    connection: Conn, installation: Installation, replaced: Sequence[tuple[UUID, LockedRun]]
) -> list[OutboxRow]:
    """Return requests that cancel replaced occurrences: with an active run locked, none may wait for them."""
    if not replaced:
        return []
    now = read_now(connection)
    return [
        request_row(
            installation,
            "workflow.cancel",
            {"request_id": f"{_REASON}/{run.run_id}", "tenant": run.tenant, "run_id": str(root), "reason": _REASON},
            key=str(root),
            shard=shard_of(run_bucket(root), installation.shards),
            at=now,
        )
        for root, run in replaced
    ]


def _end(run_id: UUID, attempt: int, state: RunState, executor_id: UUID | None = None) -> RunEnd:
    return RunEnd(run_id=run_id, attempt=attempt, state=state, executor_id=executor_id, reason=_REASON)
