"""Days: partitions made ahead, and runs counted by day."""

from contextlib import closing
from datetime import UTC, date, datetime, time, timedelta
from itertools import pairwise
from math import ceil
from typing import LiteralString

import pytest
from prometheus_client import REGISTRY
from psycopg import sql

from tests.control.api.answering import answer_of, answering
from tests.control.cli.command import json_output, tidewheel
from tests.fixtures.acts import about, submission
from tests.fixtures.database import ClockedDatabase, Database
from tests.fixtures.services import until
from tests.scheduler.firing import EACH_SECOND, SECOND, fire_due
from tests.scheduler.test_loop import running
from tests.scheduler.test_retention import DAY, KEEP, Retention, dying, made
from tests.transitions.stepping import in_background
from tidewheel.activity import quantile
from tidewheel.control.client.client import Client
from tidewheel.errors import Unavailable
from tidewheel.ids import job_id
from tidewheel.postgres.partitions import AHEAD_DAYS, TABLES, day_of, days_ahead, ensure_coming_days
from tidewheel.process.service import Shutdown
from tidewheel.scheduler import removals
from tidewheel.scheduler.loop import DaysAhead
from tidewheel.scheduler.removals import Pace

RUNS: LiteralString = """
INSERT INTO finished_runs (run_id, job_id, tenant, job_version, shard, cause, queue, lane, scheduled_at, publish_at,
                           created_at, started_at, finished_at, state, attempt)
SELECT gen_random_uuid(), %(job_id)s, 'default', 1, 0, 'timer', 'default', 'standard', at, at, at, started,
       coalesce(started + 10 ^ (5 * random()) * interval '1 ms', at),
       CASE WHEN n %% 10 = 0 THEN 'failed' ELSE 'succeeded' END, 1 + n %% 2
  FROM (SELECT n, at, CASE WHEN n < 40 THEN at + random() * interval '100 ms' END AS started
          FROM (SELECT n, %(day)s + n / 2 * interval '1 s' AS at FROM generate_series(1, 40) AS n) AS planned) AS r
"""
SECONDS: LiteralString = """
SELECT extract(epoch FROM finished_at - started_at)::float8, extract(epoch FROM started_at - publish_at)::float8
  FROM finished_runs WHERE job_id = %s AND started_at IS NOT NULL
"""
LONGEST: LiteralString = """
SELECT run_id, extract(epoch FROM finished_at - started_at)::float8
  FROM finished_runs WHERE job_id = %s AND started_at IS NOT NULL ORDER BY finished_at - started_at DESC LIMIT 1
"""


