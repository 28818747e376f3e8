"""Retention: the partitions of old days are dropped, and nothing that an open run needs."""

import logging
from collections.abc import Iterator
from datetime import date, timedelta
from typing import LiteralString

import pytest
from psycopg import sql

from tests.control.client.test_dead_letters import fail
from tests.fixtures.database import Database
from tests.fixtures.services import until
from tests.transitions.acts import apply_batch, begin, end, ending, submit, trigger
from tidewheel.control.client.client import Client
from tidewheel.errors import Unavailable
from tidewheel.postgres.partitions import TABLES, day_of, ensure_days, stored_days
from tidewheel.process.service import Shutdown
from tidewheel.runs import RunState
from tidewheel.scheduler.retention import Retention

KEEP = timedelta(days=10)
KEEP_AUDIT = timedelta(days=400)
DAY = timedelta(days=1)
WAITING: LiteralString = """
SELECT count(*) FROM pg_stat_activity
 WHERE datname = current_database() AND application_name = 'tidewheel-scheduler-retention' AND wait_event_type = 'Lock'
"""
LOCK: LiteralString = "SELECT pg_advisory_lock(hashtext('tidewheel.retention'))"


@pytest.fixture
def retention(fresh_database: Database) -> Iterator[Retention]:
    made = Retention(fresh_database.url, KEEP, KEEP_AUDIT, Shutdown())
    yield made
    made.close()


def made(database: Database, *ages: int) -> list[date]:
    """Create the partitions of days so many days ago."""
    days = [day_of(database.now()) - age * DAY for age in ages]
    ensure_days(database.connection(autocommit=True), days)
    return days


def stored(database: Database, table: str) -> set[date]:
    return {each.day for each in stored_days(database.connection(autocommit=True)) if each.table == table}


def partition(day: date) -> sql.Identifier:
    """The partition of attempts."""
    return sql.Identifier(f"attempts_{day:%Y%m%d}")


def interrupt_detaching(database: Database, day: date) -> None:
    """Leave the partition of a day about to be detached, as a process does that waits for too long."""
    reading = database.connection()
    reading.execute("SELECT count(*) FROM attempts")
    cutting = database.connection(autocommit=True)
    cutting.execute("SET lock_timeout = '50ms'")
    with pytest.raises(Exception, match="lock timeout"):
        cutting.execute(sql.SQL("ALTER TABLE attempts DETACH PARTITION {} CONCURRENTLY").format(partition(day)))
    reading.rollback()
    assert [each.day for each in stored_days(cutting) if each.pending] == [day]


def test_days_older_than_the_retention_are_dropped(fresh_database: Database, retention: Retention) -> None:
    kept, old, older = made(fresh_database, 10, 11, 12)
    dropped = retention.step()
    assert {(each.table, each.day) for each in dropped} == {
        *((table, older) for table in TABLES),
        *((table, old) for table in TABLES if table != "run_inputs"),
    }
    for table in TABLES:
        assert kept in stored(fresh_database, table)
    assert old in stored(fresh_database, "run_inputs"), "inputs are kept a day longer"
    assert retention.step() == []


def test_days_of_open_runs_are_kept(fresh_database: Database, retention: Retention) -> None:
    submit(fresh_database)
    waiting, started = trigger(fresh_database), begin(fresh_database, trigger(fresh_database))
    created, begun, neither = made(fresh_database, 40, 30, 20)
    age: LiteralString = "UPDATE job_runs SET created_at = created_at - %s WHERE run_id = %s"
    fresh_database.execute(age, [40 * DAY, waiting])
    fresh_database.execute(
        "UPDATE job_runs SET started_at = started_at - %s WHERE run_id = %s", [30 * DAY, started.run_id]
    )
    retention.step()
    assert stored(fresh_database, "run_inputs") >= {created}
    assert not stored(fresh_database, "run_inputs") & {begun, neither}
    for table in ("attempts", "attempt_outputs"):
        assert stored(fresh_database, table) >= {begun}
        assert not stored(fresh_database, table) & {created, neither}
    assert not stored(fresh_database, "finished_runs") & {created, begun, neither}
    end(fresh_database, ending(started, RunState.SUCCEEDED))
    assert fresh_database.value("SELECT state FROM finished_runs WHERE run_id = %s", [started.run_id]) == "succeeded"


def test_an_old_occurrence_that_is_resumed_meanwhile_stays(fresh_database: Database, retention: Retention) -> None:
    fresh_database.execute(
        "INSERT INTO workflows (root_run_id, tenant, root_job_id, shard, scheduled_at, graph_at, state, pending,"
        " created_at, finished_at)"
        " SELECT gen_random_uuid(), 'default', gen_random_uuid(), n, at, at, 'failed', 0, at, at"
        " FROM (SELECT n, now() - interval '20 d' AS at FROM generate_series(1, 3) AS n) AS old"
    )
    fresh_database.execute(
        "INSERT INTO batches (batch_id, tenant, open, total, callbacks)"
        " SELECT root_run_id, tenant, false, 1, '{}' FROM workflows"
    )
    fresh_database.execute(
        "INSERT INTO batch_runs (batch_id, ref, tenant, run_id, job_id)"
        " SELECT batch_id, 'a', tenant, batch_id, batch_id FROM batches"
    )
    with fresh_database.transaction() as resuming:
        resuming.execute("UPDATE workflows SET state = 'open', finished_at = NULL WHERE shard = 2")
        retention.step()
    assert fresh_database.rows("SELECT shard, state FROM workflows") == [(2, "open")]
    assert fresh_database.rows("SELECT ref FROM batches JOIN batch_runs USING (batch_id)") == [("a",)]


