"""Every policy through claims and ends, for whatever a run was made by."""

from datetime import timedelta

import pytest

from tests.fixtures.database import Database
from tests.transitions.acts import (
    EXECUTOR,
    NEVER,
    about,
    active_run_of,
    apply_batch,
    attempts,
    begin,
    claim,
    completions,
    end,
    ending,
    final_state,
    job_runs,
    open_run,
    requests,
    requeue,
    submit,
    succeed,
    trigger,
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
def test_buffered_run_is_promoted_when_the_active_run_ends(job: Database, policy: Overlap, cause: Cause) -> None:
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
    assert (run.state, run.attempt, active_run_of(job, JOB), waiting(job)) == (RunState.QUEUED, 0, second, False)
    assert before <= run.publish_at <= job.now()
    asked = [request for request in requests(job) if request.run_id == str(second)]
    assert [(request.attempt, request.cause) for request in asked] == [(1, cause)] * 2
    assert asked[-1].publish_at == run.publish_at
    again = begin(job, second)
    succeed(job, again)
    assert (job_runs(job), active_run_of(job, JOB)) == ([], None)


@pytest.mark.parametrize("cause", CAUSES)
def test_skip_applies_to_every_cause(job: Database, cause: Cause) -> None:
    holding(job)
    second = make(job, SKIP, cause)
    assert claim(job, second).overlaps.skipped == {second}
    assert final_state(job, second) == ("skipped", "overlap")
    assert waiting(job) is False


def test_buffered_runs_are_promoted_oldest_first(job: Database) -> None:
    first = holding(job)
    runs = [make(job, ALL) for _ in range(4)]
    claim(job, runs[2])
    claim(job, runs[3], runs[0], runs[1])
    succeed(job, first)
    for number, run in enumerate(runs):
        assert [each.state for each in job_runs(job)] == ["queued"] + ["buffered"] * (3 - number)
        assert waiting(job) is (number < 3)
        succeed(job, begin(job, run))
    assert job_runs(job) == []


def test_oldest_of_several_claimed_runs_starts_and_the_rest_waits(job: Database) -> None:
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
    assert active_run_of(job, JOB) == runs[1]


def test_buffer_one_waits_again_after_a_promotion(job: Database) -> None:
    first = holding(job)
    earlier, later = make(job, ONE), make(job, ONE)
    claim(job, earlier)
    succeed(job, first)
    assert claim(job, later).overlaps.buffered == {later}
    assert active_run_of(job, JOB) == earlier


@pytest.mark.parametrize("cause", CAUSES)
def test_cancel_other_sends_a_signal_and_waits(job: Database, cause: Cause) -> None:
    first = holding(job)
    second = make(job, CANCEL, cause)
    done = claim(job, second)
    assert (done.overlaps.buffered, done.overlaps.cancel_requested, done.signalled) == ({second}, {first.run_id}, True)
    assert open_run(job, first.run_id).state == RunState.CANCELLING
    assert signals(job) == [(first.run_id, 1, "cancel", EXECUTOR)]
    succeed(job, first)
    assert final_state(job, first.run_id) == ("cancelled", "overlap")
    assert (active_run_of(job, JOB), open_run(job, second).state, signals(job)) == (second, "queued", [])


def test_newest_waiting_replacement_is_kept(job: Database) -> None:
    first = holding(job)
    runs = [make(job, CANCEL) for _ in range(3)]
    claim(job, runs[1])
    assert claim(job, runs[2]).overlaps.skipped == {runs[1]}
    assert claim(job, runs[0]).overlaps.skipped == {runs[0]}
    assert len(signals(job)) == 1
    succeed(job, first)
    assert active_run_of(job, JOB) == runs[2]
    assert {final_state(job, run) for run in runs[:2]} == {("skipped", "overlap")}


def test_replacing_run_waits_behind_buffered_runs(job: Database) -> None:
    first = holding(job)
    patient, hasty = make(job, ALL), make(job, CANCEL)
    claim(job, patient)
    assert claim(job, hasty).overlaps.skipped == set()
    succeed(job, first)
    assert active_run_of(job, JOB) == patient
    succeed(job, begin(job, patient))
    assert active_run_of(job, JOB) == hasty


@pytest.mark.parametrize("cause", CAUSES)
def test_terminate_other_ends_the_active_run_and_starts(job: Database, cause: Cause) -> None:
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
    assert active_run_of(job, JOB) == second
    assert succeed(job, first).superseded == {first.run_id}
    assert open_run(job, second).state == RunState.RUNNING


def test_terminate_other_does_not_wait_for_a_cancelling_run(job: Database) -> None:
    first = holding(job)
    polite, final = make(job, CANCEL), make(job, TERMINATE)
    claim(job, polite)
    done = claim(job, final)
    assert [started.run_id for started in done.started] == [final]
    assert final_state(job, polite) == ("skipped", "overlap")
    assert signals(job) == [(first.run_id, 1, "terminate", EXECUTOR)]


@pytest.mark.parametrize("policy", REPLACING)
def test_earlier_waiting_run_is_promoted_after_the_replacement(job: Database, policy: Overlap) -> None:
    first = holding(job)
    patient = make(job, ALL)
    claim(job, patient)
    requeue(job, first, AttemptOutcome.FAILED, timedelta(hours=1))
    [started] = claim(job, make(job, policy)).started
    assert waiting(job) is True
    succeed(job, started)
    assert active_run_of(job, JOB) == patient


@pytest.mark.parametrize("policy", REPLACING)
@pytest.mark.parametrize("outcome", [AttemptOutcome.FAILED, AttemptOutcome.SNOOZED])
def test_active_run_without_attempt_is_cancelled_at_once(
    job: Database, outcome: AttemptOutcome, policy: Overlap
) -> None:
    first = holding(job)
    requeue(job, first, outcome, timedelta(hours=1))
    second = make(job, policy)
    assert [started.run_id for started in claim(job, second).started] == [second]
    assert final_state(job, first.run_id) == ("cancelled", "overlap")
    assert (active_run_of(job, JOB), signals(job)) == (second, [])


@pytest.mark.parametrize("policy", REPLACING)
def test_promoted_run_that_has_not_started_is_replaced(job: Database, policy: Overlap) -> None:
    first, released, second = holding(job), make(job, ALL), make(job, policy)
    claim(job, released)
    succeed(job, first)
    assert [started.run_id for started in claim(job, second).started] == [second]
    assert final_state(job, released) == ("cancelled", "overlap")


@pytest.mark.parametrize("policy", REPLACING)
def test_end_of_a_run_that_replaced_one_of_its_claim_promotes_the_next(job: Database, policy: Overlap) -> None:
    runs = [make(job, ALL) for _ in range(3)]
    [first] = claim(job, *runs).started
    succeed(job, first)
    replacing = make(job, policy)
    [started] = claim(job, runs[1], replacing).started
    assert started.run_id == replacing
    succeed(job, started)
    assert active_run_of(job, JOB) == runs[2]


@pytest.mark.parametrize("policy", REPLACING)
def test_end_of_a_run_that_replaced_a_retry_of_its_claim_releases_the_active_run(
    job: Database, policy: Overlap
) -> None:
    first = holding(job)
    requeue(job, first, AttemptOutcome.FAILED)
    [started] = claim(job, first.run_id, make(job, policy)).started
    succeed(job, started)
    assert active_run_of(job, JOB) is None


@pytest.mark.parametrize("policy", REPLACING)
def test_only_the_newest_replacing_run_of_a_claim_starts(job: Database, policy: Overlap) -> None:
    first = holding(job)
    runs = [make(job, policy) for _ in range(3)]
    claim(job, *runs)
    succeed(job, first)
    assert active_run_of(job, JOB) == runs[2]
    assert {final_state(job, run) for run in runs[:2]} == {("skipped", "overlap")}
    assert len(attempts(job, runs[0])) == 0


@pytest.mark.parametrize("policy", REPLACING)
def test_only_the_newest_replacing_run_starts_without_an_active_run(job: Database, policy: Overlap) -> None:
    runs = [make(job, policy) for _ in range(3)]
    done = claim(job, *runs)
    assert [(each.run_id, each.attempt) for each in done.started] == [(runs[2], 1)]
    assert (done.overlaps.skipped, done.signalled) == (set(runs[:2]), False)
    assert {final_state(job, run) for run in runs[:2]} == {("skipped", "overlap")}
    assert (active_run_of(job, JOB), open_run(job, runs[2]).state) == (runs[2], "running")


@pytest.mark.parametrize("policy", REPLACING)
@pytest.mark.parametrize("first", [SKIP, ALL, ONE, *REPLACING])
def test_replaced_run_of_the_same_claim_never_starts(job: Database, first: Overlap, policy: Overlap) -> None:
    older, free, newer = make(job, first), make(job, Overlap.ALLOW_ALL), make(job, policy)
    done = claim(job, older, free, newer)
    assert {each.run_id for each in done.started} == {free, newer}
    assert (final_state(job, older), active_run_of(job, JOB)) == (("skipped", "overlap"), newer)


@pytest.mark.parametrize("policy", REPLACING)
def test_active_run_between_attempts_is_replaced_within_a_claim(job: Database, policy: Overlap) -> None:
    first, newcomer = holding(job), make(job, policy)
    requeue(job, first, AttemptOutcome.FAILED)
    done = claim(job, first.run_id, newcomer)
    assert [each.run_id for each in done.started] == [newcomer]
    assert (final_state(job, first.run_id), signals(job)) == (("cancelled", "overlap"), [])
    assert (active_run_of(job, JOB), open_run(job, newcomer).state) == (newcomer, "running")


@pytest.mark.parametrize("policy", REPLACING)
def test_locked_active_run_leaves_the_claim_undecided(job: Database, policy: Overlap) -> None:
    first, second = holding(job), make(job, policy)
    somebody = job.connection()
    somebody.execute("SELECT FROM job_runs WHERE run_id = %s FOR UPDATE", [first.run_id])
    done = claim(job, second)
    assert (done.started, done.overlaps.undecided, open_run(job, second).state) == ([], {second}, "queued")
    somebody.rollback()
    assert claim(job, second).overlaps.undecided == set()


def test_locked_waiting_replacement_leaves_the_claim_undecided(job: Database) -> None:
    """Else both would wait, and the older one would start after the newer one."""
    first = holding(job)
    older, newer = make(job, CANCEL), make(job, CANCEL)
    claim(job, older)
    cancelling = job.connection()
    cancelling.execute("SELECT FROM job_runs WHERE run_id = %s FOR UPDATE", [older])
    assert claim(job, newer).overlaps.undecided == {newer}
    assert [open_run(job, run).state for run in (older, newer)] == ["buffered", "queued"]
    cancelling.rollback()
    assert claim(job, newer).overlaps.skipped == {older}
    succeed(job, first)
    assert active_run_of(job, JOB) == newer


def test_overlap_of_a_trigger_overrides_its_jobs(database: Database) -> None:
    submit(database, overlap="skip")
    first = begin(database, trigger(database))
    patient = trigger(database, overlap="buffer_all")
    free = trigger(database, overlap="allow_all")
    done = claim(database, patient, free, trigger(database))
    assert [started.run_id for started in done.started] == [free]
    assert (done.overlaps.buffered, len(done.overlaps.skipped)) == ({patient}, 1)
    assert database.rows("SELECT overlap FROM run_inputs WHERE run_id = %s", [patient]) == [("buffer_all",)]
    succeed(database, first)
    assert active_run_of(database, JOB) == patient


def test_promoted_run_keeps_its_inputs(database: Database) -> None:
    submit(database, overlap="buffer_all", payload="job")
    first = begin(database, trigger(database))
    second = trigger(database, payload="own", labels={"one": "1"})
    claim(database, second)
    succeed(database, first)
    asked = [request for request in requests(database) if request.run_id == str(second)]
    assert [(request.payload, request.labels) for request in asked] == [(b'"own"', {"one": "1"})] * 2


@pytest.mark.parametrize("state", [RunState.CANCELLED, RunState.SKIPPED, RunState.TIMED_OUT])
def test_ended_waiting_run_does_not_release_the_active_run(job: Database, state: RunState) -> None:
    first = holding(job)
    gone, stays = make(job, ALL), make(job, ALL)
    claim(job, gone, stays)
    assert end(job, RunEnd(gone, 0, state)).states == {gone: state}
    event = next(event for event in completions(job) if event.run_id == str(gone))
    assert event.published_at == event.scheduled_at  # when it could first have left: it never did
    assert active_run_of(job, JOB) == first.run_id
    succeed(job, first)
    assert active_run_of(job, JOB) == stays


def test_active_run_is_released_after_its_last_waiting_run_ends(job: Database) -> None:
    first, gone = holding(job), make(job, ALL)
    claim(job, gone)
    apply_batch(job, {"type": "run.cancel", "run_id": str(gone)})
    succeed(job, first)
    assert active_run_of(job, JOB) is None


def test_cancelling_a_promoted_run_promotes_the_next(job: Database) -> None:
    first, second, third = holding(job), make(job, ALL), make(job, ALL)
    claim(job, second, third)
    succeed(job, first)
    apply_batch(job, {"type": "run.cancel", "run_id": str(second)})
    assert (active_run_of(job, JOB), open_run(job, third).state) == (third, "queued")


def test_deleting_a_job_cancels_waiting_runs_and_keeps_the_active_one(job: Database) -> None:
    first, second, third = holding(job), make(job, ALL), make(job, ALL)
    claim(job, second, third)
    apply_batch(job, about("job.delete"))
    assert [final_state(job, run)[0] for run in (second, third)] == ["cancelled", "cancelled"]
    assert [run.run_id for run in job_runs(job)] == [first.run_id]
    succeed(job, first)
    assert active_run_of(job, JOB) is None


@pytest.mark.parametrize("state", [RunState.SUCCEEDED, RunState.FAILED, RunState.TIMED_OUT])
def test_every_end_of_the_active_run_promotes_the_next(job: Database, state: RunState) -> None:
    first, second = holding(job), make(job, ALL)
    claim(job, second)
    end(job, ending(first, state))
    assert active_run_of(job, JOB) == second


def test_jobs_do_not_wait_for_each_other(job: Database) -> None:
    submit(job, "other")
    holding(job)
    first = holding(job, key="other")
    mine, others = make(job, ALL), make(job, ALL, key="other")
    claim(job, mine, others)
    succeed(job, first)
    assert [open_run(job, run).state for run in (mine, others)] == ["buffered", "queued"]


@pytest.mark.parametrize("state", [RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED, RunState.TIMED_OUT])
def test_run_replaced_by_cancel_other_has_its_reason_whatever_its_attempt_reports(
    job: Database, state: RunState
) -> None:
    first = holding(job)
    claim(job, make(job, CANCEL))
    end(job, ending(first, state))
    assert final_state(job, first.run_id) == ("cancelled", "overlap")
    [event] = completions(job)
    assert (event.status, event.reason) == ("cancelled", "overlap")


def test_first_of_two_cancels_gives_the_reason(job: Database) -> None:
    first = holding(job)
    apply_batch(job, {"type": "run.cancel", "run_id": str(first.run_id), "reason": "not needed"})
    claim(job, make(job, CANCEL))
    succeed(job, first)
    assert final_state(job, first.run_id) == ("cancelled", "not needed")


@pytest.mark.parametrize("ended_before", [True, False])
def test_every_skipped_run_and_its_event_have_the_reason(job: Database, ended_before: bool) -> None:  # noqa: FBT001
    first = holding(job)
    older, newer = make(job, CANCEL), make(job, CANCEL)
    if ended_before:
        claim(job, older)
        claim(job, newer)
    else:
        claim(job, older, newer)
    assert final_state(job, older) == ("skipped", "overlap")
    assert [event.reason for event in completions(job) if event.run_id == str(older)] == ["overlap"]
    succeed(job, first)
