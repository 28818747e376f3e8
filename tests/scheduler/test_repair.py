"""A timer that was deleted outside Tidewheel is restored, and no other one is touched."""

from datetime import timedelta

import pytest

from tests.fixtures.acts import about, submission
from tests.fixtures.database import ClockedDatabase
from tests.scheduler.firing import fire_due
from tests.transitions.stepping import in_background, until_blocked
from tidewheel.ids import bucket_of, job_id, shard_of
from tidewheel.scheduler.repair import repair_missing_timers

SECOND = timedelta(seconds=1)
JOB = job_id("default", "job")
SHARD = shard_of(bucket_of(JOB), 64)
EACH_SECOND = {"schedule": "@every 1s", "overlap": "allow_all"}


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