def test_each_run_is_counted_once_though_a_scheduler_dies(
    fresh_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    [day] = made(fresh_database, 2)
    monkeypatch.setattr(removals, "_SLICE", 1)
    jobs = {key: job_id("default", key) for key in ("a", "b")}
    for key, job in jobs.items():
        fresh_database.submit(key)
        at = datetime.combine(day, time(1), UTC)
        fresh_database.execute(RUNS, {"job_id": job, "day": at})
    fresh_database.execute("ANALYZE finished_runs")
    for visit in (1, 2, 3):  # before the first commit, and after some
        killed = Retention(fresh_database.url, KEEP, Shutdown())
        with dying(removals, "counting.before_commit", visit):
            killed.step()
        killed.close()
    retention = Retention(fresh_database.url, KEEP, Shutdown())
    for _ in range(2):
        retention.step()
    retention.close()
    with Client(fresh_database.url) as client:
        for key, job in jobs.items():
            found = client.statistics(key)
            [longest] = fresh_database.rows(LONGEST, [job])
            assert found.total is not None
            assert found.total.longest is not None
            assert (found.total.longest.run_id, found.total.longest.took) == longest
            [counted] = found.days
            assert found.total == counted
            assert (counted.day, counted.succeeded, counted.failed, counted.attempts) == (day, 36, 4, 60)
            for place, quantiles in enumerate((counted.duration, counted.lateness)):
                true = sorted(row[place] for row in fresh_database.rows(SECONDS, [job]))
                for part, estimate in ((0.5, quantiles.p50), (0.9, quantiles.p90), (0.99, quantiles.p99)):
                    exact = true[ceil(part * len(true)) - 1]
                    assert estimate == pytest.approx(exact, rel=0.05, abs=0.001)
    assert json_output(fresh_database, "job", "stats", "a")["days"][0]["day"] == day.isoformat()
    assert tidewheel(fresh_database, "job", "stats", "a").lines[-2].split()[:3] == ["total", "36", "4"]
    with answering(fresh_database) as api:
        assert answer_of(api.get("/api/v1/jobs/a/statistics?days=3"))["total"]["succeeded"] == 36
        assert answer_of(api.get("/api/v1/jobs/b/statistics?days=1"))["total"] is None
        assert api.get("/api/v1/jobs/none/statistics").status_code == 404


LIMITS: LiteralString = """
SELECT set_config(name, '300ms', false) FROM pg_settings WHERE name IN ('statement_timeout', 'transaction_timeout')
"""
IS_LONG: LiteralString = """
SELECT count(*) FROM pg_stat_activity
 WHERE pid = %s AND wait_event_type = 'Lock' AND clock_timestamp() - query_start > interval '400 ms'
"""


def test_slice_may_take_longer_than_the_limits_of_its_session(fresh_database: Database) -> None:
    [day] = made(fresh_database, 2)
    fresh_database.submit("a")
    fresh_database.execute(RUNS, {"job_id": job_id("default", "a"), "day": datetime.combine(day, time(1), UTC)})
    fresh_database.execute("INSERT INTO run_days (day, waits_for, closed_at) VALUES (%s, '{}', now())", [day])
    with closing(fresh_database.connection(autocommit=True)) as counting:
        counting.execute(LIMITS)
        with fresh_database.transaction() as holding:
            holding.execute("LOCK TABLE job_days IN EXCLUSIVE MODE")
            running = in_background(lambda: removals.count_days(counting, Pace(Shutdown())))
            pid = counting.info.backend_pid
            until(lambda: running.done() or fresh_database.value(IS_LONG, [pid]) == 1, "the slice takes long")
        running.result(30)
    assert fresh_database.rows("SELECT day, succeeded + failed FROM job_days") == [(day, 40)]


def test_pass_that_loses_its_connection_ends_with_the_cause(
    fresh_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(fresh_database, 3, 2)

    def terminate(_: str) -> None:
        fresh_database.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = 'tidewheel-scheduler-retention'"
        )

    monkeypatch.setattr(removals, "failpoint", terminate)
    retention = Retention(fresh_database.url, KEEP, Shutdown())
    with pytest.raises(Unavailable, match="terminating connection due to administrator command"):
        retention.step()
    monkeypatch.undo()
    retention.step()
    retention.close()
    assert fresh_database.value("SELECT bool_and(counted_at IS NOT NULL) FROM run_days") is True


def test_quantile_of_nothing_is_unknown() -> None:
    assert quantile({}, 0.5) is None
    assert (quantile({0: 3}, 0.99), DAY.days) == (0.001, 1)


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


@pytest.mark.landing
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
        until(lambda: reported_days() == 1, "the metric shows that one is missing")
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


def test_dropped_day_poisons_no_job(still: ClockedDatabase) -> None:
    """This process knows the day; the run of a late `once` writes to it."""
    still.submit("late", schedule={"once": (still.now() + SECOND).isoformat()})
    still.submit("tick", **EACH_SECOND)
    still.advance(timedelta(minutes=5))
    ensure_coming_days(still.connection(autocommit=True))
    drop(still, day_of(still.now()))
    with pytest.raises(Unavailable, match="no partition"):
        fire_due(still)
    fire_due(still)
    assert still.count("quarantine") == 0
    assert {job_id("default", key) for key in ("late", "tick")} == {run.job_id for run in still.job_runs()}


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
