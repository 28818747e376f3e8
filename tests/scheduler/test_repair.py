"""Repairs: of timers, of active runs, and of workflows that lost a release."""

import random
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from tests.fixtures.acts import EXECUTOR, about, submission
from tests.fixtures.database import ClockedDatabase, Database
from tests.fixtures.examples import FULL
from tests.scheduler.firing import EACH_SECOND, SECOND, fire_due
from tests.transitions.graphs import (
    DIAMOND,
    Chance,
    after,
    assert_nothing_left,
    changed,
    drain_some,
    end_and_drain,
    end_some,
    latest_states,
    never,
    play,
    put,
    workflow,
)
from tests.transitions.overlapping import JOB, holding, make, waiting
from tests.transitions.stepping import in_background, until_blocked
from tidewheel.ids import bucket_of, job_id, shard_of
from tidewheel.postgres.session import Session
from tidewheel.runs import RunState
from tidewheel.scheduler import repair as module
from tidewheel.scheduler.cancels import PendingCancels
from tidewheel.scheduler.repair import ActiveRunRepair, mend_workflows, repair_missing_timers
from tidewheel.transitions.cancellation import RunningAttempt, Signal, add_signals
from tidewheel.transitions.finish import finish_runs
from tidewheel.transitions.finished import RunEnd

SHARD = shard_of(bucket_of(JOB), 64)


def lose_timers(database: ClockedDatabase) -> None:
    assert database.execute("DELETE FROM timers") > 0


def mend(database: ClockedDatabase) -> int:
    session = database.session()
    return sum(repair_missing_timers(session, shard, 64) for shard in range(64))


def test_missing_timer_is_restored_and_downtime_decided(still: ClockedDatabase) -> None:
    still.submit(**EACH_SECOND)
    still.advance(3 * SECOND)
    fire_due(still)
    lose_timers(still)
    still.advance(600 * SECOND)
    assert repair_missing_timers(still.session(), SHARD, 64) == 1
    assert repair_missing_timers(still.session(), SHARD, 64) == 0
    fire_due(still)
    assert still.count("runs") == 3 + 61
    assert still.rows("SELECT reason, occurrences, is_exact FROM skips") == [("misfire", 539, True)]


def test_job_that_never_fired_continues_from_its_submission(still: ClockedDatabase) -> None:
    reply = still.submit(**EACH_SECOND)
    lose_timers(still)
    still.advance(2 * SECOND)
    assert mend(still) == 1
    assert still.rows("SELECT job_id, version, scheduled_at, due_at FROM timers") == [
        (JOB, 1, reply.next_run_at, reply.next_run_at)
    ]
    fire_due(still)
    assert still.count("runs") == 2


@pytest.mark.parametrize("ahead", [SECOND, -timedelta(days=1)], ids=["to come", "overdue"])
def test_unfired_once_without_a_timer_still_fires(still: ClockedDatabase, ahead: timedelta) -> None:
    """Also when its instant has passed meanwhile: a `once` always fires."""
    at = still.now() + ahead
    still.submit(schedule={"once": at.isoformat()})
    lose_timers(still)
    still.advance(10 * SECOND)
    assert mend(still) == 1
    fire_due(still)
    assert still.rows("SELECT scheduled_at FROM runs") == [(at,)]


def test_repair_restores_only_missing_timers(still: ClockedDatabase) -> None:
    once = {"once": (still.now() + SECOND).isoformat()}
    still.apply_batch(submission("paused", **EACH_SECOND), submission("deleted", **EACH_SECOND), submission("manual"))
    still.apply_batch(
        submission("finished", schedule=once), about("job.pause", "paused"), about("job.delete", "deleted")
    )
    still.advance(SECOND)
    fire_due(still)
    still.execute("DELETE FROM timers")
    assert mend(still) == 0
    assert still.count("timers") == 0


def test_unreadable_schedule_does_not_block_repair(still: ClockedDatabase) -> None:
    still.apply_batch(*(submission(f"job-{n}", **EACH_SECOND) for n in range(5)))
    still.execute("UPDATE job_versions SET schedule_json = '{' WHERE job_id = %s", [job_id("default", "job-2")])
    lose_timers(still)
    assert mend(still) == 4
    assert mend(still) == 0


