"""Every policy through claims and ends, for whatever a run was made by."""

from datetime import timedelta

import pytest

from tests.fixtures.database import Database
from tests.transitions.acts import (
    EXECUTOR,
    NEVER,
    about,
    ask,
    attempts,
    begin,
    claim,
    completions,
    end,
    ending,
    final_state,
    open_run,
    open_runs,
    requests,
    requeue,
    submit,
    succeed,
    trigger,
    turn_of,
)
from tests.transitions.overlapping import JOB, holding, make, signals, waiting
from tidewheel.runs import AttemptOutcome, Cause, Overlap, RunState
from tidewheel.transitions.finished import RunEnd

CAUSES = [Cause.TIMER, Cause.TRIGGER, Cause.BACKFILL]
SKIP, ALL, ONE = Overlap.SKIP, Overlap.BUFFER_ALL, Overlap.BUFFER_ONE
CANCEL, TERMINATE = Overlap.CANCEL_OTHER, Overlap.TERMINATE_OTHER
REPLACING = [CANCEL, TERMINATE]


@pytest.fixture
def job(database: Database) -> Database:
    """A database with one job; its runs have policies of their own."""
    submit(database)
    return database


@pytest.mark.parametrize("cause", CAUSES)
@pytest.mark.parametrize("policy", [ALL, ONE, CANCEL])
def test_a_buffered_run_waits_without_a_time_and_goes_when_the_holder_has_ended(
    job: Database, policy: Overlap, cause: Cause
) -> None:
    first = holding(job)
    second = make(job, policy, cause)
    done = claim(job, second)
    assert (done.started, done.overlaps.buffered) == ([], {second})
    run = open_run(job, second)
    assert (run.state, run.attempt, run.publish_at) == (RunState.BUFFERED, 0, NEVER)
    assert waiting(job) is True
    assert claim(job, second).started == []
    before = job.now()
    succeed(job, first)
    run = open_run(job, second)
    assert (run.state, run.attempt, turn_of(job, JOB), waiting(job)) == (RunState.QUEUED, 0, second, False)
    assert before <= run.publish_at <= job.now()
    asked = [request for request in requests(job) if request.run_id == str(second)]
    assert [(request.attempt, request.cause) for request in asked] == [(1, cause)] * 2
    assert asked[-1].publish_at == run.publish_at
    again = begin(job, second)
    succeed(job, again)
    assert (open_runs(job), turn_of(job, JOB)) == ([], None)


@pytest.mark.parametrize("cause", CAUSES)
def test_skip_ends_whatever_the_run_was_made_by(job: Database, cause: Cause) -> None:
    holding(job)
    second = make(job, SKIP, cause)
    assert claim(job, second).overlaps.skipped == {second}
    assert final_state(job, second) == ("skipped", "overlap")
    assert waiting(job) is False


def test_buffered_runs_go_one_after_another_oldest_first(job: Database) -> None:
    first = holding(job)
    runs = [make(job, ALL) for _ in range(4)]
    claim(job, runs[2])
    claim(job, runs[3], runs[0], runs[1])
    succeed(job, first)
    for number, run in enumerate(runs):
        assert [each.state for each in open_runs(job)] == ["queued"] + ["buffered"] * (3 - number)
        assert waiting(job) is (number < 3)
        succeed(job, begin(job, run))
    assert open_runs(job) == []


def test_of_several_in_one_claim_the_oldest_starts_and_the_others_wait(job: Database) -> None:
    runs = [make(job, ALL) for _ in range(3)]
    done = claim(job, *reversed(runs))
    assert [started.run_id for started in done.started] == runs[:1]
    assert done.overlaps.buffered == set(runs[1:])


def test_buffer_one_keeps_the_one_that_waits_already(job: Database) -> None:
    first = holding(job)
    runs = [make(job, ONE) for _ in range(3)]
    claim(job, runs[1])
    done = claim(job, runs[0], runs[2])
    assert done.overlaps.skipped == {runs[0], runs[2]}
    assert {final_state(job, run) for run in (runs[0], runs[2])} == {("skipped", "overlap")}
    succeed(job, first)
    assert turn_of(job, JOB) == runs[1]


