"""End runs set-wise, in the caller's transaction: the only code that writes a terminal state.

It writes the outcome, the attempt, the completion event and the dead letter, and releases the active run. A row that
another transaction holds is reported as busy: the caller retries. A row that is gone or belongs to another attempt is
superseded: the report comes from a zombie and changes nothing.
"""

import logging
from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from itertools import chain
from typing import cast
from uuid import UUID

from tidewheel.outbox import OutboxRow, append
from tidewheel.postgres.pg_binary import integers, texts, uuids, words
from tidewheel.postgres.session import Conn, at_commit, read_ids, rows_of
from tidewheel.postgres.statements import Statements
from tidewheel.process import tracing
from tidewheel.process.metrics import count_by_job, metrics
from tidewheel.runs import DEAD_LETTERED, FINAL, OPEN, AttemptOutcome, Gate, RunState, end_of
from tidewheel.schemas.generated import records
from tidewheel.transitions.active_runs import release_active_runs
from tidewheel.transitions.after_end import (
    add_deferred_effects,
    count_at_commit,
    count_failures,
    failure_triggers,
    keep_inputs,
    schedule_after_end,
    schedule_next_in,
)
from tidewheel.transitions.attempts import AttemptEnd, write_attempts, write_outputs
from tidewheel.transitions.children import write_releases
from tidewheel.transitions.dead_letters import dead_letter_run
from tidewheel.transitions.events import completions, record_spans
from tidewheel.transitions.finished import ClosedRun, Ended, FinishedRun, RunEnd
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.messages import DEFINITIONS, build_requests
from tidewheel.transitions.places import FreedPlace
from tidewheel.transitions.run_keys import settle_keys

_LOG = logging.getLogger("tidewheel.transitions")

_SQL = Statements("tidewheel.transitions")
_CLOSE_UNIFORM = _SQL["close_uniform"]
_SET_WAITS = _SQL["set_waits"]
_CLOSE_RUNS = _SQL["close_runs"]
_FIND_STILL_OPEN = _SQL["find_still_open"]
_DROP_SIGNALS = _SQL["drop_signals"]

# The state machine for SQL: each end with a state that allows it.
_ALLOWED = words(f"{end}:{state}" for end in sorted(FINAL) for state in sorted(OPEN) if end_of(state, end) is not None)
_STATES = {state.value: state for state in RunState}

# The end of a run with one of these may wait for other rows. What waits for a key allows that itself, with kept plans.
_WAITS = (Gate.MET | Gate.WHOLE).value

_UniformRow = tuple[
    UUID, datetime, datetime, datetime, int, datetime, str | None, str | None, int | None, UUID | None, int | None,
    int | None,
]  # fmt: skip


def finish_runs(
    connection: Conn,
    installation: Installation,
    ends: Sequence[RunEnd],
    *,
    lasting: bool = False,
    uniform: bool = False,
    freed_keys: list[FreedPlace] | None = None,
) -> Ended:
    """End runs, in the caller's transaction.

    Args:
        connection: Inside a transaction; metrics and log lines follow its commit.
        ends: At most one per run.
        lasting: True for a client's own transaction, which may stay open: timers, jobs, inputs and active runs are not
            locked. Their part is stored as deferred effects, which the scheduler applies within about a second. The
            transaction holds the runs, so a cancel that was accepted meanwhile comes too late.
        uniform: True in a session with the options `UNIFORM`, if the caller repeats everything without it when the
            transaction meets a lock: successes end by one statement that waits for locks, in run_id order.
        freed_keys: Gets the place that each ended run held, for a caller that gives back all places of its
            transaction at once (`settle_keys`): keys are its last locks. Without it they are given back here.

    Raises:
        psycopg.errors.LockNotAvailable: Another transaction holds a row; only if `uniform`.
    """
    result = Ended()
    if not ends:
        return result
    rows = _close_uniform(connection, ends) if uniform else []
    if uniform and (len(rows) < len(ends) or any(row.gates and row.gates & _WAITS for row in rows) or _may_wait(ends)):
        allow_waits(connection)
    if len(rows) < len(ends):
        closed = {row.place for row in rows}
        rest = [(place, end) for place, end in enumerate(ends, 1) if place not in closed]
        closing = _close(connection, [end for _, end in rest], held=lasting)
        rows += [row._replace(place=rest[row.place - 1][0]) for row in closing]
    if len(rows) < len(ends):
        _classify_rest(connection, ends, rows, result)
    if not rows:
        return result
    finished = _join(connection, ends, rows)
    first = [run for run in finished if not run.row.refused]
    write_attempts(connection, [_attempt(run) for run in first if run.leaves_attempt])
    write_outputs(connection, [run for run in first if run.has_output])
    result.released = write_releases(connection, first, installation.shards)
    # Statements that may wait for timers or jobs come here: with an active run locked, none may wait (ADR 0008).
    pauses = [] if lasting else _apply_follow_ups(connection, installation, finished)
    dead = [run for run in first if run.state in DEAD_LETTERED]
    letters = [dead_letter_run(connection, installation, run) for run in dead]
    triggers = failure_triggers(installation, dead)
    events = completions(first, installation)
    append(connection, chain(events, letters, pauses, triggers), shards=installation.shards)
    if lasting:
        add_deferred_effects(connection, finished)
    else:
        held = [(run.row.job_id, run.end.run_id) for run in finished if run.may_be_active]
        release_active_runs(connection, installation, held)
    cancelled = [run.end.run_id for run in finished if run.row.state == RunState.CANCELLING]
    if cancelled:
        connection.execute(_DROP_SIGNALS, {"run_ids": cancelled})
    freed = [] if lasting else [place for run in finished if run.row.gates for place in run.held_places]
    if freed_keys is not None:
        freed_keys += freed
    elif freed:
        settle_keys(connection, installation, freed=freed)
    result.states = {run.end.run_id: run.state for run in finished}
    _report_at_commit(connection, finished, first, lasting=lasting)
    return result


