"""Claims of due runs: of a whole batch, and by one statement where the runs are alike."""

from datetime import timedelta
from uuid import UUID, uuid4

import psycopg
import pytest

from tests.fixtures.acts import EXECUTOR, ending
from tests.fixtures.database import ClockedDatabase, Database
from tests.transitions.overlapping import JOB, make, waiting
from tests.transitions.stepping import in_background, until_blocked
from tidewheel.postgres.pg_binary import instants, integers, uuids, words
from tidewheel.postgres.session import UNIFORM, Conn, connect
from tidewheel.postgres.statements import Statements
from tidewheel.runs import AttemptOutcome, Gate, Move, Overlap, RunState, sources
from tidewheel.scheduler.repair import ActiveRunRepair
from tidewheel.transitions.claim import Claim, Claimed, Started, claim_runs, claim_uniform, contest_runs, read_claims
from tidewheel.transitions.finish import finish_runs
from tidewheel.transitions.finished import RunEnd


def claimed(database: Database, *claims: Claim) -> Claimed:
    return database.within(claim_runs, database.installation, claims, executor_id=EXECUTOR)


def test_two_executors_one_run_one_winner(with_job: Database) -> None:
    wanted = with_job.requested_claim(with_job.trigger())
    first, second = with_job.connection(), with_job.connection()
    ours = claim_runs(first, with_job.installation, [wanted], executor_id=uuid4())
    # The row is locked and not yet committed: the other one passes it over instead of waiting.
    assert claim_runs(second, with_job.installation, [wanted], executor_id=uuid4()).started == []
    first.commit()
    assert claim_runs(second, with_job.installation, [wanted], executor_id=uuid4()).started == []
    second.commit()
    assert [started.attempt for started in ours.started] == [1]
    assert with_job.open_run(wanted.run_id).attempt == 1


def test_claim_records_executor_and_message(with_job: Database) -> None:
    run_id = with_job.trigger()
    before = with_job.open_run(run_id)
    [started] = claimed(with_job, Claim(run_id, 1, 1, "t.runs.standard/3/17@1700000000000")).started
    run = with_job.open_run(run_id)
    assert (run.state, run.attempt, run.failed_attempts, run.lost_attempts) == ("running", 1, 0, 0)
    assert (run.executor_id, run.claimed_from) == (EXECUTOR, "t.runs.standard/3/17@1700000000000")
    assert started.started_at == run.started_at
    assert started.publish_at == before.publish_at
    assert started.started_at >= before.publish_at


def test_mismatched_claim_is_lost(with_job: Database) -> None:
    run_id = with_job.trigger()
    right = with_job.requested_claim(run_id)
    for case, wrong in {
        "a later attempt": right._replace(attempt=2),
        "an earlier attempt": right._replace(attempt=0),
        "a later version": right._replace(job_version=2),
        "an earlier version": right._replace(job_version=0),
        "a run that was taken back": right._replace(run_id=uuid4()),
    }.items():
        refused = claimed(with_job, wrong)
        assert (refused.started, refused.overlaps.skipped) == ([], set()), case
        assert with_job.open_run(run_id).state == "queued", case
    assert len(claimed(with_job, right, right).started) == 1, "of a message that came twice"


def test_no_run_is_claimed_before_publish_at_of_the_database_clock(still: ClockedDatabase) -> None:
    still.submit()
    run_id = still.trigger(delay="10s")
    still.advance(timedelta(seconds=10) - timedelta(microseconds=1))
    assert still.claim(run_id).started == []
    still.advance(timedelta(microseconds=1))
    [started] = still.claim(run_id).started
    assert started.started_at == started.publish_at


def test_attempt_number_is_never_issued_twice(with_job: Database) -> None:
    run_id = with_job.trigger()
    for number, outcome in enumerate([o for o in AttemptOutcome if o.value in {"failed", "lost", "released"}], 1):
        started = with_job.begin(run_id)
        assert started.attempt == number
        with_job.requeue(started, outcome)
    assert with_job.open_run(run_id).attempt == 3


def test_committed_claims_are_read_back_after_a_lost_commit(with_job: Database) -> None:
    ours, others, unclaimed = (with_job.requested_claim(with_job.trigger()) for _ in range(3))
    someone = uuid4()
    [started] = claimed(with_job, ours).started
    with_job.within(claim_runs, with_job.installation, [others], executor_id=someone)
    with with_job.transaction() as connection:
        assert read_claims(connection, [ours, others, unclaimed], executor_id=EXECUTOR) == [started]
    with_job.requeue(started, AttemptOutcome.RELEASED)
    with with_job.transaction() as connection:
        assert read_claims(connection, [ours], executor_id=EXECUTOR) == []