def test_buffer_one_waits_again_when_the_one_that_waited_has_gone(job: Database) -> None:
    first = holding(job)
    earlier, later = make(job, ONE), make(job, ONE)
    claim(job, earlier)
    succeed(job, first)
    assert claim(job, later).overlaps.buffered == {later}
    assert turn_of(job, JOB) == earlier


@pytest.mark.parametrize("cause", CAUSES)
def test_cancel_other_asks_the_one_that_runs_and_waits_for_its_end(job: Database, cause: Cause) -> None:
    first = holding(job)
    second = make(job, CANCEL, cause)
    done = claim(job, second)
    assert (done.overlaps.buffered, done.overlaps.cancel_requested, done.signalled) == ({second}, {first.run_id}, True)
    assert open_run(job, first.run_id).state == RunState.CANCELLING
    assert signals(job) == [(first.run_id, 1, "cancel", EXECUTOR)]
    succeed(job, first)
    assert final_state(job, first.run_id) == ("cancelled", None)
    assert (turn_of(job, JOB), open_run(job, second).state, signals(job)) == (second, "queued", [])


def test_of_those_that_wait_to_replace_the_newest_is_kept(job: Database) -> None:
    first = holding(job)
    runs = [make(job, CANCEL) for _ in range(3)]
    claim(job, runs[1])
    assert claim(job, runs[2]).overlaps.skipped == {runs[1]}
    assert claim(job, runs[0]).overlaps.skipped == {runs[0]}
    assert len(signals(job)) == 1
    succeed(job, first)
    assert turn_of(job, JOB) == runs[2]
    assert {final_state(job, run) for run in runs[:2]} == {("skipped", "overlap")}


def test_one_that_replaces_waits_behind_those_that_only_wait(job: Database) -> None:
    first = holding(job)
    patient, hasty = make(job, ALL), make(job, CANCEL)
    claim(job, patient)
    assert claim(job, hasty).overlaps.skipped == set()
    succeed(job, first)
    assert turn_of(job, JOB) == patient
    succeed(job, begin(job, patient))
    assert turn_of(job, JOB) == hasty


@pytest.mark.parametrize("cause", CAUSES)
def test_terminate_other_ends_the_one_that_runs_and_starts_in_its_place(job: Database, cause: Cause) -> None:
    first = holding(job)
    second = make(job, TERMINATE, cause)
    done = claim(job, second)
    assert [started.run_id for started in done.started] == [second]
    assert (done.overlaps.replaced, done.signalled) == ({first.run_id}, True)
    assert final_state(job, first.run_id) == ("cancelled", "overlap")
    assert attempts(job, first.run_id) == [(1, "cancelled")]
    assert signals(job) == [(first.run_id, 1, "terminate", EXECUTOR)]
    [event] = completions(job)
    assert (event.run_id, event.status, event.reason) == (str(first.run_id), "cancelled", "overlap")
    assert turn_of(job, JOB) == second
    assert succeed(job, first).superseded == {first.run_id}
    assert open_run(job, second).state == RunState.RUNNING


def test_terminate_other_does_not_wait_for_one_that_was_asked_to_cancel(job: Database) -> None:
    first = holding(job)
    polite, final = make(job, CANCEL), make(job, TERMINATE)
    claim(job, polite)
    done = claim(job, final)
    assert [started.run_id for started in done.started] == [final]
    assert final_state(job, polite) == ("skipped", "overlap")
    assert signals(job) == [(first.run_id, 1, "terminate", EXECUTOR)]


@pytest.mark.parametrize("policy", REPLACING)
def test_who_waited_before_goes_when_the_replacement_has_ended(job: Database, policy: Overlap) -> None:
    first = holding(job)
    patient = make(job, ALL)
    claim(job, patient)
    requeue(job, first, AttemptOutcome.FAILED, timedelta(hours=1))
    [started] = claim(job, make(job, policy)).started
    assert waiting(job) is True
    succeed(job, started)
    assert turn_of(job, JOB) == patient