def allow_waits(connection: Conn) -> None:
    """Let the following statements of a transaction wait for locks, in a session of `UNIFORM`."""
    connection.execute(_SET_WAITS, {"lock_timeout": "10s"})


def _may_wait(ends: Sequence[RunEnd]) -> bool:
    """Return True if the end of a run may wait for its job's timer or row."""
    return any(
        end.definition is None or end.definition.fixed_delay or end.definition.pause_on_failure is not None
        for end in ends
    )


def _close_uniform(connection: Conn, ends: Sequence[RunEnd]) -> list[ClosedRun]:
    """End the runs that succeeded; all of one attempt number and one executor in one statement."""
    alike: defaultdict[tuple[int, UUID], list[int]] = defaultdict(list)
    for place, end in enumerate(ends, 1):
        if end.state is RunState.SUCCEEDED and end.outcome is None and end.request is not None and end.executor_id:
            alike[end.attempt, end.executor_id].append(place)
    return [
        row
        for (attempt, executor), places in alike.items()
        for row in _close_alike(connection, ends, places, attempt, executor)
    ]


def _close_alike(
    connection: Conn, ends: Sequence[RunEnd], places: Sequence[int], attempt: int, executor_id: UUID
) -> list[ClosedRun]:
    chosen = [ends[place - 1] for place in places]
    columns: dict[str, object] = {
        "run_ids": uuids(end.run_id for end in chosen),
        "claimed_from": texts(end.claimed_from for end in chosen),
        "attempt": attempt,
        "executor_id": executor_id,
        "running": RunState.RUNNING,
        "succeeded": RunState.SUCCEEDED,
    }
    by_id = {end.run_id.int: place for place, end in zip(places, chosen, strict=True)}
    rows: list[ClosedRun] = []
    found = connection.execute(_CLOSE_UNIFORM, columns, binary=True).fetchall()
    for row in cast("list[_UniformRow]", found):
        (run_id, publish_at, created_at, started_at, gates, ended_at, request_id, requested_from,
         key_id, workflow_run_id, generation, order_no) = row  # fmt: skip
        ended_at = rows[0].ended_at if rows else ended_at  # one object: the hash of each would cost 0.3 us
        place = by_id[run_id.int]
        end = ends[place - 1]
        request = cast("records.RunRequest", end.request)
        definition = end.definition or DEFINITIONS.of(request.definition)
        # By position, in the order of the fields: this many keyword arguments cost a microsecond.
        rows.append(
            ClosedRun._make((
                place, RunState.SUCCEEDED, request.run_id, request.job_id, definition.tenant, request.shard,
                definition.queue, definition.lane, request.cause, gates, RunState.RUNNING, request.job_version, attempt,
                request.scheduled_at, publish_at, created_at, started_at, end.claimed_from, ended_at,
                request_id, requested_from, None, False, key_id, workflow_run_id, generation, None, order_no,
            ))
        )  # fmt: skip
    return rows


