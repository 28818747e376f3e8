"""Attempts that wait for an external completion: without an owner, until their deadline or end."""

from datetime import timedelta
from uuid import UUID

import pytest

from tests.fixtures.database import Database
from tests.transitions.acts import (
    EXECUTOR,
    NEVER,
    apply_batch,
    attempts,
    begun,
    completions,
    final_state,
    open_run,
    some_executor,
    submit,
    succeed,
)
from tidewheel.transitions.await_external import Wait, end_cancelled_waits, wait_runs
from tidewheel.transitions.claim import Started

HOUR = timedelta(hours=1)


@pytest.fixture
def with_job(database: Database) -> Database:
    submit(database)
    return database


def wait(database: Database, *waits: Wait) -> set[object]:
    """Write waits as an executor does."""
    with database.transaction() as connection:
        return {*wait_runs(connection, waits).busy, *end_cancelled_waits(connection, database.installation, waits).busy}


def waiting(started: Started, *, attempt: int = 1, executor_id: UUID = EXECUTOR) -> Wait:
    return Wait(started.run_id, attempt, executor_id, HOUR)


def test_waiting_run_is_never_due_and_keeps_its_executor(with_job: Database) -> None:
    started = begun(with_job)
    before = with_job.now()
    assert wait(with_job, waiting(started)) == set()
    row = open_run(with_job, started.run_id)
    assert (row.state, row.attempt, row.executor_id, row.publish_at) == ("waiting", 1, EXECUTOR, NEVER)
    [(deadline, until)] = with_job.rows("SELECT deadline_at, external_deadline_at FROM job_runs")
    assert before + HOUR <= deadline <= with_job.now() + HOUR
    assert deadline == until  # of one look at the clock: which of the two has passed says what was waited for


def test_repeated_wait_after_a_lost_commit_changes_nothing(with_job: Database) -> None:
    started = begun(with_job)
    for _ in range(2):
        assert wait(with_job, waiting(started)) == set()
    assert open_run(with_job, started.run_id).state == "waiting"
    assert completions(with_job) == []


def test_fenced_attempt_does_not_wait(with_job: Database) -> None:
    started = begun(with_job)
    wait(with_job, waiting(started, executor_id=some_executor()))
    wait(with_job, waiting(started, attempt=0))
    assert open_run(with_job, started.run_id).state == "running"


def test_cancel_requested_before_the_wait_ends_the_run(with_job: Database) -> None:
    """Its executor has released it: no other process would end it before that executor dies."""
    started, other = begun(with_job), begun(with_job)
    apply_batch(with_job, {"type": "run.cancel", "run_id": str(started.run_id)})
    assert wait(with_job, waiting(started), waiting(other)) == set()
    assert final_state(with_job, started.run_id)[0] == "cancelled"
    assert attempts(with_job, started.run_id) == [(1, "cancelled")]
    assert with_job.count("signals") == 0
    assert open_run(with_job, other.run_id).state == "waiting"


def test_finished_run_does_not_wait(with_job: Database) -> None:
    started = begun(with_job)
    succeed(with_job, started)
    assert wait(with_job, waiting(started)) == set()
    assert final_state(with_job, started.run_id)[0] == "succeeded"


def test_locked_run_is_reported_for_a_retry(with_job: Database) -> None:
    started = begun(with_job)
    holding = with_job.connection()
    holding.execute("SELECT FROM job_runs FOR UPDATE")
    assert wait(with_job, waiting(started)) == {started.run_id}
    holding.rollback()
    assert wait(with_job, waiting(started)) == set()
    assert open_run(with_job, started.run_id).state == "waiting"
