"""Coming days are created beside firing; days that clients choose, or that are dropped, stop nothing."""

from datetime import date, datetime, timedelta
from itertools import pairwise
from typing import LiteralString

import pytest
from prometheus_client import REGISTRY
from psycopg import sql

from tests.fixtures.acts import about, submission
from tests.fixtures.database import ClockedDatabase, Database
from tests.fixtures.services import until
from tests.scheduler.firing import fire_due
from tests.scheduler.test_loop import running
from tidewheel.control.client.client import Client
from tidewheel.errors import Unavailable
from tidewheel.ids import job_id
from tidewheel.postgres.partitions import AHEAD_DAYS, TABLES, day_of, days_ahead, ensure_coming_days
from tidewheel.process.service import Shutdown
from tidewheel.scheduler.days_ahead import DaysAhead

DAY, SECOND = timedelta(days=1), timedelta(seconds=1)
EACH_SECOND = {"schedule": "@every 1s", "overlap": "allow_all"}
LOCK: LiteralString = "LOCK TABLE finished_runs IN SHARE UPDATE EXCLUSIVE MODE"  # as VACUUM and ANALYZE take
WAITS: LiteralString = """
SELECT count(*) FROM pg_stat_activity
 WHERE datname = current_database() AND application_name = 'tidewheel-scheduler-days' AND wait_event_type = 'Lock'
"""
RELATIONS: LiteralString = "SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace"
INSTANTS: LiteralString = "SELECT scheduled_at FROM runs WHERE job_id = %s ORDER BY scheduled_at"


def drop(database: Database, day: date) -> None:
    for table in TABLES:
        database.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(f"{table}_{day:%Y%m%d}")))


def tables_of(database: Database, day: date) -> set[str]:
    found = database.rows(
        "SELECT relname::text FROM pg_class WHERE relispartition AND relname LIKE %s", [f"%{day:%Y%m%d}"]
    )
    return {name.removesuffix(f"_{day:%Y%m%d}") for (name,) in found}


def reported_days() -> float | None:
    seconds = REGISTRY.get_sample_value("tidewheel_partitions_ahead_seconds")
    return None if seconds is None else seconds / DAY.total_seconds()


def instants(database: Database, key: str) -> list[datetime]:
    return [at for (at,) in database.rows(INSTANTS, [job_id("default", key)])]


def test_locked_table_delays_no_firing(fresh_database: Database) -> None:
    """Another transaction holds the lock that a new partition needs; firing needs none of it."""
    database, today = fresh_database, day_of(fresh_database.now())
    missing = today + 2 * DAY
    drop(database, missing)
    holding = database.connection()
    holding.execute("SET idle_in_transaction_session_timeout = 0")
    holding.execute(LOCK)
    database.submit("tick", **EACH_SECOND)
    with running(database, lookahead=timedelta(0)):
        until(lambda: database.value(WAITS), "the thread waits for the lock")
        before = len(instants(database, "tick"))
        until(lambda: len(instants(database, "tick")) >= before + 5, "firing goes on")
        until(lambda: tables_of(database, missing) == set(TABLES) - {"finished_runs"}, "the other tables have theirs")
        assert reported_days() == 1
        holding.rollback()
        until(lambda: tables_of(database, missing) == set(TABLES), "it is created once the lock is free")
        until(lambda: reported_days() == AHEAD_DAYS, "the metric shows it")
    fired = instants(database, "tick")
    assert {later - earlier for earlier, later in pairwise(fired)} == {SECOND}


def test_days_ahead_are_counted_without_a_gap(fresh_database: Database) -> None:
    today, connection = day_of(fresh_database.now()), fresh_database.connection(autocommit=True)
    ensure_coming_days(connection)
    assert days_ahead(connection) == AHEAD_DAYS
    fresh_database.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(f"attempts_{today + DAY:%Y%m%d}")))
    assert days_ahead(connection) == 0
    thread = DaysAhead(fresh_database.url, Shutdown())
    assert thread.step() == AHEAD_DAYS
    thread.close()


def test_dropped_day_poisons_no_job(clocked: ClockedDatabase) -> None:
    """This process knows the day; the run of a late `once` writes to it."""
    clocked.stop_clock()
    clocked.submit("late", schedule={"once": (clocked.now() + SECOND).isoformat()})
    clocked.submit("tick", **EACH_SECOND)
    clocked.advance(timedelta(minutes=5))
    ensure_coming_days(clocked.connection(autocommit=True))
    drop(clocked, day_of(clocked.now()))
    with pytest.raises(Unavailable, match="no partition"):
        fire_due(clocked)
    fire_due(clocked)
    assert clocked.count("quarantine") == 0
    assert {job_id("default", key) for key in ("late", "tick")} == {run.job_id for run in clocked.job_runs()}


def test_dropped_day_refuses_no_request(fresh_database: Database) -> None:
    """The client repeats its transaction, and the day exists again."""
    fresh_database.submit("task", schedule="manual")
    ensure_coming_days(fresh_database.connection(autocommit=True))
    with Client(fresh_database.url) as client:
        client.trigger("task", {"n": 1})
        drop(fresh_database, day_of(fresh_database.now()))
        client.trigger("task", {"n": 2})
    assert len(fresh_database.job_runs()) == 2


@pytest.mark.slow
def test_400_days_named_by_one_client_create_no_partition(fresh_database: Database) -> None:
    """Triggers and `once` jobs of days past and future; an unrelated job goes on firing meanwhile."""
    database, now = fresh_database, fresh_database.now()
    database.submit("tick", **EACH_SECOND)
    database.submit("task", schedule="manual")
    triggers = [
        {**about("job.trigger", "task"), "run_at": (now + days * DAY).isoformat(), "payload": days}
        for days in (*range(-100, 0), *range(1, 101))
    ]
    once = [
        submission(f"once-{days}", schedule={"once": (now + days * DAY).isoformat()})
        for days in (*range(-85, 0), *range(101, 216))
    ]
    assert len(triggers) + len(once) == 400
    with running(database, lookahead=timedelta(0)):
        until(lambda: reported_days() == AHEAD_DAYS, "the days ahead exist")
        until(lambda: instants(database, "tick"), "it fires")
        relations = database.value(RELATIONS)
        for start in range(0, 200, 20):
            before = len(instants(database, "tick"))
            replies = database.apply_batch(*triggers[start : start + 20], *once[start : start + 20])
            assert {reply.status for reply in replies} == {"accepted"}
            until(lambda: len(instants(database, "tick")) > before, "the unrelated job fires")  # noqa: B023
        past = "SELECT count(*) FROM runs JOIN jobs USING (job_id) WHERE key LIKE 'once-%'"
        until(lambda: database.value(past) == 85, "those of the past fire")
    assert database.value(RELATIONS) == relations
    assert {later - earlier for earlier, later in pairwise(instants(database, "tick"))} == {SECOND}
