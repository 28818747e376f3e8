"""fixed_delay: the first run at once, each later one a fixed delay after the end of the last."""

from datetime import timedelta

import pytest

from tests.fixtures.acts import EXECUTOR, about, ending
from tests.fixtures.database import ClockedDatabase
from tests.scheduler.firing import fire_due
from tidewheel.runs import AttemptOutcome, RunState
from tidewheel.scheduler.repair import release_stuck_chains
from tidewheel.transitions.claim import Started

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)


@pytest.fixture
def chain(clocked: ClockedDatabase) -> ClockedDatabase:
    clocked.stop_clock()
    clocked.submit(schedule={"fixed_delay": "60s"})
    return clocked


def timer(database: ClockedDatabase) -> tuple[str | None, float | None]:
    """Why the timer is held, and in how many seconds it is due; None for never."""
    [(held, seconds)] = database.rows(
        "SELECT hold_reason, CASE WHEN due_at < 'infinity' THEN extract(epoch FROM due_at - tidewheel_now()) END"
        " FROM timers"
    )
    return held, None if seconds is None else float(seconds)


def start(database: ClockedDatabase) -> Started:
    fire_due(database)
    [run] = database.job_runs()
    return database.begin(run.run_id)


def test_first_run_is_due_at_once_and_the_timer_waits_for_its_end(chain: ClockedDatabase) -> None:
    start(chain)
    assert timer(chain) == ("run", None)
    chain.advance(10 * MINUTE)
    assert fire_due(chain) == 0


@pytest.mark.parametrize("state", [RunState.SUCCEEDED, RunState.FAILED, RunState.TIMED_OUT])
def test_next_run_is_due_a_delay_after_any_end(chain: ClockedDatabase, state: RunState) -> None:
    started = start(chain)
    chain.advance(7 * SECOND)
    chain.end(ending(started, state, error_type="E"))
    assert timer(chain) == (None, 60.0)
    chain.advance(60 * SECOND)
    again = start(chain)
    assert again.run_id != started.run_id


def test_retry_does_not_start_the_delay(chain: ClockedDatabase) -> None:
    chain.requeue(start(chain), AttemptOutcome.FAILED)
    assert timer(chain) == ("run", None)


def test_resumed_chain_counts_from_the_end_of_its_run(chain: ClockedDatabase) -> None:
    started = start(chain)
    chain.apply_batch(about("job.pause"))
    assert timer(chain) == ("pause", None)
    chain.end(ending(started, RunState.SUCCEEDED))
    assert timer(chain) == ("pause", None)
    chain.advance(20 * SECOND)
    chain.apply_batch(about("job.resume"))
    assert timer(chain) == (None, 40.0)


def test_resumed_chain_with_an_open_run_waits_for_its_end(chain: ClockedDatabase) -> None:
    started = start(chain)
    chain.apply_batch(about("job.pause"))
    chain.apply_batch(about("job.resume"))
    assert timer(chain) == ("run", None)
    chain.end(ending(started, RunState.SUCCEEDED))
    assert timer(chain) == (None, 60.0)


def test_edit_during_the_run_counts_its_end_by_the_new_delay(chain: ClockedDatabase) -> None:
    started = start(chain)
    chain.submit(schedule={"fixed_delay": "5s"})
    assert timer(chain) == ("run", None)
    chain.end(ending(started, RunState.SUCCEEDED))
    assert timer(chain) == (None, 5.0)


def test_edit_between_runs_counts_from_the_same_end(chain: ClockedDatabase) -> None:
    chain.end(ending(start(chain), RunState.SUCCEEDED))
    chain.advance(10 * SECOND)
    chain.submit(schedule={"fixed_delay": "30s"})
    assert timer(chain) == (None, 20.0)
    chain.submit(schedule={"fixed_delay": "90s"}, description="x")
    assert timer(chain) == (None, 80.0)


@pytest.mark.parametrize("paused", [False, True])
def test_start_added_during_the_run_delays_the_chain(chain: ClockedDatabase, *, paused: bool) -> None:
    started = start(chain)
    later = chain.now() + 3600 * SECOND
    if paused:
        chain.apply_batch(about("job.pause"))
    chain.submit(schedule={"fixed_delay": "60s"}, start_at=later.isoformat())
    assert timer(chain) == ("pause" if paused else "run", None)
    chain.end(ending(started, RunState.SUCCEEDED))
    if paused:
        chain.apply_batch(about("job.resume"))
    chain.advance(2 * MINUTE)
    fire_due(chain)
    assert chain.job_runs() == []
    assert chain.rows("SELECT scheduled_at FROM timers") == [(later,)]
    chain.stop_clock(later)
    fire_due(chain)
    assert [run.scheduled_at for run in chain.job_runs()] == [later]


def test_run_from_before_a_deletion_does_not_advance_the_new_chain(chain: ClockedDatabase) -> None:
    old = start(chain)
    chain.apply_batch(about("job.delete"))
    chain.advance(SECOND)
    chain.submit(schedule={"fixed_delay": "60s"})
    fire_due(chain)
    [_, first] = chain.job_runs()
    assert chain.claim(first.run_id).overlaps.skipped
    chain.submit(schedule={"fixed_delay": "60s"}, description="x")
    assert timer(chain) == (None, 60.0)
    chain.advance(SECOND)
    chain.succeed(old)
    assert timer(chain) == (None, 59.0)


def test_edit_to_another_kind_of_schedule_ends_the_chain(chain: ClockedDatabase) -> None:
    started = start(chain)
    chain.submit(schedule="@every 1h")
    before = timer(chain)
    chain.end(ending(started, RunState.SUCCEEDED))
    assert timer(chain) == before == (None, 3600.0)


def test_chain_past_its_end_finishes_the_job(clocked: ClockedDatabase) -> None:
    now = clocked.stop_clock()
    clocked.submit(schedule={"fixed_delay": "60s"}, end_at=(now + 90 * SECOND).isoformat())
    clocked.end(ending(start(clocked), RunState.SUCCEEDED))
    clocked.advance(60 * SECOND)
    clocked.end(ending(start(clocked), RunState.SUCCEEDED))
    clocked.advance(60 * SECOND)
    assert fire_due(clocked) == 1
    assert (clocked.count("timers"), clocked.count("runs")) == (0, 2)
    assert clocked.value("SELECT finished_at IS NOT NULL FROM jobs")


def test_downtime_costs_lateness_only(chain: ClockedDatabase) -> None:
    chain.end(ending(start(chain), RunState.SUCCEEDED))
    chain.advance(timedelta(days=3))
    fire_due(chain)
    assert (len(chain.job_runs()), chain.count("skips")) == (1, 0)


def test_chain_waiting_for_missing_run_is_released(chain: ClockedDatabase) -> None:
    start(chain)
    session = chain.session()
    assert release_stuck_chains(session) == 0
    chain.execute("DELETE FROM job_runs WHERE executor_id = %s", [EXECUTOR])
    assert release_stuck_chains(session) == 1
    assert timer(chain) == (None, 0.0)


def test_stuck_chain_is_released_despite_run_from_before_deletion(chain: ClockedDatabase) -> None:
    start(chain)
    chain.apply_batch(about("job.delete"))
    chain.advance(SECOND)
    chain.submit(schedule={"fixed_delay": "60s"})
    chain.execute("UPDATE timers SET hold_reason = 'run', due_at = 'infinity'")
    assert release_stuck_chains(chain.session()) == 1
