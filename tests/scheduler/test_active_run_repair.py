"""Repair of active runs without holder, of waiters without active run, and of stale signals."""

from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from tests.fixtures.acts import EXECUTOR
from tests.fixtures.database import ClockedDatabase, Database
from tests.transitions.overlapping import JOB, holding, make, waiting
from tidewheel.ids import bucket_of, shard_of
from tidewheel.scheduler import repair as module
from tidewheel.scheduler.repair import ActiveRunRepair
from tidewheel.transitions.cancel_signals import RunningAttempt, Signal, add_signals

SHARD = shard_of(bucket_of(JOB), 64)


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
        with clocked.transaction() as connection:
            add_signals(connection, kind, [RunningAttempt(uuid4(), 1, "default", EXECUTOR)])
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
