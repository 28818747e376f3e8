"""The backlog of due timers: fired in bounded batches, and measured; poison holds up no other job."""

import logging
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from threading import Barrier
from typing import LiteralString
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY
from psycopg import sql

from tests.fixtures.acts import about, ending, submission
from tests.fixtures.database import ClockedDatabase, Database
from tests.fixtures.services import until
from tests.scheduler.firing import EACH_SECOND, MINUTE, SECOND, fire_due
from tests.scheduler.test_firing import scheduler_of
from tidewheel.ids import job_id
from tidewheel.postgres.low_water import BEGINNING
from tidewheel.postgres.session import connect
from tidewheel.runs import RunState
from tidewheel.scheduler.backlog import BacklogMetrics
from tidewheel.scheduler.poller import (
    BatchWidth,
    ShardRotation,
    _probe,  # pyright: ignore[reportPrivateUsage]
)
from tidewheel.schemas.generated.records import ReplyStatus


@given(st.lists(st.integers(0, 4095), unique=True), st.lists(st.integers(1, 64), min_size=1))
def test_rotation_takes_each_shard_once_in_order_and_at_most_so_many(due: list[int], bites: list[int]) -> None:
    rotation, taken = ShardRotation(), list[int]()
    rotation.start(due)
    while rotation.active:
        limit = bites[len(taken) % len(bites)]
        some = rotation.take(limit)
        assert len(some) == min(limit, len(due) - len(taken))
        taken += some
    assert taken == due
    assert rotation.take(1) == []


def test_two_threads_never_take_the_same_shard() -> None:
    rotation, due = ShardRotation(), list(range(50_000))
    rotation.start(due)
    both = Barrier(2)

    def take() -> list[int]:
        taken = rotation.take(3)  # so that both have some, however long one of them is kept waiting afterwards
        both.wait()
        while some := rotation.take(3):
            taken += some
        return taken

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(2) as threads:
            first, second = threads.submit(take), threads.submit(take)
            assert first.result()
            assert second.result()
            assert sorted(first.result() + second.result()) == due
    finally:
        sys.setswitchinterval(before)


def test_batch_width_grows_until_batches_are_full() -> None:
    width = BatchWidth()
    fewest = width.shards
    for _ in range(3):
        width.adjust(full=False)
    assert width.shards == 8 * fewest
    for _ in range(10):
        width.adjust(full=True)
    assert width.shards == fewest


def test_backlog_in_few_and_many_shards_is_fired(database: Database) -> None:
    """Batches of four: shards of which each has one due, and one job that has several."""
    at = database.now().isoformat()
    for number in range(150):
        database.submit(f"once-{number}", schedule={"once": at})
    database.submit("often", schedule="@every 1s", overlap="allow_all")
    database.execute(
        "UPDATE timers SET due_at = due_at - interval '40 s', scheduled_at = scheduled_at - interval '40 s'"
    )
    with scheduler_of(database, fire_batch=4) as scheduler:
        while scheduler.step() == 0.0:
            pass
    assert database.value("SELECT count(*) FROM timers WHERE due_at <= now()") == 0
    fired = "SELECT count(*), count(DISTINCT (job_id, scheduled_at)) FROM runs AS r JOIN jobs AS j USING (job_id)"
    assert database.rows(f"{fired} WHERE j.key <> 'often'") == [(150, 150)]
    [(often, instants)] = database.rows(f"{fired} WHERE j.key = 'often'")
    assert often == instants > 0


def test_timers_gather_in_the_farthest_quarter_of_the_lookahead(still: ClockedDatabase) -> None:
    for seconds in (8.5, 9.5):
        still.submit(f"in-{seconds}", schedule={"once": (still.now() + timedelta(seconds=seconds)).isoformat()})
    with scheduler_of(still, lookahead=timedelta(seconds=10)) as scheduler:
        assert scheduler.step() > 0
        assert still.count("runs") == 0
        still.advance(SECOND)
        scheduler.step()
    assert still.count("runs") == 2


WAITED: LiteralString = """
SELECT EXISTS (SELECT FROM pg_locks WHERE pid = %s AND NOT granted AND clock_timestamp() - waitstart > interval '0.2 s')
"""


def measure(database: ClockedDatabase) -> None:
    BacklogMetrics(database.session(), database.installation).measure()


