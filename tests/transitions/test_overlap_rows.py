"""Every policy through claims and ends, for whatever a run was made by."""

from datetime import timedelta

import pytest

from tests.fixtures.acts import EXECUTOR, NEVER, about, cancelling, ending
from tests.fixtures.database import Database
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
    database.submit()
    return database


@pytest.mark.parametrize(("policy", "cause"), [(ALL, Cause.TIMER), (ONE, Cause.TRIGGER), (CANCEL, Cause.BACKFILL)])
def test_buffered_run_is_promoted_when_the_active_run_ends(job: Database, policy: Overlap, cause: Cause) -> None:
    first = holding(job)
    second = make(job, policy, cause)
    done = job.claim(second)
    assert (done.started, done.overlaps.buffered) == ([], {second})
    run = job.open_run(second)
    assert (run.state, run.attempt, run.publish_at) == (RunState.BUFFERED, 0, NEVER)
    assert waiting(job) is True
    assert job.claim(second).started == []
    before = job.now()
    job.succeed(first)
    run = job.open_run(second)
    assert (run.state, run.attempt, job.active_run_of(JOB), waiting(job)) == (RunState.QUEUED, 0, second, False)
    assert before <= run.publish_at <= job.now()
    asked = [request for request in job.requests() if request.run_id == str(second)]
    assert [(request.attempt, request.cause) for request in asked] == [(1, cause)] * 2
    assert asked[-1].publish_at == run.publish_at
    again = job.begin(second)
    job.succeed(again)
    assert (job.job_runs(), job.active_run_of(JOB)) == ([], None)


def test_skip_applies_to_every_cause(job: Database) -> None:
    holding(job)
    for cause in CAUSES:
        second = make(job, SKIP, cause)
        assert job.claim(second).overlaps.skipped == {second}, cause
        assert job.final_state(second) == ("skipped", "overlap"), cause
        assert waiting(job) is False, cause


def test_buffered_runs_are_promoted_oldest_first(job: Database) -> None:
    first = holding(job)
    runs = [make(job, ALL) for _ in range(4)]
    job.claim(runs[2])
    job.claim(runs[3], runs[0], runs[1])
    job.succeed(first)
    for number, run in enumerate(runs):
        assert [each.state for each in job.job_runs()] == ["queued"] + ["buffered"] * (3 - number)
        assert waiting(job) is (number < 3)
        job.succeed(job.begin(run))
    assert job.job_runs() == []


def test_buffer_one_keeps_the_one_that_waits_already(job: Database) -> None:
    first = holding(job)
    runs = [make(job, ONE) for _ in range(3)]
    job.claim(runs[1])
    done = job.claim(runs[0], runs[2])
    assert done.overlaps.skipped == {runs[0], runs[2]}
    assert {job.final_state(run) for run in (runs[0], runs[2])} == {("skipped", "overlap")}
    job.succeed(first)
    assert job.active_run_of(JOB) == runs[1]


def test_buffer_one_waits_again_after_a_promotion(job: Database) -> None:
    first = holding(job)
    earlier, later = make(job, ONE), make(job, ONE)
    job.claim(earlier)
    job.succeed(first)
    assert job.claim(later).overlaps.buffered == {later}
    assert job.active_run_of(JOB) == earlier


def test_cancel_other_sends_a_signal_and_waits(job: Database) -> None:
    first = holding(job)
    second = make(job, CANCEL, Cause.TIMER)
    done = job.claim(second)
    assert (done.overlaps.buffered, done.overlaps.cancel_requested, done.signalled) == ({second}, {first.run_id}, True)
    assert job.open_run(first.run_id).state == RunState.CANCELLING
    assert signals(job) == [(first.run_id, 1, "cancel", EXECUTOR)]
    job.succeed(first)
    assert job.final_state(first.run_id) == ("cancelled", "overlap")
    [event] = job.completions()
    assert (event.status, event.reason) == ("cancelled", "overlap")
    assert (job.active_run_of(JOB), job.open_run(second).state, signals(job)) == (second, "queued", [])


