"""A process dies between every two statements of its own transaction: both commit, or neither."""

import multiprocessing
import signal

import psycopg
import pytest

from tests.executor.own_transactions import MAKE_EFFECTS, completion, die_at, effects, one_or_none, wait_gone, work
from tests.fixtures.database import Database
from tidewheel.runs import AttemptOutcome
from tidewheel.transitions.deferred_effects import apply_deferred_effects

_PROCESSES = multiprocessing.get_context("forkserver")
_MAX_STEPS = 100
_PATIENCE_SECONDS = 60


@pytest.mark.slow
def test_crash_between_any_two_statements_leaves_one_effect(fresh_database: Database) -> None:
    """The job may not overlap, so that the completion writes all there is to write."""
    shop = fresh_database
    shop.execute(MAKE_EFFECTS)
    shop.submit(schedule="@every 1h", overlap="buffer_all", pause_on_failure=5)
    ends: list[bool] = []
    for step in range(1, _MAX_STEPS):
        shop.execute("TRUNCATE outbox")
        started = shop.begun()
        doomed = _PROCESSES.Process(target=die_at, args=(step, shop.url, shop.installation, started))
        doomed.start()
        doomed.join(_PATIENCE_SECONDS)
        assert doomed.exitcode in {0, -signal.SIGKILL}
        wait_gone(shop)
        ends.append(one_or_none(shop, started.run_id))
        if not ends[-1]:
            # What the reaper does; the next attempt is the one that counts.
            shop.requeue(started, AttemptOutcome.LOST)
            with psycopg.connect(shop.url) as again:
                work(again, completion(shop, shop.begin(started.run_id)))
        assert effects(shop, started.run_id) == 1
        with shop.transaction() as connection:
            assert apply_deferred_effects(connection, shop.installation) == 1
        assert shop.count("active_runs") == shop.count("job_runs") == 0
        if doomed.exitcode == 0:
            break
    # Everything up to COMMIT leaves nothing, everything after it all.
    assert ends == sorted(ends)
    assert ends.count(True) >= 2
    assert ends.count(False) > 20
