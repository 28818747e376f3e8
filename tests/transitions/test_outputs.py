"""`flush_outputs` stores the output of running attempts under their fence; an end stores it too."""

from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.fixtures.acts import EXECUTOR, ending
from tests.fixtures.database import Database
from tidewheel.runs import AttemptOutcome, RunState
from tidewheel.transitions.attempts import AttemptOutput, flush_outputs
from tidewheel.transitions.claim import Started
from tidewheel.transitions.requeue import Requeue, requeue_runs


def flush(database: Database, started: Started, output: bytes, executor_id: UUID = EXECUTOR) -> bool:
    """Store what an attempt has written; returns whether it was stored."""
    written = AttemptOutput(started.run_id, started.attempt, output, len(output))
    with database.transaction() as connection:
        return flush_outputs(connection, executor_id, [written]) == {(started.run_id, started.attempt)}


def kept(database: Database) -> list[tuple[int, bytes | None, bytes | None, int | None]]:
    """Return the stored attempt, result, output and output_bytes."""
    rows = database.rows("SELECT attempt, result, output, output_bytes FROM attempt_outputs ORDER BY attempt")
    return [(row[0], row[1], row[2], row[3]) for row in rows]


@pytest.fixture
def started(database: Database) -> Started:
    database.submit()
    return database.begun()


def test_later_flush_replaces_an_earlier_one(database: Database, started: Started) -> None:
    assert flush(database, started, b"one\n")
    assert flush(database, started, b"one\ntwo\n")
    assert kept(database) == [(1, None, b"one\ntwo\n", 8)]


def test_flush_writes_only_running_attempts_of_its_executor(database: Database, started: Started) -> None:
    assert not flush(database, started, b"stranger", uuid4())
    database.succeed(started)
    assert not flush(database, started, b"late")
    assert kept(database) == []


def test_older_attempt_is_not_flushed(database: Database, started: Started) -> None:
    assert flush(database, started, b"first")
    database.requeue(started, AttemptOutcome.LOST)
    again = database.begin(started.run_id)
    assert not flush(database, started, b"zombie")
    assert flush(database, again, b"second")
    assert kept(database) == [(1, None, b"first", 5), (2, None, b"second", 6)]


def test_end_replaces_flushed_output(database: Database, started: Started) -> None:
    flush(database, started, b"one\n")
    database.end(ending(started, RunState.SUCCEEDED, result=b"1", output=b"one\ntwo\n", output_bytes=8))
    assert kept(database) == [(1, b"1", b"one\ntwo\n", 8)]


def test_end_without_output_keeps_flushed_output(database: Database, started: Started) -> None:
    """As from outside, by a task token, or in the handler's own transaction."""
    flush(database, started, b"one\n")
    database.end(ending(started, RunState.SUCCEEDED, result=b"1"))
    assert kept(database) == [(1, b"1", b"one\n", 4)]


def test_lost_attempt_keeps_flushed_output(database: Database, started: Started) -> None:
    flush(database, started, b"one\n")
    database.requeue(started, AttemptOutcome.LOST)
    assert kept(database) == [(1, None, b"one\n", 4)]


def test_retried_attempt_keeps_its_output(database: Database, started: Started) -> None:
    flush(database, started, b"one\n")
    failed = Requeue(
        started.run_id, started.attempt, EXECUTOR, AttemptOutcome.FAILED, trace="Trace", output=b"two\n", output_bytes=8
    )
    with database.transaction() as connection:
        requeue_runs(connection, database.installation, [failed])
    assert kept(database) == [(1, None, b"two\n", 8)]


@pytest.mark.parametrize("unflushed", [False, True])
def test_end_without_a_flush_is_stored_by_copy_or_insert(database: Database, started: Started, unflushed: bool) -> None:  # noqa: FBT001
    fields: dict[str, Any] = {"result": b"1", "output": b"one\n", "output_bytes": 4, "unflushed": unflushed}
    database.end(ending(started, RunState.SUCCEEDED, **fields))
    assert kept(database) == [(1, b"1", b"one\n", 4)]


def test_flush_skips_locked_runs_and_an_end_never_waits_for_a_flush(database: Database, started: Started) -> None:
    holder = database.connection()
    holder.execute("SELECT 1 FROM job_runs WHERE run_id = %s FOR UPDATE", [started.run_id])
    assert not flush(database, started, b"one")
    holder.rollback()
    flushing = database.connection()
    assert flush_outputs(flushing, EXECUTOR, [AttemptOutput(started.run_id, started.attempt, b"one", 3)])
    assert database.succeed(started).busy == {started.run_id}
    flushing.commit()
    assert database.succeed(started).states == {started.run_id: RunState.SUCCEEDED}
    assert kept(database) == [(1, None, b"one", 3)]


def test_cancelling_run_still_flushes(database: Database, started: Started) -> None:
    database.execute("UPDATE job_runs SET state = 'cancelling'")
    assert database.open_run(started.run_id).state == RunState.CANCELLING
    assert flush(database, started, b"tidying up\n")