CONTEST_RUNS = Statements("tidewheel.transitions")["contest_runs"]
PATIENT = f"{UNIFORM} -c lock_timeout=10s"


@pytest.fixture
def job(database: Database) -> Database:
    """A database with one job; its runs have policies of their own."""
    database.submit()
    return database


def start(database: Database, *claims: Claim, options: str = UNIFORM) -> list[Started]:
    with connect(database.url, "test", options=options) as connection:
        return claim_uniform(connection, claims, executor_id=EXECUTOR)


def patient(database: Database) -> Conn:
    return database.session(options=PATIENT).connection()


def wanted(database: Database, *runs: UUID) -> list[Claim]:
    return [database.requested_claim(run) for run in runs]


def mark(connection: Conn, claim: Claim) -> None:
    """Mark the runs that a claim may meet, as `contest_runs` does, for as long as the connection may wait."""
    columns = {
        "run_ids": uuids([claim.run_id]),
        "attempts": integers([claim.attempt]),
        "versions": integers([claim.job_version]),
        "publish_at": instants([claim.publish_at]),
        "moved": Gate.MOVED,
        "sources": words(sources(Move.CLAIM)),
        "free": Overlap.ALLOW_ALL,
        "met": Gate.MET,
    }
    connection.execute(CONTEST_RUNS, columns)
    connection.commit()


def decide(database: Database, connection: Conn, claim: Claim) -> Claimed:
    """Decide about a run whose job's runs are marked."""
    decided = claim_runs(connection, database.installation, [claim], executor_id=EXECUTOR, contested=True)
    connection.commit()
    return decided


def success_of(database: Database, *started: Started) -> list[RunEnd]:
    """The ends of attempts that succeeded, with their messages, as an executor has them."""
    messages = {UUID(request.run_id): request for request in database.requests()}
    return [ending(each, RunState.SUCCEEDED, request=messages[each.run_id]) for each in started]


def test_run_that_meets_no_other_starts_without_an_active_run(job: Database) -> None:
    run = make(job, Overlap.SKIP)
    [started] = start(job, *wanted(job, run))
    assert (started.run_id, started.attempt, started.claimed_from) == (run, 1, "test/0/0@0")
    assert (job.open_run(run).claimed_from, waiting(job)) == (None, None)
    job.end(ending(started, RunState.SUCCEEDED, claimed_from=started.claimed_from))
    assert job.value("SELECT claimed_from FROM finished_runs") == "test/0/0@0"


def test_claims_of_several_versions_and_attempts_start_together(job: Database) -> None:
    job.submit("other", overlap="allow_all")
    job.submit("other", overlap="allow_all", labels={"edited": "yes"})
    first, second, third = make(job, Overlap.ALLOW_ALL), job.trigger("other"), make(job, Overlap.ALLOW_ALL)
    job.execute("UPDATE job_runs SET attempt = 3, failed_attempts = 2, state = 'retrying' WHERE run_id = %s", [third])
    stale = job.requested_claim(first)._replace(job_version=2)
    assert start(job, stale) == []
    started = start(job, *wanted(job, first, second, third))
    found = {each.run_id: (each.attempt, each.failed_attempts) for each in started}
    assert found == {first: (1, 0), second: (1, 0), third: (4, 2)}


def test_runs_of_one_job_that_have_come_are_left_to_a_decision(job: Database) -> None:
    older, newer = make(job, Overlap.SKIP), make(job, Overlap.SKIP)
    assert start(job, *wanted(job, older, newer)) == start(job, *wanted(job, newer)) == []
    assert [each.run_id for each in job.claim(older, newer).started] == [older]
    assert job.final_state(newer) == ("skipped", "overlap")


def test_runs_written_ahead_do_not_meet(job: Database) -> None:
    """A job of one second has several runs written ahead at all times."""
    now = job.now()
    ahead = make(job, Overlap.SKIP, at=now + timedelta(minutes=1))
    job.execute("UPDATE job_runs SET publish_at = scheduled_at, moved_ahead = false WHERE run_id = %s", [ahead])
    run = make(job, Overlap.SKIP)
    assert [each.run_id for each in start(job, *wanted(job, run))] == [run]


def test_run_moved_ahead_of_its_time_meets_others(job: Database) -> None:
    moved = make(job, Overlap.SKIP, at=job.now() + timedelta(hours=1))
    assert job.value("SELECT moved_ahead FROM job_runs WHERE run_id = %s", [moved])
    run = make(job, Overlap.SKIP)
    assert start(job, *wanted(job, run)) == start(job, *wanted(job, moved)) == []


