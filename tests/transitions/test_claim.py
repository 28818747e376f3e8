"""A claim is a compare-and-set: one winner, and nothing that is stale, early or of another version."""

from datetime import timedelta
from uuid import uuid4

import pytest

from tests.fixtures.database import ClockedDatabase, Database
from tests.transitions.acts import (
    EXECUTOR,
    about,
    ask,
    begin,
    claim,
    open_run,
    open_runs,
    requeue,
    submit,
    succeed,
    trigger,
    wish,
)
from tidewheel.runs import AttemptOutcome
from tidewheel.transitions.claim import Claim, Claimed, claim_runs, read_claims


def claimed(database: Database, *claims: Claim) -> Claimed:
    with database.transaction() as connection:
        return claim_runs(connection, database.installation, claims, executor_id=EXECUTOR)


def test_two_executors_one_run_one_winner(database: Database) -> None:
    submit(database)
    wanted = wish(database, trigger(database))
    first, second = database.connection(), database.connection()
    ours = claim_runs(first, database.installation, [wanted], executor_id=uuid4())
    # The row is locked and not yet committed: the other one passes it over instead of waiting.
    assert claim_runs(second, database.installation, [wanted], executor_id=uuid4()).started == []
    first.commit()
    assert claim_runs(second, database.installation, [wanted], executor_id=uuid4()).started == []
    second.commit()
    assert [started.attempt for started in ours.started] == [1]
    assert open_run(database, wanted.run_id).attempt == 1


def test_a_claim_writes_down_who_came_by_what(database: Database) -> None:
    submit(database)
    run_id = trigger(database)
    before = open_run(database, run_id)
    [started] = claimed(database, Claim(run_id, 1, 1, "t.runs.standard/3/17@1700000000000")).started
    run = open_run(database, run_id)
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
def test_what_does_not_fit_claims_nothing(database: Database, wrong: dict[str, int]) -> None:
    submit(database)
    run_id = trigger(database)
    refused = claimed(database, wish(database, run_id)._replace(**wrong))
    assert (refused.started, refused.overlaps.skipped) == ([], set())
    assert open_run(database, run_id).state == "queued"
    assert len(claim(database, run_id).started) == 1


def test_a_stale_message_after_an_edit_claims_by_the_version_it_names(database: Database) -> None:
    """A trigger carries the version that was current when it was accepted, also when the job is edited since."""
    submit(database)
    run_id = trigger(database)
    assert submit(database, labels={"team": "billing"}).job_version == 2
    stale = wish(database, run_id)
    assert stale.job_version == 1
    assert claimed(database, stale._replace(job_version=2)).started == []
    assert len(claimed(database, stale).started) == 1


def test_nothing_is_claimed_before_its_time_by_the_databases_clock(clocked: ClockedDatabase) -> None:
    clocked.stop_clock()
    submit(clocked)
    run_id = trigger(clocked, delay="10s")
    clocked.advance(timedelta(seconds=10) - timedelta(microseconds=1))
    assert claim(clocked, run_id).started == []
    clocked.advance(timedelta(microseconds=1))
    [started] = claim(clocked, run_id).started
    assert started.started_at == started.publish_at


def test_a_repeated_message_claims_nothing_while_the_run_runs_and_after_it_has_ended(database: Database) -> None:
    submit(database)
    wanted = wish(database, trigger(database))
    [started] = claimed(database, wanted).started
    assert claimed(database, wanted).started == []
    assert claimed(database, wanted._replace(attempt=2)).started == []
    succeed(database, started)
    assert claimed(database, wanted).started == []


def test_two_messages_for_one_run_in_a_batch_are_one_claim(database: Database) -> None:
    submit(database)
    wanted = wish(database, trigger(database))
    assert len(claimed(database, wanted, wanted).started) == 1


def test_an_attempt_number_is_never_issued_twice(database: Database) -> None:
    submit(database)
    run_id = trigger(database)
    for number, outcome in enumerate([o for o in AttemptOutcome if o.value in {"failed", "lost", "released"}], 1):
        started = begin(database, run_id)
        assert started.attempt == number
        requeue(database, started, outcome)
    assert open_run(database, run_id).attempt == 3


def test_after_a_lost_commit_what_stands_is_read_back_and_nothing_else(database: Database) -> None:
    submit(database)
    ours, others, unclaimed = (wish(database, trigger(database)) for _ in range(3))
    someone = uuid4()
    [started] = claimed(database, ours).started
    with database.transaction() as connection:
        claim_runs(connection, database.installation, [others], executor_id=someone)
    with database.transaction() as connection:
        assert read_claims(connection, [ours, others, unclaimed], executor_id=EXECUTOR) == [started]
    requeue(database, started, AttemptOutcome.RELEASED)
    with database.transaction() as connection:
        assert read_claims(connection, [ours], executor_id=EXECUTOR) == []


def test_a_rolled_back_claim_leaves_the_run_to_the_next(database: Database) -> None:
    submit(database)
    wanted = wish(database, trigger(database))
    connection = database.connection()
    assert len(claim_runs(connection, database.installation, [wanted], executor_id=EXECUTOR).started) == 1
    connection.rollback()
    assert open_run(database, wanted.run_id).attempt == 0
    assert len(claimed(database, wanted).started) == 1


def test_a_run_that_was_cancelled_before_its_message_came_claims_nothing(database: Database) -> None:
    submit(database)
    wanted = wish(database, trigger(database))
    ask(database, {"type": "run.cancel", "run_id": str(wanted.run_id)})
    assert claimed(database, wanted).started == []
    assert open_runs(database) == []


def test_a_paused_job_still_runs_what_was_triggered(database: Database) -> None:
    submit(database)
    ask(database, about("job.pause"))
    assert len(claim(database, trigger(database)).started) == 1