def _close(connection: Conn, ends: Sequence[RunEnd], *, held: bool) -> list[ClosedRun]:
    columns = {
        **_fences(ends),
        "reasons": texts(end.reason for end in ends),
        "error_types": texts(end.error_type for end in ends),
        "claimed_from": texts(end.claimed_from for end in ends),
        "cancelling": RunState.CANCELLING,
        "cancelled": RunState.CANCELLED,
        "held": held,
    }
    with connection.cursor(row_factory=rows_of(ClosedRun._make), binary=True) as cursor:
        return cursor.execute(_CLOSE_RUNS, columns).fetchall()


def _classify_rest(connection: Conn, ends: Sequence[RunEnd], rows: Sequence[ClosedRun], result: Ended) -> None:
    closed = {row.place for row in rows}
    rest = [end for place, end in enumerate(ends, 1) if place not in closed]
    result.busy = read_ids(connection, _FIND_STILL_OPEN, _fences(rest))
    result.superseded = {end.run_id for end in rest} - result.busy


def _fences(ends: Sequence[RunEnd]) -> dict[str, object]:
    return {
        "run_ids": uuids(end.run_id for end in ends),
        "attempts": integers(end.attempt for end in ends),
        "executor_ids": uuids(end.executor_id for end in ends),
        "states": words(end.state for end in ends),
        "allowed": _ALLOWED,
    }


def _join(connection: Conn, ends: Sequence[RunEnd], rows: Sequence[ClosedRun]) -> list[FinishedRun]:
    built = build_requests(connection, [row for row in rows if ends[row.place - 1].request is None])
    finished: list[FinishedRun] = []
    for row in rows:
        end = ends[row.place - 1]
        if row.cancel_reason is not None:
            end = end._replace(reason=row.cancel_reason)
        request = end.request or built[end.run_id]
        definition = end.definition or DEFINITIONS.of(request.definition)
        finished.append(FinishedRun(row, end, _STATES[row.ended_as], request, definition))
    return finished


def _attempt(run: FinishedRun) -> AttemptEnd:
    row, end = run.row, run.end
    assert row.started_at is not None  # noqa: S101 - `leaves_attempt`
    return AttemptEnd(
        run_id=end.run_id,
        attempt=row.attempt,
        tenant=row.tenant,
        executor_id=end.executor_id,
        started_at=row.started_at,
        finished_at=row.ended_at,
        outcome=AttemptOutcome(run.attempt_outcome),
        error_type=end.error_type,
        error_message=end.error_message,
        claimed_from=row.claimed_from,
    )


def _apply_follow_ups(connection: Conn, installation: Installation, finished: Sequence[FinishedRun]) -> list[OutboxRow]:
    keep_inputs(
        connection, [(run.end.run_id, run.row.created_at, run.row.ended_at) for run in finished if run.moves_inputs]
    )
    chained = [run for run in finished if run.sets_next_time]
    schedule_after_end(connection, [(run.row.job_id, run.row.scheduled_at, run.row.ended_at) for run in chained])
    schedule_next_in(
        connection, [(run.row.job_id, run.row.job_version, run.row.ended_at, run.end.next_in) for run in chained]
    )
    counted = [run for run in finished if run.counts_failures and not run.row.refused]
    return count_failures(connection, installation, counted)


def _report_at_commit(
    connection: Conn, finished: Sequence[FinishedRun], first: Sequence[FinishedRun], *, lasting: bool
) -> None:
    at_commit(connection, partial(_count, first))
    count_at_commit(connection, first)
    if len(first) < len(finished):
        at_commit(connection, partial(_announce, [run for run in finished if run.row.refused]))
    if tracing.spans is not None:
        record = partial(record_spans, tracing.spans, first)
        if lasting:  # no service sees the commit
            record()
        else:
            at_commit(connection, record)


def _announce(refused: Sequence[FinishedRun]) -> None:
    """Log and count ends of runs that had ended before, and whose first end stays."""
    for run in refused:
        metrics.count("ends_refused")
        text = "the run had ended before it was created again; the first end stays, the end of attempt %d is dropped"
        _LOG.error(text, run.row.attempt, extra={"run_id": str(run.end.run_id), "attempt": run.row.attempt})


def _count(finished: Sequence[FinishedRun]) -> None:
    for state, count in Counter(run.state for run in finished).items():
        metrics.count("runs_ended", count, state)
    count_by_job((run.row.tenant, run.definition.job_key, run.state) for run in finished)
    if succeeded := sum(run.state is RunState.SUCCEEDED and run.row.started_at is not None for run in finished):
        metrics.count("attempts", succeeded, AttemptOutcome.SUCCEEDED)