def test_started_run_becomes_active_when_another_meets_it(job: Database) -> None:
    [first] = start(job, *wanted(job, make(job, Overlap.SKIP)))
    second, third = make(job, Overlap.BUFFER_ALL), make(job, Overlap.SKIP)
    assert start(job, *wanted(job, second)) == []
    assert job.claim(second).overlaps.buffered == {second}
    assert job.claim(third).overlaps.skipped == {third}
    assert job.rows("SELECT run_id, has_waiters FROM active_runs") == [(first.run_id, True)]
    job.end(ending(first, RunState.SUCCEEDED))
    assert job.rows("SELECT run_id, has_waiters FROM active_runs") == [(second, False)]
    assert start(job, *wanted(job, second)) == [], "it is the active run: a decision starts it"
    [promoted] = job.claim(second).started
    job.end(ending(promoted, RunState.SUCCEEDED))
    assert waiting(job) is None


def test_retried_run_stays_active(job: Database) -> None:
    [first] = start(job, *wanted(job, make(job, Overlap.SKIP)))
    job.execute("UPDATE job_runs SET state = 'retrying', executor_id = NULL, publish_at = 'infinity'")
    second = make(job, Overlap.SKIP)
    assert job.claim(second).overlaps.skipped == {second}
    assert job.rows("SELECT run_id FROM active_runs WHERE job_id = %s", [JOB]) == [(first.run_id,)]


def test_claim_that_waits_for_a_decision_starts_nothing(job: Database) -> None:
    first = make(job, Overlap.SKIP)
    [stale] = wanted(job, first)
    second = make(job, Overlap.SKIP)
    deciding, claiming = job.connection(), patient(job)
    decided = claim_runs(deciding, job.installation, wanted(job, second), executor_id=EXECUTOR)
    assert [each.run_id for each in decided.started] == [second]
    # A statement that began before the second run existed would not see it; the mark is what stops it.
    held = in_background(lambda: claim_uniform(claiming, [stale], executor_id=EXECUTOR))
    deciding.commit()
    assert held.result(30) == []
    claiming.rollback()
    assert job.open_run(first).attempt == 0


def test_decision_waits_for_a_claim_under_way_and_sees_its_run(job: Database) -> None:
    claiming, deciding = patient(job), job.connection()
    [started] = claim_uniform(claiming, wanted(job, make(job, Overlap.SKIP)), executor_id=EXECUTOR)
    second = make(job, Overlap.SKIP)
    [claimed] = wanted(job, second)
    marked = in_background(lambda: mark(deciding, claimed))
    until_blocked(job, deciding)
    claiming.commit()
    marked.result(30)
    assert decide(job, deciding, claimed).overlaps.skipped == {second}
    assert job.open_run(started.run_id).attempt == 1


def test_second_claim_of_an_attempt_waits_for_no_end_and_leaves_the_run_uncontested(job: Database) -> None:
    """A message and the sweep bring the same run, which is in progress or ends."""
    repeated = wanted(job, make(job, Overlap.SKIP))
    first = start(job, *repeated)
    assert job.within(contest_runs, repeated) == []
    assert job.value("SELECT gates FROM job_runs") == 0
    late, ending_one = job.session(options=UNIFORM).connection(), job.connection()
    finish_runs(ending_one, job.installation, success_of(job, *first), uniform=True)
    mark(late, *repeated)  # raises LockNotAvailable if it waits
    ending_one.rollback()
    assert job.value("SELECT gates FROM job_runs") == 0


def test_claim_of_a_later_attempt_is_left_until_its_run_is_due_again(job: Database) -> None:
    [first] = start(job, *wanted(job, make(job, Overlap.SKIP)))
    claims = wanted(job, first.run_id)
    assert job.within(contest_runs, claims) == []
    job.requeue(first, AttemptOutcome.RELEASED)
    assert job.within(contest_runs, claims) == claims
    assert decide(job, job.connection(), *claims).started[0].attempt == 2


def test_run_behind_a_claim_that_takes_long_is_left(job: Database) -> None:
    first = make(job, Overlap.SKIP)
    claiming = patient(job)
    claim_uniform(claiming, wanted(job, first), executor_id=EXECUTOR)
    second = make(job, Overlap.SKIP)
    left = job.claim(second)
    assert (left.started, left.overlaps.undecided, waiting(job)) == ([], {second}, None)
    claiming.commit()
    assert job.claim(second).overlaps.skipped == {second}


@pytest.mark.parametrize("policy", [Overlap.SKIP, Overlap.BUFFER_ALL])
def test_started_run_in_a_long_transaction_is_the_holder(job: Database, policy: Overlap) -> None:
    """A client's transaction holds the row for minutes; its end does not know that it is active."""
    [first] = start(job, *wanted(job, make(job, Overlap.SKIP)))
    holder = job.connection()
    holder.execute("SELECT FROM job_runs WHERE run_id = %s FOR UPDATE", [first.run_id])
    second = make(job, policy)
    decided = job.claim(second)
    assert decided.overlaps.skipped | decided.overlaps.buffered == {second}
    holder.rollback()
    job.end(ending(first, RunState.SUCCEEDED))
    ActiveRunRepair(job.session(), job.installation).step()
    found = job.rows("SELECT run_id FROM active_runs")
    assert found == ([(second,)] if policy is Overlap.BUFFER_ALL else [])


