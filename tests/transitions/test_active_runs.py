"""Runs of one job that may not overlap take turns: the second is skipped, the holder keeps it until it is terminal."""

from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from tests.fixtures.database import Database
from tests.transitions.acts import (
    EXECUTOR,
    ask,
    attempts,
    begin,
    claim,
    completions,
    end,
    ending,
    final_state,
    open_run,
    requeue,
    submit,
    succeed,
    trigger,
    turn_of,
    wish,
)
from tests.transitions.stepping import in_background, until_blocked
from tidewheel.ids import job_id
from tidewheel.runs import AttemptOutcome, RunState
from tidewheel.transitions.claim import claim_runs
from tidewheel.transitions.finish import finish_runs

JOB = job_id("default", "job")


@pytest.fixture
def skipping(database: Database) -> Database:
    """A database with one job whose runs may not overlap."""
    submit(database, overlap="skip")
    return database


def test_the_second_run_of_a_job_is_skipped_with_its_event(skipping: Database) -> None:
    first, second = trigger(skipping), trigger(skipping)
    begin(skipping, first)
    refused = claim(skipping, second)
    assert (refused.started, refused.overlaps.skipped) == ([], {second})
    assert final_state(skipping, second) == ("skipped", "overlap")
    assert attempts(skipping, second) == []
    [event] = completions(skipping)
    assert (event.run_id, event.status, event.reason) == (str(second), "skipped", "overlap")
    assert (event.attempt, event.sequence, event.started_at, event.error) == (0, 1, None, None)
    assert turn_of(skipping, JOB) == first


def test_two_runs_of_a_job_in_one_batch_one_starts_one_is_skipped(skipping: Database) -> None:
    runs = {trigger(skipping), trigger(skipping)}
    done = claim(skipping, *runs)
    assert len(done.started) == len(done.overlaps.skipped) == 1
    assert {done.started[0].run_id} | done.overlaps.skipped == runs


def test_two_triggers_in_one_batch_that_may_overlap_both_start(database: Database) -> None:
    submit(database)
    replies = ask(database, *({"type": "job.trigger", "key": "job"} for _ in range(2)))
    runs = {UUID(reply.run_id) for reply in replies}
    assert len(runs) == 2
    assert {started.run_id for started in claim(database, *runs).started} == runs
    assert turn_of(database, JOB) is None


def test_runs_of_different_jobs_do_not_wait_for_each_other(skipping: Database) -> None:
    submit(skipping, "other", overlap="skip")
    assert len(claim(skipping, trigger(skipping), trigger(skipping, "other")).started) == 2


@pytest.mark.parametrize("state", [RunState.SUCCEEDED, RunState.FAILED, RunState.TIMED_OUT])
def test_the_turn_is_free_again_when_its_holder_is_terminal(skipping: Database, state: RunState) -> None:
    first = begin(skipping, trigger(skipping))
    end(skipping, ending(first, state))
    assert turn_of(skipping, JOB) is None
    assert len(claim(skipping, trigger(skipping)).started) == 1


@pytest.mark.parametrize("outcome", [AttemptOutcome.RELEASED, AttemptOutcome.SNOOZED, AttemptOutcome.FAILED])
def test_a_run_that_goes_back_while_it_holds_its_turn_keeps_it(skipping: Database, outcome: AttemptOutcome) -> None:
    first = begin(skipping, trigger(skipping))
    requeue(skipping, first, outcome)
    assert turn_of(skipping, JOB) == first.run_id
    second = trigger(skipping)
    assert claim(skipping, second).overlaps.skipped == {second}
    assert begin(skipping, first.run_id).attempt == 2


def test_a_skipped_run_does_not_free_the_turn_of_the_one_that_runs(skipping: Database) -> None:
    first = begin(skipping, trigger(skipping))
    claim(skipping, trigger(skipping))
    assert turn_of(skipping, JOB) == first.run_id
    succeed(skipping, first)
    assert turn_of(skipping, JOB) is None


def test_a_cancelled_run_that_never_began_does_not_free_another_ones_turn(skipping: Database) -> None:
    first = begin(skipping, trigger(skipping))
    ask(skipping, {"type": "run.cancel", "run_id": str(trigger(skipping))})
    assert turn_of(skipping, JOB) == first.run_id


def test_a_stale_turn_is_taken_over(skipping: Database) -> None:
    """`complete_in` and people with psql leave turns behind whose run is gone: they must not stop the job for ever."""
    skipping.execute("INSERT INTO active_runs (job_id, tenant, run_id) VALUES (%s, 'default', %s)", [JOB, uuid4()])
    run_id = trigger(skipping)
    assert len(claim(skipping, run_id).started) == 1
    assert turn_of(skipping, JOB) == run_id


def test_of_two_runs_that_find_a_stale_turn_one_takes_it(skipping: Database) -> None:
    skipping.execute("INSERT INTO active_runs (job_id, tenant, run_id) VALUES (%s, 'default', %s)", [JOB, uuid4()])
    done = claim(skipping, trigger(skipping), trigger(skipping))
    assert len(done.started) == len(done.overlaps.skipped) == 1
    assert turn_of(skipping, JOB) == done.started[0].run_id


def test_a_claim_waits_for_an_end_under_way_and_then_takes_the_turn(skipping: Database) -> None:
    """An end that has given the turn up but not committed: the claim waits on the turn's row, and finds it free."""
    first = begin(skipping, trigger(skipping))
    second = wish(skipping, trigger(skipping))
    closing, claiming = skipping.connection(), skipping.connection()
    ended = finish_runs(closing, skipping.installation, [ending(first, RunState.SUCCEEDED)])
    assert ended.states == {first.run_id: RunState.SUCCEEDED}
    waiting = in_background(lambda: claim_runs(claiming, skipping.installation, [second], executor_id=EXECUTOR))
    until_blocked(skipping, claiming)
    closing.commit()
    assert len(waiting.result(10).started) == 1
    claiming.commit()
    assert turn_of(skipping, JOB) == second.run_id


def test_a_retry_waits_for_its_time_with_the_turn_in_hand(skipping: Database) -> None:
    first = begin(skipping, trigger(skipping))
    requeue(skipping, first, AttemptOutcome.FAILED, timedelta(hours=1))
    assert open_run(skipping, first.run_id).state == "retrying"
    late = trigger(skipping)
    assert claim(skipping, late).overlaps.skipped == {late}