def test_newest_waiting_replacement_is_kept(job: Database) -> None:
    first = holding(job)
    runs = [make(job, CANCEL) for _ in range(3)]
    job.claim(runs[1])
    assert job.claim(runs[2]).overlaps.skipped == {runs[1]}
    assert job.claim(runs[0]).overlaps.skipped == {runs[0]}
    assert len(signals(job)) == 1
    job.succeed(first)
    assert job.active_run_of(JOB) == runs[2]
    assert {job.final_state(run) for run in runs[:2]} == {("skipped", "overlap")}
    skipped = [event for event in job.completions() if event.status == "skipped"]
    assert [event.reason for event in skipped] == ["overlap"] * 2


def test_replacing_run_waits_behind_buffered_runs(job: Database) -> None:
    first = holding(job)
    patient, hasty = make(job, ALL), make(job, CANCEL)
    job.claim(patient)
    assert job.claim(hasty).overlaps.skipped == set()
    job.succeed(first)
    assert job.active_run_of(JOB) == patient
    job.succeed(job.begin(patient))
    assert job.active_run_of(JOB) == hasty


def test_terminate_other_ends_the_active_run_and_starts(job: Database) -> None:
    first = holding(job)
    second = make(job, TERMINATE, Cause.BACKFILL)
    done = job.claim(second)
    assert [started.run_id for started in done.started] == [second]
    assert (done.overlaps.replaced, done.signalled) == ({first.run_id}, True)
    assert job.final_state(first.run_id) == ("cancelled", "overlap")
    assert job.attempts(first.run_id) == [(1, "cancelled")]
    assert signals(job) == [(first.run_id, 1, "terminate", EXECUTOR)]
    [event] = job.completions()
    assert (event.run_id, event.status, event.reason) == (str(first.run_id), "cancelled", "overlap")
    assert job.active_run_of(JOB) == second
    assert job.succeed(first).superseded == {first.run_id}
    assert job.open_run(second).state == RunState.RUNNING


def test_terminate_other_does_not_wait_for_a_cancelling_run(job: Database) -> None:
    first = holding(job)
    polite, final = make(job, CANCEL), make(job, TERMINATE)
    job.claim(polite)
    done = job.claim(final)
    assert [started.run_id for started in done.started] == [final]
    assert job.final_state(polite) == ("skipped", "overlap")
    assert signals(job) == [(first.run_id, 1, "terminate", EXECUTOR)]


def test_earlier_waiting_run_is_promoted_after_the_replacement(job: Database) -> None:
    first = holding(job)
    patient = make(job, ALL)
    job.claim(patient)
    job.requeue(first, AttemptOutcome.FAILED, timedelta(hours=1))
    [started] = job.claim(make(job, CANCEL)).started
    assert waiting(job) is True
    job.succeed(started)
    assert job.active_run_of(JOB) == patient


@pytest.mark.parametrize(("outcome", "policy"), [(AttemptOutcome.FAILED, CANCEL), (AttemptOutcome.SNOOZED, TERMINATE)])
def test_active_run_without_attempt_is_cancelled_at_once(
    job: Database, outcome: AttemptOutcome, policy: Overlap
) -> None:
    first = holding(job)
    job.requeue(first, outcome, timedelta(hours=1))
    second = make(job, policy)
    assert [started.run_id for started in job.claim(second).started] == [second]
    assert job.final_state(first.run_id) == ("cancelled", "overlap")
    assert (job.active_run_of(JOB), signals(job)) == (second, [])


def test_promoted_run_that_has_not_started_is_replaced(job: Database) -> None:
    first, released, second = holding(job), make(job, ALL), make(job, CANCEL)
    job.claim(released)
    job.succeed(first)
    assert [started.run_id for started in job.claim(second).started] == [second]
    assert job.final_state(released) == ("cancelled", "overlap")


