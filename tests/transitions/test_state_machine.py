"""Every move from every state, on real rows: an allowed move happens, another changes nothing.

No run is blocked yet, so none is promoted from there. A new writer of a move must be listed in `WRITERS`.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.fixtures.acts import EXECUTOR
from tests.fixtures.database import Database
from tidewheel.ids import job_id
from tidewheel.postgres.session import Conn
from tidewheel.runs import FINAL, MOVES, OPEN, AttemptOutcome, Move, RunState, end_of, target
from tidewheel.transitions.active_runs import NO_RUN, AcquireRequest, buffer_runs, mark_waiters, release_active_runs
from tidewheel.transitions.cancellation import request_cancel
from tidewheel.transitions.claim import Claim, claim_runs
from tidewheel.transitions.finish import finish_runs
from tidewheel.transitions.finished import RunEnd
from tidewheel.transitions.requeue import Requeue, requeue_runs

ENDS = {Move.SUCCEED, Move.FAIL, Move.TIME_OUT, Move.CANCEL, Move.SKIP}
REQUEUES = {
    Move.RETRY: AttemptOutcome.FAILED,
    Move.RELEASE: AttemptOutcome.RELEASED,
    Move.SNOOZE: AttemptOutcome.SNOOZED,
}
WRITERS = ENDS | set(REQUEUES) | {Move.CLAIM, Move.REQUEST_CANCEL, Move.BUFFER, Move.PROMOTE}
WITHOUT_WRITER = {Move.WAIT}
ACTIVE = {RunState.RUNNING, RunState.WAITING, RunState.CANCELLING}
JOB = job_id("default", "job")


def test_every_move_has_a_writer_or_is_listed_without_one() -> None:
    assert set(Move) == WRITERS | WITHOUT_WRITER
    assert not WRITERS & WITHOUT_WRITER


def run_in(database: Database, state: RunState) -> UUID:
    """A run in a state, with one attempt behind it or under way."""
    run_id = database.trigger()
    active = state in ACTIVE or state in FINAL - {RunState.SKIPPED, RunState.CANCELLED}
    attempt = 0 if state in {RunState.QUEUED, RunState.BUFFERED, RunState.BLOCKED, RunState.SKIPPED} else 1
    before_end = RunState.RUNNING if active else RunState.QUEUED
    database.execute(
        "UPDATE job_runs SET state = %s, attempt = %s, executor_id = %s, started_at = %s WHERE run_id = %s",
        [state if state in OPEN else before_end, attempt, EXECUTOR if active else None,
         database.now() if active else None, run_id],
    )  # fmt: skip
    if state is RunState.BUFFERED:
        database.execute("UPDATE job_runs SET publish_at = 'infinity' WHERE run_id = %s", [run_id])
    if state in FINAL:
        done = database.within(
            finish_runs, database.installation, [RunEnd(run_id, attempt, state, EXECUTOR if active else None)]
        )
        assert done.states == {run_id: state}
    return run_id


def rows_of(database: Database, run_id: UUID) -> Mapping[str, Sequence[Any]]:
    return {
        "open": database.rows("SELECT to_jsonb(o) FROM job_runs AS o WHERE run_id = %s", [run_id]),
        "run": database.rows("SELECT to_jsonb(r) FROM runs AS r WHERE run_id = %s", [run_id]),
        "attempts": database.attempts(run_id),
        "signals": database.rows("SELECT * FROM signals WHERE run_id = %s", [run_id]),
        "events": [event for event in database.completions() if event.run_id == str(run_id)],
        "messages": database.rows("SELECT value FROM outbox WHERE key = %s ORDER BY id", [str(run_id).encode()]),
    }


def make(database: Database, move: Move, run_id: UUID) -> bool:
    """Make a move by its writer; returns whether it says that it was made."""
    owned = "SELECT attempt, o.executor_id FROM runs LEFT JOIN job_runs AS o USING (run_id, attempt) WHERE run_id = %s"
    [(attempt, hands)] = database.rows(owned, [run_id])
    with database.transaction() as connection:
        if move is Move.CLAIM:
            wanted = Claim(run_id, attempt + 1, 1, "test/0/0@0")
            return bool(claim_runs(connection, database.installation, [wanted], executor_id=uuid4()).started)
        if move is Move.REQUEST_CANCEL:
            return request_cancel(connection, {run_id: "requested"}) == {run_id}
        if move is Move.BUFFER:
            return buffer_runs(connection, [AcquireRequest(JOB, "default", run_id)]) == {run_id}
        if move is Move.PROMOTE:
            return release(connection, database, run_id)
        if move in REQUEUES:
            moved = requeue_runs(connection, database.installation, [Requeue(run_id, attempt, hands, REQUEUES[move])])
            assert moved.busy == set()
            return bool(moved.runs)
        done = finish_runs(connection, database.installation, [RunEnd(run_id, attempt, target(move), hands)])
        assert done.busy == set()
        return bool(done.states)


def release(connection: Conn, database: Database, run_id: UUID) -> bool:
    """Release an active run that only this run can wait for."""
    connection.execute("DELETE FROM job_runs WHERE run_id <> %s", [run_id])
    mark_waiters(connection, [(JOB, "default")])
    connection.execute("UPDATE active_runs SET run_id = %s", [NO_RUN])
    release_active_runs(connection, database.installation, [(JOB, NO_RUN)])
    return connection.execute("SELECT FROM active_runs WHERE run_id = %s", [run_id]).fetchone() is not None


@pytest.fixture(scope="module")
def with_job(shared_database: Database) -> Database:
    shared_database.submit()
    return shared_database


# No run is blocked yet: the code that promotes blocked runs has to add its case here.
TRIED = [pair for pair in product(RunState, sorted(WRITERS)) if pair != (RunState.BLOCKED, Move.PROMOTE)]


@pytest.mark.parametrize(("state", "move"), TRIED)
def test_move_happens_only_where_the_table_allows_it(with_job: Database, state: RunState, move: Move) -> None:
    run_id = run_in(with_job, state)
    before = rows_of(with_job, run_id)
    # A run that is being cancelled becomes cancelled, however its attempt ended, and does not go back.
    becomes = end_of(state, target(move)) if move in ENDS and state in OPEN else target(move)
    goes_no_further = state is RunState.CANCELLING and move in REQUEUES
    allowed = state in MOVES[move].sources or (state is RunState.CANCELLING and move in ENDS)
    assert make(with_job, move, run_id) is allowed
    if goes_no_further:
        assert with_job.final_state(run_id)[0] == RunState.CANCELLED
    elif allowed:
        assert with_job.final_state(run_id)[0] == becomes
        assert rows_of(with_job, run_id) != before
    else:
        assert rows_of(with_job, run_id) == before


@pytest.mark.parametrize("state", sorted(FINAL))
def test_terminal_run_has_one_event_and_no_open_row(with_job: Database, state: RunState) -> None:
    rows = rows_of(with_job, run_in(with_job, state))
    assert (len(rows["open"]), len(rows["run"]), len(rows["events"])) == (0, 1, 1)
