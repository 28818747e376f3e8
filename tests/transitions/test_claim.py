"""A claim is a compare-and-set: one winner, and nothing that is stale, early or of another version."""

from datetime import timedelta
from uuid import uuid4

import pytest

from tests.fixtures.acts import EXECUTOR, about
from tests.fixtures.database import ClockedDatabase, Database
from tidewheel.runs import AttemptOutcome
from tidewheel.transitions.claim import Claim, Claimed, claim_runs, read_claims


def claimed(database: Database, *claims: Claim) -> Claimed:
    with database.transaction() as connection:
        return claim_runs(connection, database.installation, claims, executor_id=EXECUTOR)


def test_two_executors_one_run_one_winner(database: Database) -> None:
    database.submit()
    wanted = database.requested_claim(database.trigger())
    first, second = database.connection(), database.connection()
    ours = claim_runs(first, database.installation, [wanted], executor_id=uuid4())
    # The row is locked and not yet committed: the other one passes it over instead of waiting.
    assert claim_runs(second, database.installation, [wanted], executor_id=uuid4()).started == []
    first.commit()
    assert claim_runs(second, database.installation, [wanted], executor_id=uuid4()).started == []
    second.commit()
    assert [started.attempt for started in ours.started] == [1]
    assert database.open_run(wanted.run_id).attempt == 1


def test_claim_records_executor_and_message(database: Database) -> None:
    database.submit()
    run_id = database.trigger()
    before = database.open_run(run_id)
    [started] = claimed(database, Claim(run_id, 1, 1, "t.runs.standard/3/17@1700000000000")).started
    run = database.open_run(run_id)
    assert (run.state, run.attempt, run.failed_attempts, run.lost_attempts) == ("running", 1, 0, 0)
    assert (run.executor_id, run.claimed_from) == (EXECUTOR, "t.runs.standard/3/17@1700000000000")
    assert started.started_at == run.started_at
    assert started.publish_at == before.publish_at
    assert started.started_at >= before.publish_at


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({"attempt": 2}, id="a later attempt"),
        pytest.param({"attempt": 0}, id="an earlier attempt"),
        pytest.param({"job_version": 2}, id="a later version"),
        pytest.param({"job_version": 0}, id="an earlier version"),
        pytest.param({"run_id": uuid4()}, id="a run that was taken back"),
    ],
)
def test_mismatched_claim_is_lost(database: Database, wrong: dict[str, int]) -> None:
    database.submit()
    run_id = database.trigger()
    refused = claimed(database, database.requested_claim(run_id)._replace(**wrong))
    assert (refused.started, refused.overlaps.skipped) == ([], set())
    assert database.open_run(run_id).state == "queued"
    assert len(database.claim(run_id).started) == 1


def test_message_after_an_edit_claims_its_own_version(database: Database) -> None:
    """A trigger keeps the version that was current when it was accepted, even after an edit."""
    database.submit()
    run_id = database.trigger()
    assert database.submit(labels={"team": "billing"}).job_version == 2
    stale = database.requested_claim(run_id)
    assert stale.job_version == 1
    assert claimed(database, stale._replace(job_version=2)).started == []
    assert len(claimed(database, stale).started) == 1


def test_no_run_is_claimed_before_publish_at_of_the_database_clock(clocked: ClockedDatabase) -> None:
    clocked.stop_clock()
    clocked.submit()
    run_id = clocked.trigger(delay="10s")
    clocked.advance(timedelta(seconds=10) - timedelta(microseconds=1))
    assert clocked.claim(run_id).started == []
    clocked.advance(timedelta(microseconds=1))
    [started] = clocked.claim(run_id).started
    assert started.started_at == started.publish_at


def test_redelivered_message_claims_nothing(database: Database) -> None:
    database.submit()
    wanted = database.requested_claim(database.trigger())
    [started] = claimed(database, wanted).started
    assert claimed(database, wanted).started == []
    assert claimed(database, wanted._replace(attempt=2)).started == []
    database.succeed(started)
    assert claimed(database, wanted).started == []


def test_duplicate_messages_in_a_batch_are_one_claim(database: Database) -> None:
    database.submit()
    wanted = database.requested_claim(database.trigger())
    assert len(claimed(database, wanted, wanted).started) == 1


def test_attempt_number_is_never_issued_twice(database: Database) -> None:
    database.submit()
    run_id = database.trigger()
    for number, outcome in enumerate([o for o in AttemptOutcome if o.value in {"failed", "lost", "released"}], 1):
        started = database.begin(run_id)
        assert started.attempt == number
        database.requeue(started, outcome)
    assert database.open_run(run_id).attempt == 3


def test_committed_claims_are_read_back_after_a_lost_commit(database: Database) -> None:
    database.submit()
    ours, others, unclaimed = (database.requested_claim(database.trigger()) for _ in range(3))
    someone = uuid4()
    [started] = claimed(database, ours).started
    with database.transaction() as connection:
        claim_runs(connection, database.installation, [others], executor_id=someone)
    with database.transaction() as connection:
        assert read_claims(connection, [ours, others, unclaimed], executor_id=EXECUTOR) == [started]
    database.requeue(started, AttemptOutcome.RELEASED)
    with database.transaction() as connection:
        assert read_claims(connection, [ours], executor_id=EXECUTOR) == []


def test_rolled_back_claim_leaves_the_run_claimable(database: Database) -> None:
    database.submit()
    wanted = database.requested_claim(database.trigger())
    connection = database.connection()
    assert len(claim_runs(connection, database.installation, [wanted], executor_id=EXECUTOR).started) == 1
    connection.rollback()
    assert database.open_run(wanted.run_id).attempt == 0
    assert len(claimed(database, wanted).started) == 1


def test_cancelled_run_is_not_claimed(database: Database) -> None:
    database.submit()
    wanted = database.requested_claim(database.trigger())
    database.apply_batch({"type": "run.cancel", "run_id": str(wanted.run_id)})
    assert claimed(database, wanted).started == []
    assert database.job_runs() == []


def test_triggered_run_of_a_paused_job_is_claimed(database: Database) -> None:
    database.submit()
    database.apply_batch(about("job.pause"))
    assert len(database.claim(database.trigger()).started) == 1
