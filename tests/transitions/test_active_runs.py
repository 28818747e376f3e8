"""Runs of a job that may not overlap: the second is skipped until the active run is terminal."""

from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from tests.fixtures.database import Database
from tests.transitions.acts import (
    EXECUTOR,
    active_run_of,
    apply_batch,
    attempts,
    begin,
    claim,
    completions,
    end,
    ending,
    final_state,
    open_run,
    requested_claim,
    requeue,
    submit,
    succeed,
    trigger,
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


def test_second_run_of_a_job_is_skipped_with_an_event(skipping: Database) -> None:
    first, second = trigger(skipping), trigger(skipping)
    begin(skipping, first)
    refused = claim(skipping, second)
    assert (refused.started, refused.overlaps.skipped) == ([], {second})
    assert final_state(skipping, second) == ("skipped", "overlap")
    assert attempts(skipping, second) == []
    [event] = completions(skipping)
    assert (event.run_id, event.status, event.reason) == (str(second), "skipped", "overlap")
    assert (event.attempt, event.sequence, event.started_at, event.error) == (0, 1, None, None)
    assert active_run_of(skipping, JOB) == first


def test_of_two_runs_of_a_job_in_one_claim_one_starts(skipping: Database) -> None:
    runs = {trigger(skipping), trigger(skipping)}
    done = claim(skipping, *runs)
    assert len(done.started) == len(done.overlaps.skipped) == 1
    assert {done.started[0].run_id} | done.overlaps.skipped == runs


def test_allow_all_starts_both_triggers_of_a_claim(database: Database) -> None:
    submit(database)
    replies = apply_batch(database, *({"type": "job.trigger", "key": "job"} for _ in range(2)))
    runs = {UUID(reply.run_id) for reply in replies}
    assert len(runs) == 2
    assert {started.run_id for started in claim(database, *runs).started} == runs
    assert active_run_of(database, JOB) is None


def test_runs_of_different_jobs_do_not_wait_for_each_other(skipping: Database) -> None:
    submit(skipping, "other", overlap="skip")
    assert len(claim(skipping, trigger(skipping), trigger(skipping, "other")).started) == 2


@pytest.mark.parametrize("state", [RunState.SUCCEEDED, RunState.FAILED, RunState.TIMED_OUT])
def test_active_run_is_released_when_it_is_terminal(skipping: Database, state: RunState) -> None:
    first = begin(skipping, trigger(skipping))
    end(skipping, ending(first, state))
    assert active_run_of(skipping, JOB) is None
    assert len(claim(skipping, trigger(skipping)).started) == 1


@pytest.mark.parametrize("outcome", [AttemptOutcome.RELEASED, AttemptOutcome.SNOOZED, AttemptOutcome.FAILED])
def test_requeued_run_stays_the_active_run(skipping: Database, outcome: AttemptOutcome) -> None:
    first = begin(skipping, trigger(skipping))
    requeue(skipping, first, outcome)
    assert active_run_of(skipping, JOB) == first.run_id
    second = trigger(skipping)
    assert claim(skipping, second).overlaps.skipped == {second}
    assert begin(skipping, first.run_id).attempt == 2


def test_skipped_run_does_not_release_the_active_run(skipping: Database) -> None:
    first = begin(skipping, trigger(skipping))
    claim(skipping, trigger(skipping))
    assert active_run_of(skipping, JOB) == first.run_id
    succeed(skipping, first)
    assert active_run_of(skipping, JOB) is None


def test_cancelled_queued_run_does_not_release_the_active_run(skipping: Database) -> None:
    first = begin(skipping, trigger(skipping))
    apply_batch(skipping, {"type": "run.cancel", "run_id": str(trigger(skipping))})
    assert active_run_of(skipping, JOB) == first.run_id


def test_stale_active_run_is_released(skipping: Database) -> None:
    """A deleted run may leave its active run behind: it must not block the job for ever."""
    skipping.execute("INSERT INTO active_runs (job_id, tenant, run_id) VALUES (%s, 'default', %s)", [JOB, uuid4()])
    run_id = trigger(skipping)
    assert len(claim(skipping, run_id).started) == 1
    assert active_run_of(skipping, JOB) == run_id


def test_one_of_two_runs_acquires_from_a_stale_active_run(skipping: Database) -> None:
    skipping.execute("INSERT INTO active_runs (job_id, tenant, run_id) VALUES (%s, 'default', %s)", [JOB, uuid4()])
    done = claim(skipping, trigger(skipping), trigger(skipping))
    assert len(done.started) == len(done.overlaps.skipped) == 1
    assert active_run_of(skipping, JOB) == done.started[0].run_id


def test_claim_waits_for_a_concurrent_end_and_becomes_active(skipping: Database) -> None:
    """The claim waits for the row of an uncommitted release, and then acquires it."""
    first = begin(skipping, trigger(skipping))
    second = requested_claim(skipping, trigger(skipping))
    closing, claiming = skipping.connection(), skipping.connection()
    ended = finish_runs(closing, skipping.installation, [ending(first, RunState.SUCCEEDED)])
    assert ended.states == {first.run_id: RunState.SUCCEEDED}
    waiting = in_background(lambda: claim_runs(claiming, skipping.installation, [second], executor_id=EXECUTOR))
    until_blocked(skipping, claiming)
    closing.commit()
    assert len(waiting.result(10).started) == 1
    claiming.commit()
    assert active_run_of(skipping, JOB) == second.run_id


def test_active_run_keeps_its_place_during_a_retry_delay(skipping: Database) -> None:
    first = begin(skipping, trigger(skipping))
    requeue(skipping, first, AttemptOutcome.FAILED, timedelta(hours=1))
    assert open_run(skipping, first.run_id).state == "retrying"
    late = trigger(skipping)
    assert claim(skipping, late).overlaps.skipped == {late}