def value(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(f"tidewheel_{name}", labels)


def executor(database: ClockedDatabase, lease: timedelta) -> None:
    database.execute(
        "INSERT INTO executors (executor_id, name, queues, handlers, slots, last_heartbeat_at, started_at, lease)"
        " VALUES (%s, 'test', '{}', '{}', 1, tidewheel_now(), tidewheel_now(), %s)",
        [uuid4(), lease],
    )


def test_due_runs_are_counted_by_queue_and_lane_with_the_age_of_the_oldest(still: ClockedDatabase) -> None:
    still.submit("report", queue="reports", lane="batch")
    still.submit("mail")
    still.trigger("report")
    still.advance(MINUTE)
    still.trigger("report")
    still.trigger("mail")
    still.trigger("mail", delay="1h")
    measure(still)
    assert value("runs_due", queue="reports", lane="batch") == 2
    assert value("runs_due_oldest_seconds", queue="reports", lane="batch") == 60
    assert value("runs_due", queue="default", lane="standard") == 1
    assert value("outbox_due", lane="batch") == 2
    assert value("outbox_oldest_seconds", lane="batch") == 60


def test_queue_that_has_been_worked_off_has_no_due_runs(still: ClockedDatabase) -> None:
    still.submit()
    run_id = still.trigger()
    own = BacklogMetrics(still.session(), still.installation)
    own.measure()
    assert value("runs_due", queue="default", lane="standard") == 1
    still.begin(run_id)
    own.measure()
    assert value("runs_due", queue="default", lane="standard") == 0
    still.execute("DELETE FROM job_runs")
    own.measure()
    assert value("runs_due", queue="default", lane="standard") == 0


def test_frozen_run_is_not_due(still: ClockedDatabase) -> None:
    still.submit("report", queue="reports")
    still.submit("mail")
    still.trigger("report")
    still.trigger("mail")
    [reply] = still.apply_batch({"type": "freeze", "queue": "reports"})
    assert reply.status == "accepted", reply.errors
    measure(still)
    assert value("runs_due", queue="reports", lane="standard") == 0
    assert value("runs_due", queue="default", lane="standard") == 1


def test_timer_that_a_freeze_holds_is_not_overdue(still: ClockedDatabase) -> None:
    still.submit("minutely", schedule={"interval": "1m"})
    still.apply_batch({"type": "freeze", "scope": "tenant"})
    still.advance(MINUTE)
    assert fire_due(still) == 1
    still.advance(5 * MINUTE)
    measure(still)
    assert (value("timers_overdue"), value("jobs_behind")) == (0, 0)


def test_attempt_of_an_executor_that_is_gone_is_an_orphan(still: ClockedDatabase) -> None:
    still.submit()
    still.begin(still.trigger())
    measure(still)
    assert value("runs_orphaned") == 1


def test_instants_of_overdue_timers_are_counted(still: ClockedDatabase) -> None:
    still.submit("minutely", schedule={"interval": "1m"})
    still.submit("daily", schedule={"interval": "1d"})
    still.submit("held", schedule={"interval": "1m"})
    still.apply_batch(about("job.pause", "held"))
    still.advance(timedelta(minutes=5))
    measure(still)
    assert value("timers_overdue") == 1
    assert value("occurrences_missing") == 5
    assert value("jobs_behind") == 1
    assert value("timers_overdue_oldest_seconds") == 240


def test_blocked_ordering_keys_are_counted(still: ClockedDatabase) -> None:
    still.submit(ordering_key="k")
    still.end(ending(still.begin(still.trigger()), RunState.FAILED))
    still.trigger()
    still.advance(MINUTE)
    measure(still)
    assert (value("ordering_keys_blocked"), value("ordering_keys_blocked_oldest_seconds")) == (1, 60)


def test_part_of_a_lease_without_a_heartbeat_is_the_largest_of_all(still: ClockedDatabase) -> None:
    executor(still, MINUTE)
    executor(still, timedelta(minutes=10))
    still.advance(timedelta(seconds=30))
    measure(still)
    assert value("lease_used_ratio") == 0.5


def test_scheduler_that_loses_shard_0_exports_zeros(still: ClockedDatabase) -> None:
    still.submit()
    still.trigger()
    own = BacklogMetrics(still.session(), still.installation)
    own.step(measures=True)

    def measured() -> bool:
        own.step(measures=True)
        return value("runs_due", queue="default", lane="standard") == 1

    until(measured, "the backlog is measured")

    def reset() -> bool:
        own.step(measures=False)
        return value("runs_due", queue="default", lane="standard") == 0

    until(reset, "the gauges are reset")
    assert value("outbox_due", lane="standard") == 0
    own.close()


POISON = job_id("default", "poison")
POISONS: dict[str, LiteralString] = {
    "no JSON": "schedule_json = '{'",
    "no kind of schedule": """schedule_json = '{"kind": "nonsense"}'""",
    "a zone that is gone": """schedule_json = '{"kind": "cron", "expressions": ["* * * * *"], "timezone": "Mars/O"}'""",
    "a lane that is none": "lane = 'nonsense'",
    "a definition that is none": "definition = 'garbage'",
}


@pytest.fixture
def due(clocked: ClockedDatabase) -> ClockedDatabase:
    """Three jobs that fire each second, one of which will be poisoned, and a stopped clock."""
    clocked.stop_clock()
    clocked.apply_batch(*(submission(key, **EACH_SECOND) for key in ("before", "poison", "zzz")))
    return clocked


def poison(database: ClockedDatabase, change: LiteralString) -> None:
    statement = sql.SQL("UPDATE job_versions SET {} WHERE job_id = %s").format(sql.SQL(change))
    database.execute(statement, [POISON])


def keys_fired(database: ClockedDatabase) -> set[str]:
    return {key for (key,) in database.rows("SELECT DISTINCT key FROM runs JOIN jobs USING (job_id)")}


@pytest.mark.parametrize("change", POISONS.values(), ids=POISONS)
def test_poisoned_job_is_quarantined_and_others_fire(due: ClockedDatabase, change: LiteralString) -> None:
    poison(due, change)
    due.advance(timedelta(hours=1))
    fire_due(due)
    assert keys_fired(due) == {"before", "zzz"}
    [(kind, tenant, job, error)] = due.rows("SELECT kind, tenant, job_id, error FROM quarantine")
    assert (kind, tenant, job) == ("job", "default", POISON)
    assert error
    [event] = [event for event in due.lifecycle() if event.type == "io.tidewheel.job.quarantined.v1"]
    assert (event.job_key, event.job_version, event.reason) == ("poison", 1, error)
    # It is out of the way: the next look finds the others alone.
    due.advance(SECOND)
    assert fire_due(due) == 2
    assert due.count("quarantine") == 1


@pytest.mark.parametrize(
    "change",
    [
        "scheduled_at = '-infinity'", "scheduled_at = '294000-01-01Z'", "due_at = '-infinity'",
        "catch_up_end = 'infinity'", "repeats_until = '294000-01-01Z'",
    ],
)  # fmt: skip
def test_instant_that_python_does_not_have_stops_no_other_timer(due: ClockedDatabase, change: LiteralString) -> None:
    due.execute(sql.SQL("UPDATE timers SET {} WHERE job_id = %s").format(sql.SQL(change)), [POISON])
    due.advance(timedelta(hours=1))
    shards = range(due.installation.shards)
    now, found = _probe(due.session(), shards, [BEGINNING] * len(shards))
    assert any(at is not None and at <= now for at in found.values())
    fire_due(due)
    assert keys_fired(due) >= {"before", "zzz"}


@pytest.mark.parametrize("change", POISONS.values(), ids=POISONS)
def test_edit_releases_job_from_quarantine(due: ClockedDatabase, change: LiteralString) -> None:
    poison(due, change)
    due.advance(timedelta(hours=1))
    fire_due(due)
    [reply] = due.apply_batch(submission("poison", **EACH_SECOND, payload=1))
    assert (reply.status, reply.job_version) == (ReplyStatus.ACCEPTED, 2), reply.errors
    due.advance(SECOND)
    fire_due(due)
    assert "poison" in keys_fired(due)
    assert {run.job_version for run in due.job_runs() if run.job_id == POISON} == {2}


def test_quarantined_job_can_be_paused_and_deleted(due: ClockedDatabase) -> None:
    poison(due, "schedule_json = '{'")
    due.advance(SECOND)
    fire_due(due)
    replies = due.apply_batch(*(about(kind, "poison") for kind in ("job.pause", "job.resume", "job.delete")))
    assert [reply.status for reply in replies] == ["accepted"] * 3


def test_log_names_poisoned_job_only(due: ClockedDatabase, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "tidewheel.scheduler"):
        due.advance(SECOND)
        fire_due(due)
        assert caplog.text == ""
        poison(due, "lane = 'nonsense'")
        due.advance(SECOND)
        fire_due(due)
    assert f"job {POISON} is quarantined: CheckViolation" in caplog.text


def test_sessions_that_wait_for_a_lock_are_counted_with_the_longest_wait(still: ClockedDatabase) -> None:
    still.submit("held")
    waiting = connect(still.url, "tidewheel-relay")
    with closing(waiting), ThreadPoolExecutor(1) as thread, closing(still.connection()) as holding:
        holding.execute("SELECT FROM jobs FOR UPDATE")
        thread.submit(waiting.execute, "SELECT FROM jobs FOR UPDATE")
        until(lambda: still.value(WAITED, [waiting.info.backend_pid]), "it has waited for a while")
        measure(still)
        assert value("lock_waits") == 1
        assert (value("lock_waits_oldest_seconds") or 0) >= 0.2
        holding.rollback()
    measure(still)
    assert (value("lock_waits"), value("lock_waits_oldest_seconds")) == (0, 0)