def test_old_batches_go_with_their_runs_and_edges(fresh_database: Database, retention: Retention) -> None:
    submit(fresh_database)
    runs = [{"ref": "a", "key": "job"}, {"ref": "b", "key": "job", "after": ["a"]}]
    for _ in range(2):
        apply_batch(fresh_database, {"type": "batch.submit", "runs": runs})
    fresh_database.execute(
        "UPDATE workflows SET state = 'succeeded', finished_at = now() - interval '20 d'"
        " WHERE root_run_id = (SELECT batch_id FROM batches LIMIT 1)"
    )
    retention.step()
    counts = {table: fresh_database.count(table) for table in ("workflows", "batches", "batch_runs", "run_edges")}
    assert counts == {"workflows": 1, "batches": 1, "batch_runs": 2, "run_edges": 1}


def test_interrupted_drops_are_completed(fresh_database: Database, retention: Retention) -> None:
    """A process that dies leaves a detached partition, or one that is about to be detached."""
    [detached, pending] = made(fresh_database, 20, 21)
    fresh_database.execute(sql.SQL("ALTER TABLE attempts DETACH PARTITION {}").format(partition(detached)))
    interrupt_detaching(fresh_database, pending)
    retention.step()
    assert not stored(fresh_database, "attempts") & {detached, pending}


def test_interrupted_drop_does_not_stop_that_of_an_older_day(fresh_database: Database, retention: Retention) -> None:
    """An open run has kept it. PostgreSQL detaches one partition of a table at a time."""
    [older, pending] = made(fresh_database, 30, 20)
    interrupt_detaching(fresh_database, pending)
    retention.step()
    assert not stored(fresh_database, "attempts") & {older, pending}


def test_inputs_that_are_to_move_are_kept(fresh_database: Database, retention: Retention) -> None:
    """Their run has ended in a client's own transaction, and the scheduler has not applied it yet."""
    [created, neither] = made(fresh_database, 40, 30)
    fresh_database.execute(
        "INSERT INTO deferred_effects (run_id, job_id, tenant, ended_at, reset_failures, inputs_at, release_job)"
        " SELECT gen_random_uuid(), gen_random_uuid(), 'default', now, false, now - %s, false"
        "   FROM tidewheel_now() AS now",
        [40 * DAY],
    )
    retention.step()
    assert stored(fresh_database, "run_inputs") >= {created}
    assert not stored(fresh_database, "run_inputs") & {neither}


def test_thread_survives_an_operators_drop(fresh_database: Database, caplog: pytest.LogCaptureFixture) -> None:
    [old] = made(fresh_database, 20)
    operator = fresh_database.connection()
    operator.execute(sql.SQL("DROP TABLE {}").format(partition(old)))
    caplog.set_level(logging.INFO, "tidewheel.process")
    stop = Shutdown()
    Retention(fresh_database.url, KEEP, KEEP_AUDIT, stop).start()
    until(lambda: fresh_database.value(WAITING) == 1, "it waits for the operator")
    operator.commit()
    until(lambda: "dropping old partitions: " in caplog.text, "it has noticed")
    until(lambda: "dropping old partitions: works again" in caplog.text, "the recovery is logged")
    stop.request()


@pytest.mark.slow
def test_partition_that_another_transaction_holds_is_dropped_soon_after(
    fresh_database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """The thread tries again after seconds, not after an hour."""
    [old] = made(fresh_database, 20)
    caplog.set_level(logging.INFO, "tidewheel.process.service")
    operator = fresh_database.connection()
    operator.execute(sql.SQL("LOCK TABLE {}").format(partition(old)))
    stop = Shutdown()
    Retention(fresh_database.url, KEEP, KEEP_AUDIT, stop).start()
    until(lambda: "dropping old partitions: " in caplog.text, "its wait for the lock has ended")
    operator.rollback()
    until(lambda: old not in stored(fresh_database, "attempts"), "it is dropped")
    until(lambda: "dropping old partitions: works again" in caplog.text, "the recovery is logged")
    stop.request()
    assert caplog.text.count("tries again until it succeeds") == 1


def test_without_old_partitions_no_run_is_read(fresh_database: Database, retention: Retention) -> None:
    fresh_database.execute("ALTER TABLE job_runs RENAME TO elsewhere")
    assert retention.step() == []


def test_one_scheduler_at_a_time_drops(fresh_database: Database, retention: Retention) -> None:
    [old] = made(fresh_database, 20)
    other = fresh_database.connection(autocommit=True)
    other.execute(LOCK)
    assert retention.step() == []
    assert old in stored(fresh_database, "attempts")


def test_retention_without_a_database_raises_unavailable() -> None:
    with pytest.raises(Unavailable):
        Retention("postgresql://127.0.0.1:1/none", KEEP, KEEP_AUDIT, Shutdown()).step()


def test_redrives_that_ended_long_ago_are_deleted(retention: Retention, fresh_database: Database) -> None:
    submit(fresh_database)
    with Client(fresh_database.url) as client:
        for age in (9, 11, None):
            fail(fresh_database)
            redrive_id = client.dead_letters.redrive().redrive_id
            ended = None if age is None else fresh_database.now() - age * DAY
            fresh_database.execute("UPDATE redrives SET finished_at = %s WHERE redrive_id = %s", [ended, redrive_id])
        retention.step()
        assert [each.finished_at is None for each in client.redrives.list()] == [True, False]
