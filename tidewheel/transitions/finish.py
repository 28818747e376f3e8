"""`end_runs`: every terminal move of a run, set-wise, in the caller's transaction.

Outcome, attempt row, completion event, dead letter, and the turn given up: one place, so that none of them can be
forgotten anywhere. No other SQL writes a terminal state. What an end finds locked is reported as busy and must be tried
again; what it finds gone or moved on is superseded: a zombie's report, which changes nothing.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain
from typing import NamedTuple
from uuid import UUID

from tidewheel.ids import read_uuid, run_instants
from tidewheel.outbox import OutboxRow, append
from tidewheel.postgres.partitions import day_of, days_between, ensure_days, of_unknown_days
from tidewheel.postgres.pg_arrays import integers, uuids, words
from tidewheel.postgres.session import Conn, rows_of
from tidewheel.postgres.statements import Statements
from tidewheel.process.metrics import metrics
from tidewheel.runs import DEAD_LETTERED, FINAL, OPEN, AttemptOutcome, Cause, Overlap, RunState, end_of
from tidewheel.schemas.generated import records
from tidewheel.transitions.active_runs import give_up_turns
from tidewheel.transitions.after_end import Ending, GivenUp, advance_chains, count_failures, failure_triggers
from tidewheel.transitions.attempts import AttemptEnd, write_outputs
from tidewheel.transitions.completions import completions
from tidewheel.transitions.dead_letters import bury
from tidewheel.transitions.deferred_effects import LooseEnd, note_loose_ends
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.run_messages import Definitions, build_requests

_SQL = Statements("tidewheel.transitions")
_CLOSE_RUNS = _SQL["close_runs"]
_FIND_UNCLOSED = _SQL["find_unclosed"]
_DROP_SIGNALS = _SQL["drop_signals"]

# The state machine as SQL wants it: which end is allowed from which state.
_ALLOWED = words(f"{end}:{state}" for end in sorted(FINAL) for state in sorted(OPEN) if end_of(state, end) is not None)
_STATES = {state.value: state for state in RunState}

_DEFINITIONS = Definitions()


class RunEnd(NamedTuple):
    """A run to be ended.

    Args:
        run_id: The run.
        attempt: The attempt that reports, or the row's attempt where none runs: the fence.
        executor_id: In whose hands the attempt is; None where none runs. Part of the fence, because a run that went
            back keeps its attempt.
        state: The terminal state wanted; a run that is being cancelled becomes cancelled whatever is wanted.
        reason: Why skipped or cancelled, or which timeout struck.
        error_type: The error's type name.
        error_message: What it said, bounded by the caller.
        trace: Its traceback.
        result: What the handler returned, as JSON text, at most 64 KiB.
        output: The attempt's last output; None leaves what was flushed while it ran.
        output_bytes: How much it ever wrote.
        unflushed: Whether it is certain that no output was flushed while it ran.
        request: The message it came by, where the caller still has it; saves reading it again.
        definition: The definition in it, decoded, likewise.
        outcome: How the attempt ended, where that is not what the run's state says: `lost` of a run that is given up.
    """

    run_id: UUID
    attempt: int
    state: RunState
    executor_id: UUID | None = None
    reason: str | None = None
    error_type: str | None = None
    error_message: str | None = None
    trace: str | None = None
    result: bytes | None = None
    output: bytes | None = None
    output_bytes: int | None = None
    unflushed: bool = False
    request: records.RunRequest | None = None
    definition: records.JobDefinition | None = None
    outcome: AttemptOutcome | None = None


class ClosedRun(NamedTuple):
    """An open run's row as it was when it ended.

    Args:
        place: Of its end among those asked for, from 1.
        ended_as: The terminal state.
        run: The run's id, as text.
        job: Its job's.
        ended_at: When, by the database's clock; the same for all of a batch.
    """

    place: int
    ended_as: str
    run: str
    job: str
    tenant: str
    shard: int
    queue: str
    lane: str
    cause: str
    overlap: str
    state: str
    job_version: int
    attempt: int
    scheduled_at: datetime
    publish_at: datetime
    started_at: datetime | None
    ended_at: datetime

    @property
    def run_id(self) -> UUID:
        """The run."""
        return read_uuid(self.run)

    @property
    def job_id(self) -> UUID:
        """Its job."""
        return read_uuid(self.job)


@dataclass(slots=True)
class Ended:
    """What became of the ends asked for.

    Args:
        states: The terminal state of each run that ended now.
        busy: Runs whose row was locked by somebody: to be tried again.
        superseded: Runs that are over or in another attempt's hands: nothing was changed.
    """

    states: dict[UUID, RunState] = field(default_factory=dict[UUID, RunState])
    busy: set[UUID] = field(default_factory=set[UUID])
    superseded: set[UUID] = field(default_factory=set[UUID])


class Outcome(NamedTuple):
    """One run that ends now, with everything that is written about it."""

    row: ClosedRun
    end: RunEnd
    state: RunState
    request: records.RunRequest
    definition: records.JobDefinition


def end_runs(connection: Conn, installation: Installation, ends: Sequence[RunEnd], *, lasting: bool = False) -> Ended:
    """End runs, in the caller's transaction.

    Args:
        connection: Inside a transaction.
        installation: Topic names and encoding.
        ends: At most one per run.
        lasting: The transaction is a user's, and may last: timers, jobs and turns are not locked for so long. What the
            ends set off there is noted down with them, and follows within a second or so (`deferred_effects`).

    Returns:
        What became of each.
    """
    result = Ended()
    if not ends:
        return result
    rows = _close(connection, ends)
    if len(rows) < len(ends):
        _sort_the_rest(connection, ends, rows, result)
    if not rows:
        return result
    outcomes = _outcomes(connection, ends, rows)
    write_outputs(connection, [_attempt(outcome) for outcome in outcomes if _left(outcome)])
    # Whatever may wait for timers or jobs has its place here: with a turn in hand nobody waits for them (ADR 0008).
    pauses = [] if lasting else _set_off(connection, installation, outcomes)
    dead = [outcome for outcome in outcomes if outcome.state in DEAD_LETTERED]
    letters = [_bury(connection, installation, outcome) for outcome in dead]
    triggers = failure_triggers(installation, [_given_up(o, on) for o in dead if (on := o.definition.on_failure)])
    events = completions(outcomes, installation, rows[0].ended_at)
    append(connection, chain(events, letters, pauses, triggers), shards=installation.shards)
    if lasting:
        note_loose_ends(connection, [_loose_end(outcome) for outcome in outcomes])
    else:
        holders = [outcome for outcome in outcomes if outcome.row.overlap != Overlap.ALLOW_ALL]
        give_up_turns(connection, installation, [(holder.row.job_id, holder.end.run_id) for holder in holders])
    cancelled = [outcome.end.run_id for outcome in outcomes if outcome.row.state == RunState.CANCELLING]
    if cancelled:
        connection.execute(_DROP_SIGNALS, {"run_ids": cancelled})
    result.states = {outcome.end.run_id: outcome.state for outcome in outcomes}
    _count(outcomes)
    return result


def _close(connection: Conn, ends: Sequence[RunEnd]) -> list[ClosedRun]:
    ids = [end.run_id for end in ends]
    if strange := set(of_unknown_days(connection, ids)):
        # Made with the run already, unless somebody dropped it while the run was open for weeks.
        found = _find_unclosed(connection, [end for end in ends if end.run_id in strange])
        ensure_days(connection, {day_of(at) for at in run_instants(found)})
    first, last = days_between(ids)
    columns = {
        **_fences(ends),
        "outcomes": _few([end.outcome for end in ends]),
        "reasons": _few([end.reason for end in ends]),
        "error_types": _few([end.error_type for end in ends]),
        "error_messages": _few([end.error_message for end in ends]),
        "cancelling": RunState.CANCELLING,
        "cancelled": RunState.CANCELLED,
        "first_run_id": first,
        "last_run_id": last,
    }
    with connection.cursor(row_factory=rows_of(ClosedRun._make), binary=True) as cursor:
        return cursor.execute(_CLOSE_RUNS, columns).fetchall()


def _sort_the_rest(connection: Conn, ends: Sequence[RunEnd], rows: Sequence[ClosedRun], result: Ended) -> None:
    closed = {row.place for row in rows}
    rest = [end for place, end in enumerate(ends, 1) if place not in closed]
    result.busy = _find_unclosed(connection, rest)
    result.superseded = {end.run_id for end in rest} - result.busy


def _find_unclosed(connection: Conn, ends: Sequence[RunEnd]) -> set[UUID]:
    found = connection.execute(_FIND_UNCLOSED, _fences(ends), binary=True).fetchall()
    return {run_id for (run_id,) in found if isinstance(run_id, UUID)}


def _fences(ends: Sequence[RunEnd]) -> dict[str, object]:
    return {
        "run_ids": uuids(end.run_id for end in ends),
        "attempts": integers(end.attempt for end in ends),
        "executor_ids": uuids(end.executor_id for end in ends),
        "states": words(end.state for end in ends),
        "allowed": _ALLOWED,
    }


def _few(values: Sequence[str | None]) -> object:
    """A text[] of what most ends have none of: unnest fills up with nulls."""
    return "{}" if all(value is None for value in values) else values


def _outcomes(connection: Conn, ends: Sequence[RunEnd], rows: Sequence[ClosedRun]) -> list[Outcome]:
    built = build_requests(connection, [row for row in rows if ends[row.place - 1].request is None])
    outcomes: list[Outcome] = []
    for row in rows:
        end = ends[row.place - 1]
        request = end.request or built[end.run_id]
        definition = end.definition or _DEFINITIONS.of(request.definition)
        outcomes.append(Outcome(row, end, _STATES[row.ended_as], request, definition))
    return outcomes


def _count(outcomes: Sequence[Outcome]) -> None:
    alike = Counter([(o.state, o.end.state, o.end.outcome, o.row.started_at is None) for o in outcomes])
    for (state, wanted, outcome, never_begun), count in alike.items():
        metrics.count("runs_ended", count, state)
        if not never_begun:
            metrics.count("attempts", count, (outcome or state) if state is wanted else state)


def _set_off(connection: Conn, installation: Installation, outcomes: Sequence[Outcome]) -> list[OutboxRow]:
    advance_chains(connection, [_link(outcome.row) for outcome in outcomes if _chains(outcome)])
    counted = [outcome for outcome in outcomes if outcome.definition.pause_on_failure is not None]
    return count_failures(connection, installation, [_ending(outcome) for outcome in counted])


def _left(outcome: Outcome) -> bool:
    """Whether an attempt leaves more than its outcome."""
    end = outcome.end
    return bool(end.result is not None or end.trace or end.output) and outcome.row.started_at is not None


def _said(outcome: Outcome) -> str:
    """How the attempt ended; a run that was cancelled meanwhile ended as that."""
    return (outcome.end.outcome or outcome.state) if outcome.state is outcome.end.state else outcome.state


def _attempt(outcome: Outcome) -> AttemptEnd:
    row, end = outcome.row, outcome.end
    return AttemptEnd(
        run_id=end.run_id,
        attempt=row.attempt,
        tenant=row.tenant,
        executor_id=end.executor_id,
        started_at=row.started_at,
        finished_at=row.ended_at,
        outcome=AttemptOutcome(_said(outcome)),
        result=end.result,
        trace=end.trace,
        output=end.output,
        output_bytes=end.output_bytes,
        unflushed=end.unflushed,
    )


def _bury(connection: Conn, installation: Installation, outcome: Outcome) -> OutboxRow:
    return bury(
        connection,
        installation,
        row=outcome.row,
        end=outcome.end,
        state=outcome.state,
        request=outcome.request,
        definition=outcome.definition,
    )


def _chains(outcome: Outcome) -> bool:
    return bool(outcome.definition.fixed_delay) and outcome.row.cause == Cause.TIMER


def _link(row: ClosedRun) -> tuple[UUID, datetime, datetime]:
    return row.job_id, row.scheduled_at, row.ended_at


def _ending(outcome: Outcome) -> Ending:
    row, definition = outcome.row, outcome.definition
    return Ending(
        run_id=outcome.end.run_id,
        job_id=row.job_id,
        job_key=definition.job_key,
        tenant=row.tenant,
        shard=row.shard,
        state=outcome.state,
        most=definition.pause_on_failure or 0,
        ended_at=row.ended_at,
    )


def _loose_end(outcome: Outcome) -> LooseEnd:
    row = outcome.row
    return LooseEnd(
        run_id=outcome.end.run_id,
        job_id=row.job_id,
        tenant=row.tenant,
        ended_at=row.ended_at,
        chain_at=row.scheduled_at if _chains(outcome) else None,
        counted=outcome.definition.pause_on_failure is not None and outcome.state is RunState.SUCCEEDED,
        turn=row.overlap != Overlap.ALLOW_ALL,
    )


def _given_up(outcome: Outcome, on_failure: str) -> GivenUp:
    row, end = outcome.row, outcome.end
    return GivenUp(
        run_id=end.run_id,
        job_key=outcome.definition.job_key,
        tenant=row.tenant,
        shard=row.shard,
        state=outcome.state,
        reason=end.reason,
        error_type=end.error_type,
        error_message=end.error_message,
        attempt=row.attempt,
        scheduled_at=row.scheduled_at,
        ended_at=row.ended_at,
        labels=outcome.request.labels or {},
        traceparent=outcome.request.traceparent,
        on_failure=on_failure,
    )