@pytest.mark.parametrize("policy", REPLACING)
@pytest.mark.parametrize("outcome", [AttemptOutcome.FAILED, AttemptOutcome.SNOOZED])
def test_a_holder_that_does_not_run_is_cancelled_at_once(
    job: Database, outcome: AttemptOutcome, policy: Overlap
) -> None:
    first = holding(job)
    requeue(job, first, outcome, timedelta(hours=1))
    second = make(job, policy)
    assert [started.run_id for started in claim(job, second).started] == [second]
    assert final_state(job, first.run_id) == ("cancelled", "overlap")
    assert (turn_of(job, JOB), signals(job)) == (second, [])


@pytest.mark.parametrize("policy", REPLACING)
def test_a_holder_that_was_released_and_has_not_started_makes_way(job: Database, policy: Overlap) -> None:
    first, released, second = holding(job), make(job, ALL), make(job, policy)
    claim(job, released)
    succeed(job, first)
    assert [started.run_id for started in claim(job, second).started] == [second]
    assert final_state(job, released) == ("cancelled", "overlap")


@pytest.mark.parametrize("policy", REPLACING)
def test_of_several_that_replace_in_one_claim_only_the_newest_begins(job: Database, policy: Overlap) -> None:
    first = holding(job)
    runs = [make(job, policy) for _ in range(3)]
    claim(job, *runs)
    succeed(job, first)
    assert turn_of(job, JOB) == runs[2]
    assert {final_state(job, run) for run in runs[:2]} == {("skipped", "overlap")}
    assert len(attempts(job, runs[0])) == 0


@pytest.mark.parametrize("policy", REPLACING)
def test_of_several_that_replace_and_find_the_turn_free_only_the_newest_is_ever_begun(
    job: Database, policy: Overlap
) -> None:
    runs = [make(job, policy) for _ in range(3)]
    done = claim(job, *runs)
    assert [(each.run_id, each.attempt) for each in done.started] == [(runs[2], 1)]
    assert (done.overlaps.skipped, done.signalled) == (set(runs[:2]), False)
    assert {final_state(job, run) for run in runs[:2]} == {("skipped", "overlap")}
    assert (turn_of(job, JOB), open_run(job, runs[2]).state) == (runs[2], "running")


@pytest.mark.parametrize("policy", REPLACING)
@pytest.mark.parametrize("first", [SKIP, ALL, ONE, *REPLACING])
def test_one_that_replaces_a_run_of_its_own_claim_keeps_it_from_beginning(
    job: Database, first: Overlap, policy: Overlap
) -> None:
    older, free, newer = make(job, first), make(job, Overlap.ALLOW_ALL), make(job, policy)
    done = claim(job, older, free, newer)
    assert {each.run_id for each in done.started} == {free, newer}
    assert (final_state(job, older), turn_of(job, JOB)) == (("skipped", "overlap"), newer)


@pytest.mark.parametrize("policy", REPLACING)
def test_a_holder_between_two_attempts_is_replaced_by_a_newcomer_of_its_own_claim(
    job: Database, policy: Overlap
) -> None:
    first, newcomer = holding(job), make(job, policy)
    requeue(job, first, AttemptOutcome.FAILED)
    done = claim(job, first.run_id, newcomer)
    assert [each.run_id for each in done.started] == [newcomer]
    assert (final_state(job, first.run_id), signals(job)) == (("cancelled", "overlap"), [])
    assert (turn_of(job, JOB), open_run(job, newcomer).state) == (newcomer, "running")


@pytest.mark.parametrize("policy", REPLACING)
def test_while_somebody_has_the_holders_row_nothing_is_decided(job: Database, policy: Overlap) -> None:
    first, second = holding(job), make(job, policy)
    somebody = job.connection()
    somebody.execute("SELECT FROM open_runs WHERE run_id = %s FOR UPDATE", [first.run_id])
    done = claim(job, second)
    assert (done.started, done.overlaps.undecided, open_run(job, second).state) == ([], {second}, "queued")
    somebody.rollback()
    assert claim(job, second).overlaps.undecided == set()