def test_repair_waits_for_concurrent_edit(still: ClockedDatabase) -> None:
    still.submit(**EACH_SECOND)
    lose_timers(still)
    editing, session = still.connection(), still.session()
    mending = session.connection()
    still.apply_batch_within(editing, submission(schedule="@every 1h"))
    waiting = in_background(lambda: repair_missing_timers(session, SHARD, 64))
    until_blocked(still, mending)
    editing.commit()
    assert waiting.result(30) == 0
    assert still.rows("SELECT version, scheduled_at FROM timers") == [(2, still.now() + timedelta(hours=1))]


def test_restored_timer_keeps_overrides(still: ClockedDatabase) -> None:
    now = still.now()
    still.submit(schedule="@every 60s", overlap="allow_all")
    minute = [now + n * 60 * SECOND for n in range(5)]
    still.apply_batch(about("job.skip", at=minute[2].isoformat()))
    still.apply_batch(about("job.move", at=minute[3].isoformat(), to=(now + SECOND).isoformat()))
    lose_timers(still)
    assert mend(still) == 1
    still.advance(SECOND)
    fire_due(still)
    assert still.rows("SELECT scheduled_at FROM runs") == [(minute[3],)]
    for _ in range(4):
        still.advance(60 * SECOND)
        fire_due(still)
    assert still.rows("SELECT scheduled_at FROM runs ORDER BY 1") == [(minute[n],) for n in (1, 3, 4)]
    assert still.rows("SELECT reason, first_at FROM skips") == [("manual", minute[2])]


@pytest.fixture
def job(database: Database) -> Database:
    database.submit()
    return database


def sweep(database: Database) -> ActiveRunRepair:
    return ActiveRunRepair(database.session(), database.installation)


def lose_holder(database: Database, run_id: UUID) -> None:
    """End a run but keep its active run, as `complete_in` or a manual change does."""
    assert database.execute("DELETE FROM job_runs WHERE run_id = %s", [run_id]) == 1


def test_active_run_without_holder_is_transferred_to_oldest_waiter(job: Database) -> None:
    first, second, third = holding(job), make(job, "buffer_all"), make(job, "buffer_all")
    job.claim(second, third)
    lose_holder(job, first.run_id)
    sweeping = sweep(job)
    assert (sweeping.step(), sweeping.step()) == (1, 0)
    assert (job.active_run_of(JOB), waiting(job)) == (second, True)
    assert [request.attempt for request in job.requests() if request.run_id == str(second)] == [1, 1]
    assert job.open_run(third).state == "buffered"


def test_active_run_without_waiters_is_released(job: Database) -> None:
    first, second = holding(job), make(job, "buffer_all")
    job.claim(second)
    lose_holder(job, first.run_id)
    lose_holder(job, second)
    assert sweep(job).step() == 1
    assert job.count("active_runs") == 0


def test_active_run_with_open_holder_is_kept(job: Database) -> None:
    first, second = holding(job), make(job, "buffer_all")
    job.claim(second)
    assert sweep(job).step() == 0
    assert job.active_run_of(JOB) == first.run_id


def test_stale_active_run_without_waiters_is_left_to_next_claim(job: Database) -> None:
    lose_holder(job, holding(job).run_id)
    assert sweep(job).step() == 0
    assert len(job.claim(make(job, "skip")).started) == 1


def test_new_run_does_not_overtake_waiters_of_stale_active_run(job: Database) -> None:
    first, second, newcomer = holding(job), make(job, "buffer_all"), make(job, "buffer_all")
    job.claim(second)
    lose_holder(job, first.run_id)
    assert job.claim(newcomer).overlaps.buffered == {newcomer}
    assert (job.active_run_of(JOB), job.open_run(second).state) == (second, "queued")


