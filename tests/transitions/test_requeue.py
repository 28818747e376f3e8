"""Attempts whose run goes on: requeued, waiting for an end from outside, with their output kept."""

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.fixtures.acts import EXECUTOR, NEVER, cancelling, ending
from tests.fixtures.database import Database
from tidewheel.outbox import slice_lane_of, slice_of
from tidewheel.runs import AttemptOutcome, RunState
from tidewheel.transitions.attempts import AttemptOutput, flush_outputs
from tidewheel.transitions.claim import Started
from tidewheel.transitions.requeue import Requeue, Wait, end_cancelled_waits, requeue_runs, wait_runs

# outcome, state, failed attempts, lost attempts
COUNTED = [
    (AttemptOutcome.FAILED, "retrying", 1, 0),
    (AttemptOutcome.TIMED_OUT, "retrying", 1, 0),
    (AttemptOutcome.LOST, "retrying", 0, 1),
    (AttemptOutcome.RELEASED, "queued", 0, 0),
    (AttemptOutcome.SNOOZED, "queued", 0, 0),
]


def test_only_failures_count_against_max_attempts(with_job: Database) -> None:
    for outcome, state, failed_attempts, lost in COUNTED:
        started = with_job.begun()
        with_job.requeue(started, outcome)
        run = with_job.open_run(started.run_id)
        counts = run.failed_attempts, run.lost_attempts
        assert (run.state, run.attempt, *counts) == (state, 1, failed_attempts, lost), outcome
        assert (run.executor_id, run.started_at) == (None, None), outcome
        assert with_job.attempts(started.run_id) == [(1, outcome)]
        assert with_job.completions() == [], outcome
        again = with_job.begin(started.run_id)
        assert (again.attempt, again.failed_attempts, again.lost_attempts) == (2, failed_attempts, lost), outcome


def test_next_attempt_has_its_publish_time_in_row_and_outbox(with_job: Database) -> None:
    started = with_job.begun()
    before = with_job.now()
    with_job.requeue(started, AttemptOutcome.FAILED, timedelta(hours=3))
    run = with_job.open_run(started.run_id)
    assert before + timedelta(hours=3) <= run.publish_at <= with_job.now() + timedelta(hours=3)
    first, second = with_job.requests()
    assert (first.attempt, second.attempt) == (1, 2)
    assert second.publish_at == run.publish_at
    [(leaves_at,)] = with_job.rows("SELECT max(publish_at) FROM outbox")
    assert leaves_at == run.publish_at
    assert run.scheduled_at == first.scheduled_at == second.scheduled_at


def test_retry_keeps_its_payload_and_its_job_version_across_an_edit(database: Database) -> None:
    database.submit(payload={"to": "everybody"}, labels={"team": "billing"})
    context = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    started = database.begun(payload={"to": "ann"}, labels={"one": "1"}, traceparent=context)
    database.submit(payload=2)
    database.requeue(started, AttemptOutcome.FAILED)
    first, second = database.requests()
    assert first.job_version == second.job_version == 1
    assert second.payload == first.payload == b'{"to":"ann"}'
    assert second.payload_content_type == "application/json"
    assert (second.labels, second.traceparent) == ({"one": "1"}, context)
    assert second.definition == first.definition
    assert database.begin(started.run_id).attempt == 2


def test_retry_message_goes_to_its_lane_and_queue(database: Database) -> None:
    database.submit(lane="critical", queue="reports")
    started = database.begun()
    database.requeue(started, AttemptOutcome.FAILED)
    assert [request.attempt for request in database.requests("critical", "reports")] == [1, 2]
    number = slice_of(database.value("SELECT shard FROM jobs"), database.installation.shards)
    found = database.rows("SELECT DISTINCT slice_lane FROM outbox WHERE topic LIKE '%.runs.%'")
    assert found == [(slice_lane_of(number, "critical"),)]


@pytest.mark.parametrize("executor_id", [EXECUTOR, uuid4()], ids=["an older attempt", "another executor"])
def test_attempt_that_is_not_owned_is_not_requeued(with_job: Database, executor_id: UUID) -> None:
    zombie = with_job.begun()
    with_job.requeue(zombie, AttemptOutcome.LOST)
    current = with_job.begin(zombie.run_id, executor_id)
    before = with_job.open_run(zombie.run_id)
    refused = with_job.requeue(zombie if executor_id == EXECUTOR else current, AttemptOutcome.FAILED)
    assert (refused.runs, refused.busy) == ({}, set())
    assert with_job.open_run(zombie.run_id) == before


