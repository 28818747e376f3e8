"""Attempts that wait for an external completion: without an owner, until their deadline or end."""

from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from tests.fixtures.acts import EXECUTOR, NEVER
from tests.fixtures.database import Database
from tidewheel.transitions.await_external import Wait, end_cancelled_waits, wait_runs
from tidewheel.transitions.claim import Started

HOUR = timedelta(hours=1)


@pytest.fixture
def with_job(database: Database) -> Database:
    database.submit()
    return database


def wait(database: Database, *waits: Wait) -> set[object]:
    """Write waits as an executor does."""
    with database.transaction() as connection:
        return {*wait_runs(connection, waits).busy, *end_cancelled_waits(connection, database.installation, waits).busy}


def waiting(started: Started, *, attempt: int = 1, executor_id: UUID = EXECUTOR) -> Wait:
    return Wait(started.run_id, attempt, executor_id, HOUR)


def test_waiting_run_is_never_due_and_keeps_its_executor(with_job: Database) -> None:
    started = with_job.begun()
    before = with_job.now()
    assert wait(with_job, waiting(started)) == set()
    row = with_job.open_run(started.run_id)
    assert (row.state, row.attempt, row.executor_id, row.publish_at) == ("waiting", 1, EXECUTOR, NEVER)
    [(deadline, until)] = with_job.rows("SELECT deadline_at, external_deadline_at FROM job_runs")
    assert before + HOUR <= deadline <= with_job.now() + HOUR
    assert deadline == until  # of one look at the clock: which of the two has passed says what was waited for


def test_repeated_wait_after_a_lost_commit_changes_nothing(with_job: Database) -> None:
    started = with_job.begun()
    for _ in range(2):
        assert wait(with_job, waiting(started)) == set()
    assert with_job.open_run(started.run_id).state == "waiting"
    assert with_job.completions() == []


def test_fenced_attempt_does_not_wait(with_job: Database) -> None:
    started = with_job.begun()
    wait(with_job, waiting(started, executor_id=uuid4()))
    wait(with_job, waiting(started, attempt=0))
    assert with_job.open_run(started.run_id).state == "running"


def test_cancel_requested_before_the_wait_ends_the_run(with_job: Database) -> None:
    """Its executor has released it: no other process would end it before that executor dies."""
    started, other = with_job.begun(), with_job.begun()
    with_job.apply_batch({"type": "run.cancel", "run_id": str(started.run_id)})
    assert wait(with_job, waiting(started), waiting(other)) == set()
    assert with_job.final_state(started.run_id)[0] == "cancelled"
    assert with_job.attempts(started.run_id) == [(1, "cancelled")]
    assert with_job.count("signals") == 0
    assert with_job.open_run(other.run_id).state == "waiting"


def test_finished_run_does_not_wait(with_job: Database) -> None:
    started = with_job.begun()
    with_job.succeed(started)
    assert wait(with_job, waiting(started)) == set()
    assert with_job.final_state(started.run_id)[0] == "succeeded"


def test_locked_run_is_reported_for_a_retry(with_job: Database) -> None:
    started = with_job.begun()
    holding = with_job.connection()
    holding.execute("SELECT FROM job_runs FOR UPDATE")
    assert wait(with_job, waiting(started)) == {started.run_id}
    holding.rollback()
    assert wait(with_job, waiting(started)) == set()
    assert with_job.open_run(started.run_id).state == "waiting"