def test_a_triggers_own_policy_goes_before_its_jobs(database: Database) -> None:
    submit(database, overlap="skip")
    first = begin(database, trigger(database))
    patient = trigger(database, overlap="buffer_all")
    free = trigger(database, overlap="allow_all")
    done = claim(database, patient, free, trigger(database))
    assert [started.run_id for started in done.started] == [free]
    assert (done.overlaps.buffered, len(done.overlaps.skipped)) == ({patient}, 1)
    assert database.rows("SELECT overlap FROM run_inputs WHERE run_id = %s", [patient]) == [("buffer_all",)]
    succeed(database, first)
    assert turn_of(database, JOB) == patient


def test_a_released_run_carries_what_it_came_with(database: Database) -> None:
    submit(database, overlap="buffer_all", payload="job")
    first = begin(database, trigger(database))
    second = trigger(database, payload="own", labels={"one": "1"})
    claim(database, second)
    succeed(database, first)
    asked = [request for request in requests(database) if request.run_id == str(second)]
    assert [(request.payload, request.labels) for request in asked] == [(b'"own"', {"one": "1"})] * 2


@pytest.mark.parametrize("state", [RunState.CANCELLED, RunState.SKIPPED, RunState.TIMED_OUT])
def test_a_run_that_waits_can_be_ended_and_leaves_the_turn_alone(job: Database, state: RunState) -> None:
    first = holding(job)
    gone, stays = make(job, ALL), make(job, ALL)
    claim(job, gone, stays)
    assert end(job, RunEnd(gone, 0, state)).states == {gone: state}
    event = next(event for event in completions(job) if event.run_id == str(gone))
    assert event.published_at == event.scheduled_at  # when it could first have left: it never did
    assert turn_of(job, JOB) == first.run_id
    succeed(job, first)
    assert turn_of(job, JOB) == stays


def test_a_turn_whose_last_waiting_run_was_ended_is_free_again(job: Database) -> None:
    first, gone = holding(job), make(job, ALL)
    claim(job, gone)
    ask(job, {"type": "run.cancel", "run_id": str(gone)})
    succeed(job, first)
    assert turn_of(job, JOB) is None


def test_cancelling_the_one_that_was_released_lets_the_next_go(job: Database) -> None:
    first, second, third = holding(job), make(job, ALL), make(job, ALL)
    claim(job, second, third)
    succeed(job, first)
    ask(job, {"type": "run.cancel", "run_id": str(second)})
    assert (turn_of(job, JOB), open_run(job, third).state) == (third, "queued")


def test_deleting_a_job_cancels_those_that_wait_and_lets_the_holder_finish(job: Database) -> None:
    first, second, third = holding(job), make(job, ALL), make(job, ALL)
    claim(job, second, third)
    ask(job, about("job.delete"))
    assert [final_state(job, run)[0] for run in (second, third)] == ["cancelled", "cancelled"]
    assert [run.run_id for run in open_runs(job)] == [first.run_id]
    succeed(job, first)
    assert turn_of(job, JOB) is None


@pytest.mark.parametrize("state", [RunState.SUCCEEDED, RunState.FAILED, RunState.TIMED_OUT])
def test_however_the_holder_ends_the_next_goes(job: Database, state: RunState) -> None:
    first, second = holding(job), make(job, ALL)
    claim(job, second)
    end(job, ending(first, state))
    assert turn_of(job, JOB) == second


def test_jobs_do_not_wait_for_each_other(job: Database) -> None:
    submit(job, "other")
    holding(job)
    first = holding(job, key="other")
    mine, others = make(job, ALL), make(job, ALL, key="other")
    claim(job, mine, others)
    succeed(job, first)
    assert [open_run(job, run).state for run in (mine, others)] == ["buffered", "queued"]