def test_locked_row_ends_the_statement_after_a_short_wait(job: Database) -> None:
    run = make(job, Overlap.ALLOW_ALL)
    [claimed] = wanted(job, run)
    holder = job.connection()
    holder.execute("SELECT FROM job_runs WHERE run_id = %s FOR UPDATE", [run])
    with pytest.raises(psycopg.errors.LockNotAvailable):
        start(job, claimed)
    holder.rollback()
    assert len(start(job, claimed)) == 1


def test_open_cancellation_leaves_all_claims_to_a_decision(job: Database) -> None:
    run = make(job, Overlap.ALLOW_ALL)
    job.execute("INSERT INTO cancellations (tenant, queue, created_before) VALUES ('default', 'elsewhere', now())")
    assert start(job, *wanted(job, run)) == []
    assert len(job.claim(run).started) == 1


def test_end_in_one_statement_leaves_cancelled_and_foreign_runs_to_the_other(job: Database) -> None:
    runs = [make(job, Overlap.ALLOW_ALL) for _ in range(4)]
    started = start(job, *wanted(job, *runs))
    job.execute("UPDATE job_runs SET state = 'cancelling' WHERE run_id = %s", [runs[1]])
    job.execute("UPDATE job_runs SET attempt = 2 WHERE run_id = %s", [runs[2]])
    ends = success_of(job, *started)
    with connect(job.url, "test", options=UNIFORM) as connection:
        done = finish_runs(connection, job.installation, ends, uniform=True)
    assert done.states == dict.fromkeys((runs[0], runs[3]), RunState.SUCCEEDED) | {runs[1]: RunState.CANCELLED}
    assert (done.superseded, done.busy) == ({runs[2]}, set())
    # Rows of two statements, whose instants differ.
    ends_of_rows = dict(job.rows("SELECT run_id, finished_at FROM finished_runs"))
    assert {UUID(event.run_id): event.finished_at for event in job.completions()} == ends_of_rows
    assert len(set(ends_of_rows.values())) == 2


def test_started_run_counts_although_the_clock_went_back(job: Database) -> None:
    [first] = start(job, *wanted(job, make(job, Overlap.SKIP)))
    second = make(job, Overlap.SKIP)
    job.execute("UPDATE job_runs SET scheduled_at = now() + interval '4 s' WHERE run_id = %s", [first.run_id])
    assert start(job, *wanted(job, second)) == []
    assert job.claim(second).overlaps.skipped == {second}


def test_end_waits_for_a_decision_and_promotes_the_run_that_it_buffers(job: Database) -> None:
    """The end of a run that had met no other before does not miss the first one that waits for it."""
    [first] = start(job, *wanted(job, make(job, Overlap.SKIP)))
    second = make(job, Overlap.BUFFER_ALL)
    deciding, ending_one = job.connection(), patient(job)
    claims = wanted(job, second)
    contest_runs(deciding, claims)
    deciding.commit()
    decided = claim_runs(deciding, job.installation, claims, executor_id=EXECUTOR, contested=True)
    assert decided.overlaps.buffered == {second}
    success = success_of(job, first)
    ended = in_background(lambda: finish_runs(ending_one, job.installation, success, uniform=True))
    until_blocked(job, ending_one)
    deciding.commit()
    assert ended.result(30).states == {first.run_id: RunState.SUCCEEDED}
    ending_one.commit()
    assert job.rows("SELECT run_id, has_waiters FROM active_runs") == [(second, False)]
    assert job.open_run(second).state == RunState.QUEUED


def test_decision_waits_for_an_end_under_way_and_starts_the_newcomer(job: Database) -> None:
    """The end deletes the row that the decision marks."""
    [first] = start(job, *wanted(job, make(job, Overlap.SKIP)))
    second = make(job, Overlap.SKIP)
    [claimed] = wanted(job, second)
    ending_one, deciding = patient(job), job.connection()
    finish_runs(ending_one, job.installation, success_of(job, first), uniform=True)
    marked = in_background(lambda: mark(deciding, claimed))
    until_blocked(job, deciding)
    ending_one.commit()
    marked.result(30)
    assert [each.run_id for each in decide(job, deciding, claimed).started] == [second]
    assert job.rows("SELECT run_id FROM active_runs") == [(second,)]