def test_locked_run_is_busy_for_a_requeue(with_job: Database) -> None:
    started = with_job.begun()
    holding = with_job.connection()
    holding.execute("SELECT FROM job_runs WHERE run_id = %s FOR UPDATE", [started.run_id])
    refused = with_job.requeue(started, AttemptOutcome.FAILED)
    assert (refused.runs, refused.busy) == ({}, {started.run_id})
    holding.rollback()
    assert set(with_job.requeue(started, AttemptOutcome.FAILED).runs) == {started.run_id}


HOUR = timedelta(hours=1)


def wait(database: Database, *waits: Wait) -> set[object]:
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
    assert wait(with_job, waiting(started)) == set(), "repeated after a lost commit"
    assert with_job.open_run(started.run_id).state == "waiting"
    assert with_job.completions() == []


def test_fenced_or_finished_attempt_does_not_wait(with_job: Database) -> None:
    started = with_job.begun()
    wait(with_job, waiting(started, executor_id=uuid4()))
    wait(with_job, waiting(started, attempt=0))
    assert with_job.open_run(started.run_id).state == "running"
    with_job.succeed(started)
    assert wait(with_job, waiting(started)) == set()
    assert with_job.final_state(started.run_id)[0] == "succeeded"


def test_cancel_requested_before_the_wait_ends_the_run(with_job: Database) -> None:
    """Its executor has released it: no other process would end it before that executor dies."""
    started, other = with_job.begun(), with_job.begun()
    with_job.apply(cancelling(started.run_id))
    assert wait(with_job, waiting(started), waiting(other)) == set()
    assert with_job.final_state(started.run_id)[0] == "cancelled"
    assert with_job.attempts(started.run_id) == [(1, "cancelled")]
    assert with_job.count("signals") == 0
    assert with_job.open_run(other.run_id).state == "waiting"


def test_locked_run_is_reported_for_a_retry(with_job: Database) -> None:
    started = with_job.begun()
    holding = with_job.connection()
    holding.execute("SELECT FROM job_runs FOR UPDATE")
    assert wait(with_job, waiting(started)) == {started.run_id}
    holding.rollback()
    assert wait(with_job, waiting(started)) == set()
    assert with_job.open_run(started.run_id).state == "waiting"


def flush(database: Database, started: Started, output: bytes, executor_id: UUID = EXECUTOR) -> bool:
    written = AttemptOutput(started.run_id, started.attempt, output, len(output))
    return database.within(flush_outputs, executor_id, [written]) == {(started.run_id, started.attempt)}


def kept(database: Database) -> list[tuple[int, bytes | None, bytes | None, int | None]]:
    rows = database.rows("SELECT attempt, result, output, output_bytes FROM attempt_outputs ORDER BY attempt")
    return [(row[0], row[1], row[2], row[3]) for row in rows]


@pytest.fixture
def started(database: Database) -> Started:
    database.submit()
    return database.begun()


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


def test_later_flush_and_the_end_replace_flushed_output(database: Database, started: Started) -> None:
    assert flush(database, started, b"one\n")
    assert flush(database, started, b"one\ntwo\n")
    assert kept(database) == [(1, None, b"one\ntwo\n", 8)]
    database.end(ending(started, RunState.SUCCEEDED, result=b"1", output=b"one\ntwo\n3\n", output_bytes=10))
    assert kept(database) == [(1, b"1", b"one\ntwo\n3\n", 10)]


def test_end_without_output_keeps_flushed_output(database: Database, started: Started) -> None:
    """As from outside, by a task token, or in the handler's own transaction."""
    flush(database, started, b"one\n")
    database.end(ending(started, RunState.SUCCEEDED, result=b"1"))
    assert kept(database) == [(1, b"1", b"one\n", 4)]


def test_retried_attempt_keeps_its_output(database: Database, started: Started) -> None:
    flush(database, started, b"one\n")
    failed = Requeue(
        started.run_id, started.attempt, EXECUTOR, AttemptOutcome.FAILED, trace="Trace", output=b"two\n", output_bytes=8
    )
    database.within(requeue_runs, database.installation, [failed])
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