def test_end_of_a_run_that_replaced_one_of_its_claim_promotes_the_next(job: Database) -> None:
    runs = [make(job, ALL) for _ in range(3)]
    done = job.claim(*reversed(runs))
    [first] = done.started
    assert (first.run_id, done.overlaps.buffered) == (runs[0], set(runs[1:])), "the oldest starts"
    job.succeed(first)
    replacing = make(job, TERMINATE)
    [started] = job.claim(runs[1], replacing).started
    assert started.run_id == replacing
    job.succeed(started)
    assert job.active_run_of(JOB) == runs[2]


@pytest.mark.parametrize("policy", REPLACING)
def test_only_the_newest_replacing_run_of_a_claim_starts(job: Database, policy: Overlap) -> None:
    first = holding(job)
    runs = [make(job, policy) for _ in range(3)]
    job.claim(*runs)
    job.succeed(first)
    assert job.active_run_of(JOB) == runs[2]
    assert {job.final_state(run) for run in runs[:2]} == {("skipped", "overlap")}
    assert len(job.attempts(runs[0])) == 0


def test_only_the_newest_replacing_run_starts_without_an_active_run(job: Database) -> None:
    runs = [make(job, TERMINATE) for _ in range(3)]
    done = job.claim(*runs)
    assert [(each.run_id, each.attempt) for each in done.started] == [(runs[2], 1)]
    assert (done.overlaps.skipped, done.signalled) == (set(runs[:2]), False)
    assert {job.final_state(run) for run in runs[:2]} == {("skipped", "overlap")}
    assert [event.reason for event in job.completions()] == ["overlap"] * 2
    assert (job.active_run_of(JOB), job.open_run(runs[2]).state) == (runs[2], "running")


def test_replaced_run_of_the_same_claim_never_starts(job: Database) -> None:
    for case in ((SKIP, CANCEL), (ALL, TERMINATE), (ONE, CANCEL), (CANCEL, TERMINATE), (TERMINATE, CANCEL)):
        older, free, newer = make(job, case[0]), make(job, Overlap.ALLOW_ALL), make(job, case[1])
        done = job.claim(older, free, newer)
        assert {each.run_id for each in done.started} == {free, newer}, case
        assert (job.final_state(older), job.active_run_of(JOB)) == (("skipped", "overlap"), newer), case
        for started in done.started:
            job.succeed(started)


@pytest.mark.parametrize("policy", REPLACING)
def test_active_run_between_attempts_is_replaced_within_a_claim(job: Database, policy: Overlap) -> None:
    first, newcomer = holding(job), make(job, policy)
    job.requeue(first, AttemptOutcome.FAILED)
    done = job.claim(first.run_id, newcomer)
    assert [each.run_id for each in done.started] == [newcomer]
    assert (job.final_state(first.run_id), signals(job)) == (("cancelled", "overlap"), [])
    assert (job.active_run_of(JOB), job.open_run(newcomer).state) == (newcomer, "running")
    job.succeed(done.started[0])
    assert job.active_run_of(JOB) is None


@pytest.mark.parametrize("policy", REPLACING)
def test_locked_active_run_leaves_the_claim_undecided(job: Database, policy: Overlap) -> None:
    first, second = holding(job), make(job, policy)
    somebody = job.connection()
    somebody.execute("SELECT FROM job_runs WHERE run_id = %s FOR UPDATE", [first.run_id])
    done = job.claim(second)
    assert (done.started, done.overlaps.undecided, job.open_run(second).state) == ([], {second}, "queued")
    somebody.rollback()
    assert job.claim(second).overlaps.undecided == set()


def test_locked_waiting_replacement_leaves_the_claim_undecided(job: Database) -> None:
    """Else both would wait, and the older one would start after the newer one."""
    first = holding(job)
    older, newer = make(job, CANCEL), make(job, CANCEL)
    job.claim(older)
    cancelling = job.connection()
    cancelling.execute("SELECT FROM job_runs WHERE run_id = %s FOR UPDATE", [older])
    assert job.claim(newer).overlaps.undecided == {newer}
    assert [job.open_run(run).state for run in (older, newer)] == ["buffered", "queued"]
    cancelling.rollback()
    assert job.claim(newer).overlaps.skipped == {older}
    job.succeed(first)
    assert job.active_run_of(JOB) == newer