def test_active_run_with_locked_waiters_is_transferred_by_next_step(job: Database) -> None:
    first, second = holding(job), make(job, "buffer_all")
    job.claim(second)
    somebody = job.connection()
    somebody.execute("SELECT FROM job_runs WHERE run_id = %s FOR UPDATE", [second])
    job.succeed(first)
    assert (job.active_run_of(JOB), waiting(job)) == (first.run_id, True)
    newcomer = make(job, "skip")
    assert job.claim(newcomer).overlaps.skipped == {newcomer}
    assert sweep(job).step() == 1
    somebody.rollback()
    assert sweep(job).step() == 1
    assert job.active_run_of(JOB) == second


def test_active_run_locked_by_another_transaction_is_skipped(job: Database) -> None:
    first, second = holding(job), make(job, "buffer_all")
    job.claim(second)
    lose_holder(job, first.run_id)
    somebody = job.connection()
    somebody.execute("SELECT FROM active_runs FOR UPDATE")
    assert sweep(job).step() == 0
    somebody.rollback()
    assert sweep(job).step() == 1


def test_scan_continues_and_starts_again(job: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_SCANNED", 2)
    keys = [f"job-{number}" for number in range(5)]
    for key in keys:
        job.submit(key)
        first, second = holding(job, key=key), make(job, "buffer_all", key=key)
        job.claim(second)
        lose_holder(job, first.run_id)
    sweeping = sweep(job)
    # What is handed on and waited for no more leaves the walk, so that its end comes sooner.
    assert [sweeping.step() for _ in range(4)] == [2, 2, 1, 0]
    assert {turn for (turn,) in job.rows("SELECT has_waiters FROM active_runs")} == {False}


@pytest.mark.parametrize("lost", ["DELETE FROM active_runs", "UPDATE active_runs SET has_waiters = false"])
def test_waiters_of_removed_active_run_are_found_within_one_pass_of_shards(job: Database, lost: str) -> None:
    first, second = holding(job), make(job, "buffer_all")
    job.claim(second)
    job.execute(lost.encode())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - one of two texts
    job.succeed(first)
    assert (job.count("active_runs"), job.open_run(second).state) == (0, "buffered")
    sweeping = sweep(job)
    assert [sweeping.repair_shard(shard) for shard in range(64)] == [int(shard == SHARD) for shard in range(64)]
    assert job.active_run_of(JOB) == second
    job.succeed(job.begin(second))
    assert job.job_runs() == []


def test_repair_marks_waiters_of_active_run_with_holder(job: Database) -> None:
    first, second = holding(job), make(job, "buffer_all")
    job.claim(second)
    job.execute("UPDATE active_runs SET has_waiters = false")
    sweep(job).repair_shard(SHARD)
    assert (job.active_run_of(JOB), waiting(job)) == (first.run_id, True)
    job.succeed(first)
    assert job.active_run_of(JOB) == second


def test_stale_signals_are_deleted(clocked: ClockedDatabase) -> None:
    for kind in Signal:
        clocked.within(add_signals, kind, [RunningAttempt(uuid4(), 1, "default", EXECUTOR)])
    sweep(clocked).repair_shard(0)
    assert clocked.count("signals") == 2
    clocked.advance(timedelta(minutes=2))
    sweep(clocked).repair_shard(0)
    assert clocked.rows("SELECT kind FROM signals") == [("cancel",)]


def test_repair_touches_one_shard_only(job: Database) -> None:
    holding(job)
    job.claim(make(job, "buffer_all"))
    job.execute("DELETE FROM active_runs")
    assert sweep(job).repair_shard((SHARD + 1) % 64) == 0


def mended(database: Database, session: Session) -> int:
    return sum(mend_workflows(session, database.installation, shard) for shard in range(64))


@pytest.mark.parametrize("failing", ["", "c"])
def test_an_occurrence_goes_on_after_a_release_was_lost(database: Database, session: Session, failing: str) -> None:
    graph = {**DIAMOND, "repair": [("c", "failure")], "e": after("d")}
    put(database, graph, overlap="skip")
    root = database.trigger("a")

    def decide(key: str) -> RunState:
        return RunState.FAILED if key == failing else RunState.SUCCEEDED

    end_and_drain(database)
    end_some(database, decide, never())
    database.execute("DELETE FROM releases WHERE job_id = %s", [job_id("default", "b")])
    drain_some(database, never())
    play(database, decide)
    assert workflow(database, root)[0] == "open"
    assert mended(database, session) == 1
    assert mended(database, session) == 0
    play(database, decide)
    found = latest_states(database, root)
    if failing:
        assert found == dict.fromkeys(("a", "b", "repair"), "succeeded") | {
            "c": "failed", "d": "skipped", "e": "skipped",
        }  # fmt: skip
    else:
        assert found == dict.fromkeys("abcde", "succeeded") | {"repair": "skipped"}
    assert workflow(database, root) == (("failed", 0, 1) if failing else ("succeeded", 0, 0))
    assert_nothing_left(database)


def test_an_occurrence_ends_after_its_count_was_wrong(database: Database, session: Session) -> None:
    put(database, DIAMOND, overlap="skip")
    root = database.trigger("a")
    end_and_drain(database)
    database.execute("UPDATE workflows SET pending = pending + 1")
    play(database)
    assert workflow(database, root) == ("open", 1, 0)
    assert database.active_run_of(job_id("default", "a")) == root
    assert mended(database, session) == 1
    assert workflow(database, root) == ("succeeded", 0, 0)
    assert_nothing_left(database)


def cancel_open(database: Database, state: str) -> None:
    ends = [
        RunEnd(run_id, 0, RunState.CANCELLED)
        for (run_id,) in database.rows("SELECT run_id FROM job_runs WHERE state = %s", [state])
    ]
    database.within(finish_runs, database.installation, ends)


def cancelled_while_blocked(database: Database) -> UUID:
    """Return a cancelled occurrence with pending cancels: all its runs but the blocked one have ended."""
    put(database, DIAMOND)
    root = database.trigger("a")
    end_and_drain(database)
    end_and_drain(database, limit=1)
    assert changed(database, "cancel", root)
    cancel_open(database, "queued")
    drain_some(database, never())
    assert [state for (state,) in database.rows("SELECT state FROM job_runs")] == ["blocked"]
    return root


def test_a_cancelled_occurrence_whose_cancels_are_pending_is_not_mended(database: Database, session: Session) -> None:
    root = cancelled_while_blocked(database)
    assert mended(database, session) == 0
    PendingCancels(session, database.installation).step()
    play(database)
    assert workflow(database, root) == ("cancelled", 0, 0)
    assert_nothing_left(database)


def test_a_release_of_an_ended_occurrence_counts_nothing(database: Database, session: Session) -> None:
    root = cancelled_while_blocked(database)
    database.execute("DELETE FROM pending_cancels")
    assert mended(database, session) == 1
    before = database.rows("SELECT * FROM workflows")
    cancel_open(database, "blocked")
    assert drain_some(database, never()) == 1
    assert database.rows("SELECT * FROM workflows") == before
    assert workflow(database, root) == ("cancelled", 0, 0)
    assert_nothing_left(database)


def test_a_place_that_no_occurrence_holds_is_released(database: Database, session: Session) -> None:
    put(database, DIAMOND, overlap="buffer_all")
    root = database.trigger("a")
    end_and_drain(database)
    database.execute("UPDATE workflows SET finished_at = tidewheel_now(), state = 'cancelled', pending = 0")
    assert database.active_run_of(job_id("default", "a")) == root
    assert mended(database, session) == 0
    assert database.active_run_of(job_id("default", "a")) is None


@pytest.mark.property
@pytest.mark.parametrize("seed", range(3 if FULL else 1))
def test_no_step_of_an_occurrence_looks_stopped(database: Database, session: Session, seed: int) -> None:
    draws = random.Random(seed)  # noqa: S311 - a test's draws
    put(database, {**DIAMOND, "e": after("d", "b"), "f": [("c", "always")]}, overlap="buffer_all")
    for _ in range(3):
        database.trigger("a")
    outcomes = [RunState.SUCCEEDED, RunState.SUCCEEDED, RunState.FAILED]
    chance = Chance(draws)
    while end_some(database, lambda _: draws.choice(outcomes), chance, 2) + drain_some(database, chance, 2):
        assert mended(database, session) == 0
    assert_nothing_left(database)
