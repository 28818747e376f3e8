"""`end_runs`: every terminal move of a run, set-wise, in the caller's transaction.

Outcome, attempt row, completion event, dead letter, and the turn given up: one place, so that none of them can be
forgotten anywhere. No other SQL writes a terminal state. What an end finds locked is reported as busy and must be tried
again; what it finds gone or moved on is superseded: a zombie's report, which changes nothing.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.arrays import instants, integers, uuids, words
from tidewheel.db import Conn
from tidewheel.ids import event_id
from tidewheel.metrics import metrics
from tidewheel.outbox import OutboxClass, OutboxRow, append
from tidewheel.runs import DEAD_LETTERED, FINAL, OPEN, AttemptOutcome, Cause, Overlap, RunState, end_of, sequence_of
from tidewheel.schemas import records
from tidewheel.schemas.cloudevents import completion_headers
from tidewheel.sql import Statements
from tidewheel.transitions.attempts import AttemptEnd, write_attempts
from tidewheel.transitions.chains import advance_chains
from tidewheel.transitions.dead_letters import bury
from tidewheel.transitions.dispatch import Definitions, build_requests
from tidewheel.transitions.failures import Ending, GivenUp, count_failures, failure_triggers
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.loose_ends import LooseEnd, note_loose_ends
from tidewheel.transitions.turns import give_up_turns

_SQL = Statements("tidewheel.transitions")
_CLOSE_RUNS = _SQL["close_runs"]
_FIND_UNCLOSED = _SQL["find_unclosed"]
_FINISH_JOB_RUNS = _SQL["finish_job_runs"]
_DROP_SIGNALS = _SQL["drop_signals"]

# The state machine as SQL wants it: which end is allowed from which state.
_ALLOWED = sorted((end, state) for end in FINAL for state in OPEN if end_of(state, end) is not None)
_ENDS, _SOURCES = words(end for end, _ in _ALLOWED), words(state for _, state in _ALLOWED)

_DEFINITIONS = Definitions()


@dataclass(frozen=True, slots=True)
class RunEnd:
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


@dataclass(frozen=True, slots=True)
class ClosedRun:
    """An open run's row as it was when it ended."""

    run_id: UUID
    job_id: UUID
    tenant: str
    shard: int
    queue: str
    lane: str
    cause: str
    overlap: str
    state: str
    job_version: int
    attempt: int
    charged: int
    scheduled_at: datetime
    publish_at: datetime
    started_at: datetime | None
    executor_id: UUID | None
    came_by: str | None
    ended_at: datetime


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