def test_overlap_of_a_trigger_overrides_its_jobs(database: Database) -> None:
    database.submit(overlap="skip")
    first = database.begin(database.trigger())
    patient = database.trigger(overlap="buffer_all")
    free = database.trigger(overlap="allow_all")
    done = database.claim(patient, free, database.trigger())
    assert [started.run_id for started in done.started] == [free]
    assert (done.overlaps.buffered, len(done.overlaps.skipped)) == ({patient}, 1)
    assert database.rows("SELECT overlap FROM run_inputs WHERE run_id = %s", [patient]) == [("buffer_all",)]
    database.succeed(first)
    assert database.active_run_of(JOB) == patient


def test_promoted_run_keeps_its_inputs(database: Database) -> None:
    database.submit(overlap="buffer_all", payload="job")
    first = database.begin(database.trigger())
    second = database.trigger(payload="own", labels={"one": "1"})
    database.claim(second)
    database.succeed(first)
    asked = [request for request in database.requests() if request.run_id == str(second)]
    assert [(request.payload, request.labels) for request in asked] == [(b'"own"', {"one": "1"})] * 2


@pytest.mark.parametrize("state", [RunState.CANCELLED, RunState.SKIPPED, RunState.TIMED_OUT])
def test_ended_waiting_run_does_not_release_the_active_run(job: Database, state: RunState) -> None:
    first = holding(job)
    gone, stays = make(job, ALL), make(job, ALL)
    job.claim(gone, stays)
    assert job.end(RunEnd(gone, 0, state)).states == {gone: state}
    event = next(event for event in job.completions() if event.run_id == str(gone))
    assert event.published_at == event.scheduled_at  # when it could first have left: it never did
    assert job.active_run_of(JOB) == first.run_id
    job.succeed(first)
    assert job.active_run_of(JOB) == stays


def test_active_run_is_released_after_its_last_waiting_run_ends(job: Database) -> None:
    first, gone = holding(job), make(job, ALL)
    job.claim(gone)
    job.apply(cancelling(gone))
    job.succeed(first)
    assert job.active_run_of(JOB) is None


def test_cancelling_a_promoted_run_promotes_the_next(job: Database) -> None:
    first, second, third = holding(job), make(job, ALL), make(job, ALL)
    job.claim(second, third)
    job.succeed(first)
    job.apply(cancelling(second))
    assert (job.active_run_of(JOB), job.open_run(third).state) == (third, "queued")


def test_deleting_a_job_cancels_waiting_runs_and_keeps_the_active_one(job: Database) -> None:
    first, second, third = holding(job), make(job, ALL), make(job, ALL)
    job.claim(second, third)
    job.apply_batch(about("job.delete"))
    assert [job.final_state(run)[0] for run in (second, third)] == ["cancelled", "cancelled"]
    assert [run.run_id for run in job.job_runs()] == [first.run_id]
    job.succeed(first)
    assert job.active_run_of(JOB) is None


@pytest.mark.parametrize("state", [RunState.SUCCEEDED, RunState.FAILED, RunState.TIMED_OUT])
def test_every_end_of_the_active_run_promotes_the_next(job: Database, state: RunState) -> None:
    first, second = holding(job), make(job, ALL)
    job.claim(second)
    job.end(ending(first, state))
    assert job.active_run_of(JOB) == second


def test_jobs_do_not_wait_for_each_other(job: Database) -> None:
    job.submit("other")
    holding(job)
    first = holding(job, key="other")
    mine, others = make(job, ALL), make(job, ALL, key="other")
    job.claim(mine, others)
    job.succeed(first)
    assert [job.open_run(run).state for run in (mine, others)] == ["buffered", "queued"]


def test_first_of_two_cancels_gives_the_reason(job: Database) -> None:
    first = holding(job)
    job.apply(cancelling(first.run_id, reason="not needed"))
    job.claim(make(job, CANCEL))
    job.succeed(first)
    assert job.final_state(first.run_id) == ("cancelled", "not needed")