@dataclass(frozen=True, slots=True)
class _Outcome:
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
            ends set off there is noted down with them, and follows within a second or so (`loose_ends`).

    Returns:
        What became of each.
    """
    result = Ended()
    if not ends:
        return result
    wanted = {end.run_id: end for end in ends}
    rows = _close(connection, wanted)
    _sort_the_rest(connection, wanted, rows, result)
    outcomes = _outcomes(connection, wanted, rows)
    if not outcomes:
        return result
    _finish(connection, outcomes)
    write_attempts(connection, [_attempt(outcome) for outcome in outcomes if _ran(outcome.row)])
    # Whatever may wait for timers or jobs has its place here: with a turn in hand nobody waits for them (ADR 0008).
    pauses = [] if lasting else _set_off(connection, installation, outcomes)
    dead = [outcome for outcome in outcomes if outcome.state in DEAD_LETTERED]
    events = [_completion(outcome, installation) for outcome in outcomes]
    events += [_bury(connection, installation, outcome) for outcome in dead]
    triggers = failure_triggers(installation, [_given_up(o, on) for o in dead if (on := o.definition.on_failure)])
    append(connection, events + pauses + triggers, shards=installation.shards)
    if lasting:
        note_loose_ends(connection, [_loose_end(outcome) for outcome in outcomes])
    else:
        holders = [outcome.row for outcome in outcomes if _holds_turn(outcome)]
        give_up_turns(connection, installation, [(row.job_id, row.run_id) for row in holders])
    cancelled = [outcome.row.run_id for outcome in outcomes if outcome.row.state == RunState.CANCELLING]
    if cancelled:
        connection.execute(_DROP_SIGNALS, {"run_ids": cancelled})
    result.states = {outcome.row.run_id: outcome.state for outcome in outcomes}
    for state, count in Counter(result.states.values()).items():
        metrics.count("runs_ended", count, state)
    return result


def _close(connection: Conn, wanted: Mapping[UUID, RunEnd]) -> list[ClosedRun]:
    with connection.cursor(row_factory=class_row(ClosedRun), binary=True) as cursor:
        return cursor.execute(_CLOSE_RUNS, _columns(wanted.values())).fetchall()


def _sort_the_rest(connection: Conn, wanted: Mapping[UUID, RunEnd], rows: Sequence[ClosedRun], result: Ended) -> None:
    closed = {row.run_id for row in rows}
    rest = [end for run_id, end in wanted.items() if run_id not in closed]
    if rest:
        found = connection.execute(_FIND_UNCLOSED, _columns(rest), binary=True).fetchall()
        result.busy = {run_id for (run_id,) in found if isinstance(run_id, UUID)}
        result.superseded = {end.run_id for end in rest} - result.busy


def _columns(ends: Iterable[RunEnd]) -> dict[str, object]:
    listed = list(ends)
    return {
        "run_ids": uuids(end.run_id for end in listed),
        "attempts": integers(end.attempt for end in listed),
        "executor_ids": uuids(end.executor_id for end in listed),
        "states": words(end.state for end in listed),
        "ends": _ENDS,
        "sources": _SOURCES,
    }


def _outcomes(connection: Conn, wanted: Mapping[UUID, RunEnd], rows: Sequence[ClosedRun]) -> list[_Outcome]:
    missing = [row for row in rows if wanted[row.run_id].request is None]
    built = build_requests(connection, missing)
    outcomes: list[_Outcome] = []
    for row in rows:
        end = wanted[row.run_id]
        state = end_of(RunState(row.state), end.state)
        assert state is not None  # noqa: S101 - close_runs goes by the same table
        request = end.request or built[row.run_id]
        definition = end.definition or _DEFINITIONS.of(request.definition)
        outcomes.append(_Outcome(row, end, state, request, definition))
    return outcomes


def _finish(connection: Conn, outcomes: Sequence[_Outcome]) -> None:
    columns: dict[str, object] = {
        "run_ids": uuids(o.row.run_id for o in outcomes),
        "states": words(o.state for o in outcomes),
        "attempts": integers(o.row.attempt for o in outcomes),
        "started_at": instants(o.row.started_at for o in outcomes),
        "finished_at": instants(o.row.ended_at for o in outcomes),
        "reasons": [o.end.reason for o in outcomes],
        "error_types": [o.end.error_type for o in outcomes],
    }
    connection.execute(_FINISH_JOB_RUNS, columns)


def _set_off(connection: Conn, installation: Installation, outcomes: Sequence[_Outcome]) -> list[OutboxRow]:
    advance_chains(connection, [_link(outcome.row) for outcome in outcomes if _chains(outcome)])
    return count_failures(connection, installation, [_ending(outcome) for outcome in outcomes if _counts(outcome)])


def _attempt(outcome: _Outcome) -> AttemptEnd:
    row, end = outcome.row, outcome.end
    said = end.outcome if outcome.state is end.state else None  # a run that was cancelled meanwhile ended as that
    return AttemptEnd(
        run_id=row.run_id,
        attempt=row.attempt,
        tenant=row.tenant,
        executor_id=row.executor_id,
        started_at=row.started_at,
        finished_at=row.ended_at,
        outcome=said or AttemptOutcome(outcome.state),
        error_type=end.error_type,
        error_message=end.error_message,
        came_by=row.came_by,
        result=end.result,
        trace=end.trace,
        output=end.output,
        output_bytes=end.output_bytes,
        unflushed=end.unflushed,
    )


def _completion(outcome: _Outcome, installation: Installation) -> OutboxRow:
    row, end, definition = outcome.row, outcome.end, outcome.definition
    sequence = sequence_of(row.attempt, ended_running=_ran(row))
    error = None
    if end.error_type and outcome.state in DEAD_LETTERED:
        error = records.RunError(type=end.error_type, message=end.error_message or "")
    event = records.RunCompleted(
        event_id=str(event_id(row.run_id, outcome.state, sequence)),
        run_id=str(row.run_id),
        job_id=str(row.job_id),
        job_key=definition.job_key,
        job_version=row.job_version,
        tenant=row.tenant,
        lane=records.Lane(row.lane),
        cause=records.Cause(row.cause),
        status=records.RunStatus(outcome.state),
        scheduled_at=row.scheduled_at,
        published_at=row.publish_at,
        started_at=row.started_at,
        finished_at=row.ended_at,
        attempt=row.attempt,
        max_attempts=definition.retry.max_attempts,
        executor_id=str(row.executor_id) if row.executor_id else None,
        result=end.result if outcome.state is RunState.SUCCEEDED else None,
        error=error,
        labels={**definition.labels, **(outcome.request.labels or {})},
        parent_run_id=outcome.request.parent_run_id,
        root_run_id=outcome.request.root_run_id,
        sequence=sequence,
        late_ms=outcome.request.late_ms,
        reason=end.reason,
    )
    return OutboxRow(
        shard=row.shard,
        outbox_class=OutboxClass.EVENTS,
        topic=installation.topics.completions,
        key=event.job_id.encode(),
        value=installation.encode_event(event),
        publish_at=row.ended_at,
        headers=completion_headers(
            event,
            source=installation.source,
            content_type=installation.content_type,
            traceparent=outcome.request.traceparent,
        ),
    )


def _bury(connection: Conn, installation: Installation, outcome: _Outcome) -> OutboxRow:
    return bury(
        connection,
        installation,
        row=outcome.row,
        end=outcome.end,
        state=outcome.state,
        request=outcome.request,
        definition=outcome.definition,
    )


def _chains(outcome: _Outcome) -> bool:
    return bool(outcome.definition.fixed_delay) and outcome.row.cause == Cause.TIMER


def _link(row: ClosedRun) -> tuple[UUID, datetime, datetime]:
    return row.job_id, row.scheduled_at, row.ended_at


def _counts(outcome: _Outcome) -> bool:
    return outcome.definition.pause_on_failure is not None


def _ending(outcome: _Outcome) -> Ending:
    row, definition = outcome.row, outcome.definition
    return Ending(
        run_id=row.run_id,
        job_id=row.job_id,
        job_key=definition.job_key,
        tenant=row.tenant,
        shard=row.shard,
        state=outcome.state,
        most=definition.pause_on_failure or 0,
        ended_at=row.ended_at,
    )


def _holds_turn(outcome: _Outcome) -> bool:
    return outcome.row.overlap != Overlap.ALLOW_ALL


def _loose_end(outcome: _Outcome) -> LooseEnd:
    row = outcome.row
    return LooseEnd(
        run_id=row.run_id,
        job_id=row.job_id,
        tenant=row.tenant,
        ended_at=row.ended_at,
        chained_at=row.scheduled_at if _chains(outcome) else None,
        counted=_counts(outcome) and outcome.state is RunState.SUCCEEDED,
        turn=_holds_turn(outcome),
    )


def _given_up(outcome: _Outcome, on_failure: str) -> GivenUp:
    row, end = outcome.row, outcome.end
    return GivenUp(
        run_id=row.run_id,
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


def _ran(row: ClosedRun) -> bool:
    return row.started_at is not None
