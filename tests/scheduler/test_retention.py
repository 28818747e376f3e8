"""Retention: the partitions of old days are dropped, and nothing that an open run needs."""

import logging
import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from types import ModuleType
from typing import LiteralString
from uuid import UUID

import psycopg
import pytest
from psycopg import sql

from tests.control.cli.command import json_output
from tests.control.client.test_dead_letters import fail
from tests.fixtures.acts import about, ending
from tests.fixtures.database import Database
from tests.fixtures.roles import stranger
from tests.fixtures.services import until
from tidewheel.control.client.client import Client
from tidewheel.control.occurrence_audit.result import run_audit
from tidewheel.errors import InvalidInput, Refused, Unavailable, UnknownRun
from tidewheel.postgres.partitions import TABLES, day_of, ensure_days, start_of, stored_days
from tidewheel.postgres.statements import Statements, trusted
from tidewheel.process.service import Shutdown
from tidewheel.runs import RunState
from tidewheel.scheduler import removals
from tidewheel.scheduler.retention import Retention
from tidewheel.scheduler.retention_rules import RULES, Bounded, By, Days, Jobs, Periods, Rows
from tidewheel.transitions.kept_since import read_kept_since

DAY = timedelta(days=1)
KEEP = Periods(runs=10 * DAY, outputs=4 * DAY, failed=50 * DAY, audit=400 * DAY, statistics=600 * DAY)
WAITING: LiteralString = """
SELECT count(*) FROM pg_stat_activity
 WHERE datname = current_database() AND application_name = 'tidewheel-scheduler-retention' AND wait_event_type = 'Lock'
"""
CATALOG: LiteralString = """
SELECT relname::text FROM pg_class
 WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition
"""
CONSTRAINTS: LiteralString = """
SELECT conrelid::regclass::text, conname::text FROM pg_constraint
 WHERE connamespace = 'public'::regnamespace AND contype IN ('c', 'f') AND conparentid = 0 AND conislocal
"""
COLUMNS: LiteralString = """
SELECT a.attname::text, format_type(a.atttypid, NULL)
  FROM pg_attribute AS a
 WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped
   AND a.attidentity = '' AND a.attgenerated = ''
   AND (a.attnotnull OR a.atttypid = 'timestamptz'::regtype)
"""
ADD_SKIPS: LiteralString = """
INSERT INTO skips (job_id, tenant, job_version, reason, first_at, last_at, occurrences, created_at)
SELECT gen_random_uuid(), 'default', 1, s.reason, now(), now(), 1, tidewheel_now() - s.age
  FROM (VALUES ('misfire', interval '3 days'), ('paused', interval '0')) AS s (reason, age)
"""
DELETES = re.compile(r"DELETE FROM (\w+)")
VALUES = {
    "uuid": "%(id)s::uuid",
    "text": "%(id)s::text",
    "bytea": "'x'::bytea",
    "boolean": "false",
    "timestamp with time zone": "tidewheel_now() - %(age)s",
    "date": "((tidewheel_now() - %(age)s) AT TIME ZONE 'UTC')::date",
    **dict.fromkeys(("bigint", "integer", "smallint", "double precision"), "%(number)s"),
}
ARCHIVED: LiteralString = "INSERT INTO archived_days (day, runs, bytes, id_days) VALUES (%s, 0, 0, '{}')"
COUNTED: LiteralString = "INSERT INTO run_days (day, waits_for, closed_at, counted_at) VALUES (%s, '{}', now(), now())"
# Of this release, and of 0.1.
LOCKS: tuple[LiteralString, ...] = (
    "LOCK TABLE retention_lock IN SHARE ROW EXCLUSIVE MODE",
    "SELECT pg_advisory_lock(hashtext('tidewheel.retention'))",
)
AUDITING: tuple[LiteralString, ...] = (
    "LOCK TABLE kept_since_lock IN ROW EXCLUSIVE MODE",
    "SELECT pg_advisory_lock_shared(hashtext('tidewheel.kept_since'))",
)


class Killed(BaseException):
    """The process has died here."""


@contextmanager
def dying(module: ModuleType, point: str, visit: int = 1) -> Generator[None]:
    """Let the process die at a visit to a failpoint of a module."""
    visits: list[str] = []

    def die(at: str) -> None:
        if at == point:
            visits.append(at)
            if len(visits) == visit:
                raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "failpoint", die)
        with pytest.raises(Killed):
            yield


@pytest.fixture
def database(fresh_database: Database) -> Database:
    return fresh_database


@pytest.fixture
def retention(database: Database) -> Iterator[Retention]:
    made = Retention(database.url, KEEP, Shutdown())
    yield made
    made.close()


def made(database: Database, *ages: int) -> list[date]:
    days = [day_of(database.now()) - age * DAY for age in ages]
    ensure_days(database.connection(autocommit=True), days)
    return days


def stored(database: Database, table: str) -> set[date]:
    return {each.day for each in stored_days(database.connection(autocommit=True)) if each.table == table}


def dropped_days(database: Database) -> list[date]:
    return [day for (day,) in database.rows("SELECT day FROM run_days WHERE dropped_at IS NOT NULL ORDER BY day")]


def partition(day: date) -> sql.Identifier:
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


def test_days_older_than_their_period_are_dropped(database: Database, retention: Retention) -> None:
    kept, old, older, with_outputs, without = made(database, 10, 11, 12, 4, 5)
    dropped = retention.step()
    assert {(each.table, each.day) for each in dropped} == {
        *((table, older) for table in TABLES),
        *((table, old) for table in TABLES if table not in {"run_inputs", "attempts"}),
        *(("attempt_outputs", day) for day in (kept, without)),
    }
    for table in TABLES:
        assert with_outputs in stored(database, table)
    assert kept in stored(database, "finished_runs")
    for table in ("run_inputs", "attempts"):
        assert old in stored(database, table), "runs of the next day have theirs here"
    assert dropped_days(database) == [older, old]
    assert retention.step() == []
    assert database.rows("SELECT behind, held_by FROM retention_state") == [(None, None)]


def test_day_is_closed_when_no_transaction_can_add_a_run(database: Database, retention: Retention) -> None:
    """A completion in a client's own transaction commits hours after the instant that it writes."""
    [day] = made(database, 2)
    closed: LiteralString = "SELECT closed_at IS NOT NULL FROM run_days WHERE day = %s"
    with database.transaction() as completing:
        completing.execute("UPDATE settings SET value = value WHERE name = 'shards'")
        retention.step()
        assert database.value(closed, [day]) is False

    def is_closed() -> bool:  # transactions of other tests end soon
        retention.step()
        return database.value(closed, [day])

    until(is_closed, "the day is closed")


def test_open_transaction_of_a_role_without_rights_keeps_no_day_open(database: Database, retention: Retention) -> None:
    """Kind: a public name as a lock (N2 of issue 39)."""
    [day] = made(database, 2)
    with stranger(database.url) as url, psycopg.connect(url) as other:
        other.execute("SELECT pg_current_xact_id()")
        retention.step()
        assert database.value("SELECT closed_at IS NOT NULL FROM run_days WHERE day = %s", [day])


def test_with_an_archive_no_day_is_dropped_before_it_is_archived(database: Database, retention: Retention) -> None:
    before, older, old, _ = made(database, 20, 13, 12, 11)
    database.execute(ARCHIVED, [before - DAY])
    assert {each.day for each in retention.step()} == set()
    [(behind, held_by)] = database.rows("SELECT behind, held_by FROM retention_state")
    assert (behind > DAY, held_by) == (True, f"attempt_outputs of {before}: the archive lacks this day")
    for day in (older, old):
        database.execute(ARCHIVED, [day])
    assert {each.day for each in retention.step()} == {older}, "runs of the next day may have attempts on this one"


def test_archive_that_begins_later_waits_for_no_dropped_day(database: Database, retention: Retention) -> None:
    """Inputs are kept a day longer than the runs, so they are there when the archive begins."""
    [old] = made(database, 11)
    retention.step()
    database.execute(ARCHIVED, [old + 5 * DAY])
    later = Retention(database.url, replace(KEEP, runs=9 * DAY), Shutdown())
    assert [(each.table, each.day) for each in later.step()] == [("attempts", old), ("run_inputs", old)]
    later.close()


def test_audit_of_the_first_kept_day_finds_its_skips(database: Database, retention: Retention) -> None:
    """Runs go by whole days, so what an audit computes them from does too."""
    [day] = made(database, 10)
    midnight = datetime.combine(day, time(), UTC)
    submitted = database.submit(schedule={"cron": "0 0 * * *"})
    database.execute("UPDATE job_versions SET effective_at = %s", [midnight - DAY])
    database.execute(
        "INSERT INTO skips (job_id, tenant, job_version, reason, first_at, last_at, occurrences, created_at)"
        " VALUES (%s, 'default', 1, 'misfire', %s, %s, 1, %s)",
        [submitted.job_id, *[midnight] * 3],
    )
    retention.step()
    result = run_audit(database.url, midnight, midnight + DAY / 2)
    assert (result.findings, result.totals.skipped["misfire"]) == ((), 1)


def test_failed_runs_are_listed_after_their_day_is_dropped(database: Database, retention: Retention) -> None:
    database.submit(overlap="allow_all")
    failed = [fail(database) for _ in range(2)]
    database.execute("TRUNCATE finished_runs")
    with Client(database.url) as client:
        first = client.runs.list(status="failed", limit=1)
        second = client.runs.list(status="failed", limit=1, after=first.next_cursor)
    shown = [*first.runs, *second.runs]
    assert {each.run_id for each in shown} == {*failed}
    assert {(each.key, each.status, each.error_type) for each in shown} == {("job", "failed", "ValueError")}


@pytest.mark.parametrize("trace", ["Traceback: …\n  line 1\nE: no", "é" * 40_000 + "\nE: no", None])
def test_trace_of_a_failed_run_lives_as_long_as_the_run(with_job: Database, trace: str | None) -> None:
    """Output is dropped sooner; then the run; its copy stays."""
    started = with_job.begun()
    with_job.end(ending(started, RunState.FAILED, error_type="E", error_message="no", trace=trace, output=b"out"))
    kept = trace and trace[-8192:]
    with Client(with_job.url) as client:
        assert [each.trace for each in client.runs.detail(started.run_id).attempts] == [trace]
        with_job.execute("TRUNCATE attempt_outputs")
        [last] = client.runs.detail(started.run_id).attempts
        assert (last.trace, last.output_bytes) == (kept, None)
        with_job.execute("TRUNCATE finished_runs, attempts, run_inputs")
        copied = client.runs.detail(started.run_id)
    assert [(each.trace, each.outcome, each.error_message) for each in copied.attempts] == (
        [(kept, "failed", "no")] if kept else []
    )
    assert (copied.copied, copied.error_message) == (True, "no")


def test_every_table_has_a_rule(database: Database) -> None:
    """A new table needs one: its rows are removed, or bounded."""
    assert {name for (name,) in database.rows(CATALOG)} == set(RULES)
    for table, rule in RULES.items():
        if isinstance(rule, By):
            statement = Statements(rule.package)[rule.statement]
            assert table in DELETES.findall(statement), rule
        elif isinstance(rule, Jobs):
            assert table in DELETES.findall(Statements("tidewheel.scheduler")["remove_jobs"])
        elif isinstance(rule, Bounded):
            assert rule.by
    assert {table for table, rule in RULES.items() if isinstance(rule, Days)} == set(TABLES)


def test_old_rows_of_every_table_are_deleted(database: Database, retention: Retention) -> None:
    """One row of each table is an hour older than its period, one is an hour younger."""
    rules = {table: rule for table, rule in RULES.items() if isinstance(rule, Rows)}
    for table, constraint in database.rows(CONSTRAINTS):
        name = sql.Identifier(table), sql.Identifier(constraint)
        database.execute(sql.SQL("ALTER TABLE {} DROP CONSTRAINT {}").format(*name))
    for table, rule in rules.items():
        columns = database.rows(COLUMNS, [table])
        insert = sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(
            sql.Identifier(table),
            sql.SQL(", ").join(sql.Identifier(name) for name, _ in columns),
            sql.SQL(trusted(", ".join(VALUES.get(kind, f"'{{}}'::{kind}") for _, kind in columns))),
        )
        by_end = table in {"dedupes", "tenant_deletions"}
        step = DAY if table == "job_days" else timedelta(hours=1)
        for number, later in enumerate((step, -step)):
            age = later + (timedelta(0) if by_end else KEEP.of(rule.period))
            database.execute(insert, {"id": UUID(int=number), "number": number, "age": age})
    assert {database.count(table) for table in rules} == {2}
    retention.step()
    assert {table: database.count(table) for table in rules} == dict.fromkeys(rules, 1)


def test_young_skips_are_not_locked_beside_old_ones(database: Database) -> None:
    database.execute(ADD_SKIPS)
    rule = RULES["skips"]
    assert isinstance(rule, Rows)
    young: LiteralString = (
        "SELECT count(*) FROM (SELECT FROM skips WHERE reason = 'paused' FOR UPDATE SKIP LOCKED) AS s"
    )
    with database.transaction() as deleting:
        done = deleting.execute(rule.statement, {"before": database.now() - DAY, "limit": 10_000})
        assert done.rowcount == 1
        assert database.value(young) == 1


def test_jobs_that_ended_long_ago_are_removed_if_nothing_needs_them(database: Database, retention: Retention) -> None:
    for key in ("removed", "recent", "failed", "ran"):
        database.submit(key)
    database.submit("live", schedule={"cron": "0 * * * *"})
    fail(database, "failed")
    database.execute("TRUNCATE finished_runs")
    database.end(ending(database.begin(database.trigger("ran")), RunState.SUCCEEDED))
    database.apply_batch(*(about("job.delete", key) for key in ("removed", "recent", "failed", "ran")))
    database.execute("UPDATE jobs SET deleted_at = deleted_at - %s WHERE key <> 'recent'", [11 * DAY])
    trigger_lock = database.connection()
    trigger_lock.execute("SELECT FROM jobs WHERE key = 'removed' FOR KEY SHARE")
    retention.step()
    assert database.count("jobs") == 5, "a trigger holds the job"
    trigger_lock.rollback()
    retention.step()
    assert {key for (key,) in database.rows("SELECT key FROM jobs")} == {"recent", "failed", "ran", "live"}
    assert database.count("job_versions") == 4
    assert database.submit("removed").job_version == 1


LEFT_VERSIONS: LiteralString = """
SELECT j.key, array_agg(v.version ORDER BY v.version)
  FROM jobs AS j JOIN job_versions AS v ON v.job_id = j.job_id GROUP BY j.key
"""
VERSIONS: LiteralString = """
INSERT INTO job_versions
SELECT (jsonb_populate_record(v, jsonb_build_object(
           'version', n + 1, 'effective_at', tidewheel_now() - ago * interval '1 day'))).*
  FROM job_versions AS v, unnest(ARRAY[800, 700, 500, 300, 100]) WITH ORDINALITY AS later (ago, n)
 WHERE v.version = 1
"""


def test_superseded_versions_go_if_no_run_can_have_them(
    database: Database, retention: Retention, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third version was superseded 500 days ago: runs of ten days and the longest delay make 410."""
    monkeypatch.setattr(removals, "_VERSIONS", 2)
    for key in ("plain", "open", "ran", "missed", "moved", "backfilled", "edited"):
        database.submit(key, schedule={"cron": "0 * * * *"})
    job = dict(database.rows("SELECT key, job_id FROM jobs"))
    database.execute("UPDATE jobs SET version = 6, created_at = created_at - interval '900 days'")
    database.execute(VERSIONS)
    database.execute("UPDATE job_versions SET effective_at = effective_at - interval '900 days' WHERE version = 1")
    database.execute("UPDATE timers SET version = 6")
    database.trigger("open")
    database.end(ending(database.begin(database.trigger("ran")), RunState.SUCCEEDED))
    ago: LiteralString = "SET job_version = 2, scheduled_at = scheduled_at - %s * interval '1 day' WHERE job_id = %s"
    database.execute("UPDATE job_runs " + ago, [750, job["open"]])
    database.execute("UPDATE finished_runs " + ago, [350, job["ran"]])
    database.execute(
        "UPDATE timers SET scheduled_at = scheduled_at - interval '250 days', due_at = 'infinity',"
        " hold_reason = 'pause' WHERE job_id = %s",
        [job["missed"]],
    )
    database.execute(
        "INSERT INTO overrides (job_id, scheduled_at, tenant, kind, moved_to, created_at) VALUES"
        " (%s, tidewheel_now() - interval '350 days', 'default', 'move', tidewheel_now() + interval '1 day', now())",
        [job["moved"]],
    )
    database.execute(
        "INSERT INTO backfills (backfill_id, tenant, job_id, shard, job_version, state, first_at, last_at, what,"
        " versions, newest_first, max_concurrent, occurrences, expected_count, created_at)"
        " SELECT gen_random_uuid(), tenant, job_id, shard, 6, 'paused', tidewheel_now() - interval '350 days',"
        "        tidewheel_now(), 'all', 'as_of', false, 1, 9, 9, tidewheel_now() FROM jobs WHERE job_id = %s",
        [job["backfilled"]],
    )

    def left() -> dict[str, list[int]]:
        return dict(database.rows(LEFT_VERSIONS))

    with database.transaction() as editing:
        editing.execute("SELECT FROM jobs WHERE key = 'edited' FOR NO KEY UPDATE")
        retention.step()
    found = left()
    assert found.pop("edited") == [1, 2, 3, 4, 5, 6], "an edit holds the job"
    assert found == {
        "plain": [4, 5, 6],
        "open": [1, 2, 3, 4, 5, 6],
        "ran": [2, 3, 4, 5, 6],
        "missed": [3, 4, 5, 6],
        "moved": [2, 3, 4, 5, 6],
        "backfilled": [2, 3, 4, 5, 6],
    }
    retention.step()
    assert left()["edited"] == [4, 5, 6]
    assert database.submit("plain").job_version == 7


def test_what_an_open_occurrence_needs_is_kept(database: Database, retention: Retention) -> None:
    before, needed = made(database, 8, 6)
    database.execute(
        "INSERT INTO workflows (root_run_id, tenant, root_job_id, shard, scheduled_at, graph_at, state, pending,"
        " created_at) SELECT gen_random_uuid(), 'default', gen_random_uuid(), 1, at, at, 'paused', 1, at"
        " FROM (VALUES (tidewheel_now() - %s)) AS old (at)",
        [6 * DAY],
    )
    retention.step()
    kept = stored(database, "attempt_outputs")
    assert (needed in kept, before in kept) == (True, False)
    database.execute("UPDATE workflows SET created_at = created_at - %s", [20 * DAY])
    older, oldest = made(database, 27, 25)
    retention.step()
    for table in TABLES:
        assert stored(database, table) & {older, oldest, needed} == {oldest, needed}, "runs may be its parents"


@pytest.mark.parametrize("lock", AUDITING)
def test_an_audit_delays_the_drops_and_nothing_else(
    database: Database, retention: Retention, lock: LiteralString
) -> None:
    """It holds the lock for its whole time."""
    made(database, 20, 6)
    with Client(database.url) as client:
        client.tenants.keep("default", 4)
    auditing = database.connection()
    auditing.execute(lock)
    assert retention.step() == []
    [(behind, held_by)] = database.rows("SELECT behind, held_by FROM retention_state")
    assert (behind > DAY, held_by.endswith(": an audit or a backfill reads old runs")) == (True, True)
    auditing.close()
    assert retention.step()


def test_runs_that_an_open_backfill_compares_with_are_kept(database: Database, retention: Retention) -> None:
    before, day_before, needed = made(database, 30, 21, 20)
    now = database.now()
    database.execute(
        "INSERT INTO backfills (backfill_id, tenant, job_id, shard, state, first_at, last_at, what, versions,"
        " job_version, newest_first, max_concurrent, occurrences, expected_count, created_at)"
        " SELECT gen_random_uuid(), 'default', gen_random_uuid(), 1, 'paused', %s, %s, 'missing_only', 'as_of',"
        " 1, false, 1, 1, 1, %s",
        [now - 20 * DAY, now, now],
    )
    retention.step()
    assert stored(database, "finished_runs") >= {needed}
    assert stored(database, "attempts") >= {day_before, needed}, "an audit compares them with the runs"
    assert not stored(database, "attempts") & {before}
    assert dropped_days(database) == [before, day_before]


def test_once_of_a_dropped_day_is_refused(database: Database, retention: Retention) -> None:
    """Its run may have been there, and its id is free."""
    [old] = made(database, 11)
    with Client(database.url) as client:

        def submit_once(key: str, day: date) -> None:
            client.submit({"key": key, "target": "nothing", "schedule": {"once": start_of(day).isoformat()}})

        submit_once("early", old - 100 * DAY)
        client.submit({"key": "edited", "target": "nothing", "schedule": "manual"})
        retention.step()
        for key in ("new", "edited"):
            with pytest.raises(Refused, match=f"runs are kept since {old + DAY}") as refused:
                submit_once(key, old)
            assert [error.path for error in refused.value.errors] == ["job.schedule.once"]
            submit_once(key, old + DAY)
        client.submit({
            "key": "early", "target": "else", "schedule": {"once": start_of(old - 100 * DAY).isoformat()},
        })  # fmt: skip
        with pytest.raises(Refused, match="runs are kept since"):
            client.preview({"key": "third", "target": "nothing", "schedule": {"once": start_of(old).isoformat()}})


def test_failed_run_of_a_dropped_day_is_shown_by_its_copy(database: Database) -> None:
    database.submit()
    run_id = fail(database)
    with Client(database.url) as client:
        before = client.runs.detail(run_id)
        database.execute("DELETE FROM finished_runs")
        after = client.runs.detail(run_id)
        assert (after.copied, after.summary.status) == (True, "failed")
        [(last,), (kept,)] = before.attempts, after.attempts
        assert replace(last, executor_id=None, claimed_from=None, output=None, output_bytes=None) == kept
        for name in ("error_message", "dead_letter", "handler", "max_attempts"):
            assert getattr(after, name) == getattr(before, name)
        shown = json_output(database, "run", "show", str(run_id))
        assert (shown["copied"], shown["error_message"]) == (True, before.error_message)
        database.execute("DELETE FROM failed_runs")
        with pytest.raises(UnknownRun):
            client.runs.detail(run_id)


def test_days_of_open_runs_are_kept(database: Database, retention: Retention) -> None:
    database.submit()
    waiting, started = database.trigger(), database.begin(database.trigger())
    created, begun, neither = made(database, 40, 30, 20)
    age: LiteralString = "UPDATE job_runs SET created_at = created_at - %s WHERE run_id = %s"
    database.execute(age, [40 * DAY, waiting])
    database.execute("UPDATE job_runs SET started_at = started_at - %s WHERE run_id = %s", [30 * DAY, started.run_id])
    retention.step()
    assert stored(database, "run_inputs") >= {created}
    assert not stored(database, "run_inputs") & {begun, neither}
    for table in ("attempts", "attempt_outputs"):
        assert stored(database, table) >= {begun}
        assert not stored(database, table) & {created, neither}
    assert not stored(database, "finished_runs") & {created, begun, neither}
    database.end(ending(started, RunState.SUCCEEDED))
    assert database.value("SELECT state FROM finished_runs WHERE run_id = %s", [started.run_id]) == "succeeded"


def test_an_old_occurrence_that_is_resumed_meanwhile_stays(database: Database, retention: Retention) -> None:
    database.execute(
        "INSERT INTO workflows (root_run_id, tenant, root_job_id, shard, scheduled_at, graph_at, state, pending,"
        " created_at, finished_at)"
        " SELECT gen_random_uuid(), 'default', gen_random_uuid(), n, at, at, 'failed', 0, at, at"
        " FROM (SELECT n, now() - interval '20 d' AS at FROM generate_series(1, 3) AS n) AS old"
    )
    database.execute(
        "INSERT INTO batches (batch_id, tenant, open, total, callbacks)"
        " SELECT root_run_id, tenant, false, 1, '{}' FROM workflows"
    )
    database.execute(
        "INSERT INTO batch_runs (batch_id, ref, tenant, run_id, job_id)"
        " SELECT batch_id, 'a', tenant, batch_id, batch_id FROM batches"
    )
    with database.transaction() as resuming:
        resuming.execute("UPDATE workflows SET state = 'open', finished_at = NULL WHERE shard = 2")
        retention.step()
    assert database.rows("SELECT shard, state FROM workflows") == [(2, "open")]
    assert database.rows("SELECT ref FROM batches JOIN batch_runs USING (batch_id)") == [("a",)]


def test_old_batches_go_with_their_runs_and_edges(database: Database, retention: Retention) -> None:
    database.submit()
    runs = [{"ref": "a", "key": "job"}, {"ref": "b", "key": "job", "after": ["a"]}]
    for _ in range(2):
        database.apply_batch({"type": "batch.submit", "runs": runs})
    database.execute(
        "UPDATE workflows SET state = 'succeeded', finished_at = now() - interval '20 d'"
        " WHERE root_run_id = (SELECT batch_id FROM batches LIMIT 1)"
    )
    retention.step()
    counts = {table: database.count(table) for table in ("workflows", "batches", "batch_runs", "run_edges")}
    assert counts == {"workflows": 1, "batches": 1, "batch_runs": 2, "run_edges": 1}


def test_interrupted_drops_are_completed(database: Database, retention: Retention) -> None:
    """A process that dies leaves a detached partition, or one that is about to be detached."""
    [detached, pending] = made(database, 20, 21)
    database.execute(sql.SQL("ALTER TABLE attempts DETACH PARTITION {}").format(partition(detached)))
    interrupt_detaching(database, pending)
    retention.step()
    assert not stored(database, "attempts") & {detached, pending}


def test_interrupted_drop_does_not_stop_that_of_an_older_day(database: Database, retention: Retention) -> None:
    """An open run has kept it. PostgreSQL detaches one partition of a table at a time."""
    [older, pending] = made(database, 30, 20)
    interrupt_detaching(database, pending)
    retention.step()
    assert not stored(database, "attempts") & {older, pending}


def test_inputs_that_are_to_move_are_kept(database: Database, retention: Retention) -> None:
    """Their run has ended in a client's own transaction, and the scheduler has not applied it yet."""
    [created, neither] = made(database, 40, 30)
    database.execute(
        "INSERT INTO deferred_effects (run_id, job_id, tenant, ended_at, reset_failures, inputs_at, release_job)"
        " SELECT gen_random_uuid(), gen_random_uuid(), 'default', now, false, now - %s, false"
        "   FROM tidewheel_now() AS now",
        [40 * DAY],
    )
    retention.step()
    assert stored(database, "run_inputs") >= {created}
    assert not stored(database, "run_inputs") & {neither}


def test_thread_survives_an_operators_drop(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    [old] = made(database, 20)
    database.execute(COUNTED, [old])
    operator = database.connection()
    operator.execute(sql.SQL("DROP TABLE {}").format(partition(old)))
    caplog.set_level(logging.INFO, "tidewheel.process")
    stop = Shutdown()
    Retention(database.url, KEEP, stop).start()
    until(lambda: database.value(WAITING) == 1, "it waits for the operator")
    operator.commit()
    until(lambda: "removing what is old: " in caplog.text, "it has noticed")
    until(lambda: "removing what is old: works again" in caplog.text, "the recovery is logged")
    stop.request()


@pytest.mark.slow
def test_partition_that_another_transaction_holds_is_dropped_soon_after(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """The thread tries again after seconds, not after an hour."""
    [old] = made(database, 20)
    database.execute(COUNTED, [old])
    caplog.set_level(logging.INFO, "tidewheel.process.service")
    operator = database.connection()
    operator.execute(sql.SQL("LOCK TABLE {}").format(partition(old)))
    stop = Shutdown()
    Retention(database.url, KEEP, stop).start()
    until(lambda: "removing what is old: " in caplog.text, "its wait for the lock has ended")
    operator.rollback()
    until(lambda: old not in stored(database, "attempts"), "it is dropped")
    until(lambda: "removing what is old: works again" in caplog.text, "the recovery is logged")
    stop.request()
    assert caplog.text.count("tries again until it succeeds") == 1


def test_without_old_partitions_no_run_is_read(database: Database, retention: Retention) -> None:
    database.execute("ALTER TABLE job_runs RENAME TO elsewhere")
    assert retention.step() == []


@pytest.mark.parametrize("lock", LOCKS)
def test_one_scheduler_at_a_time_drops(database: Database, retention: Retention, lock: LiteralString) -> None:
    [old] = made(database, 20)
    other = database.connection()
    other.execute(lock)
    assert retention.step() == []
    assert old in stored(database, "attempts")


def test_retention_without_a_database_raises_unavailable() -> None:
    with pytest.raises(Unavailable):
        Retention("postgresql://127.0.0.1:1/none", KEEP, Shutdown()).step()


def test_redrives_that_ended_long_ago_are_deleted(retention: Retention, database: Database) -> None:
    database.submit()
    with Client(database.url) as client:
        for age in (9, 11, None):
            fail(database)
            redrive_id = client.dead_letters.redrive(everything=True).work_id
            ended = None if age is None else database.now() - age * DAY
            database.execute("UPDATE works SET finished_at = %s WHERE work_id = %s", [ended, redrive_id])
        retention.step()
        assert [each.finished_at is None for each in client.works.list()] == [True, False]


RUN_OF: LiteralString = """
WITH run AS (
    INSERT INTO finished_runs (run_id, job_id, tenant, job_version, shard, cause, queue, lane, scheduled_at, publish_at,
                               created_at, started_at, finished_at, state, attempt)
    SELECT gen_random_uuid(), gen_random_uuid(), %(tenant)s, 1, 0, 'timer', 'default', 'standard', %(at)s, %(at)s,
           %(at)s, %(at)s, %(at)s, %(state)s, 2
      FROM generate_series(1, 3)
    RETURNING run_id, tenant, started_at
), tried AS (
    INSERT INTO attempts (run_id, attempt, tenant, started_at, finished_at, outcome)
    SELECT run_id, 1, tenant, started_at, started_at, 'failed' FROM run
)
INSERT INTO run_inputs (run_id, created_at, tenant) SELECT run_id, started_at, tenant FROM run
"""
LEFT: LiteralString = """
SELECT (finished_at AT TIME ZONE 'UTC')::date, state, count(*)
  FROM finished_runs WHERE tenant = %s GROUP BY 1, 2 ORDER BY 1, 2
"""


def test_tenants_day_that_becomes_ready_later_is_not_passed(database: Database, retention: Retention) -> None:
    """The archive took a day before an older one, which failed for a while."""
    before, older, old = made(database, 6, 5, 4)
    with Client(database.url) as client:
        client.tenants.create("acme")
        client.tenants.keep("acme", 2)
    for day in (before, older, old):
        at = datetime.combine(day, time(1), UTC)
        database.execute(RUN_OF, {"tenant": "acme", "state": "succeeded", "at": at})
    for day in (before, old):
        database.execute(ARCHIVED, [day])
    retention.step()
    assert database.rows(LEFT, ["acme"]) == [(day, "succeeded", 3) for day in (older, old)]
    database.execute(ARCHIVED, [older])
    retention.step()
    assert database.rows(LEFT, ["acme"]) == []


def test_shorter_periods_of_a_tenant_leave_other_tenants_alone(
    database: Database, retention: Retention, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduler that dies between two pages of a day goes on with that day."""
    monkeypatch.setattr(removals, "_PAGE", 2)
    days = made(database, 6, 5, 4, 3)
    with Client(database.url) as client:
        client.tenants.create("acme")
        assert client.tenants.keep("acme", 4)
        assert client.tenants.keep("acme", 2, state="skipped")
        assert not client.tenants.keep("acme", 4)
        with pytest.raises(InvalidInput, match="days"):
            client.tenants.keep("acme", 0)
    for day in days:
        for tenant, state in (("acme", "succeeded"), ("acme", "skipped"), ("default", "skipped")):
            at = datetime.combine(day, time(1), UTC)
            database.execute(RUN_OF, {"tenant": tenant, "state": state, "at": at})
    before = database.rows(LEFT, ["default"])

    with dying(removals, "removing.page"):
        retention.step()
    retention.step()
    assert database.rows(LEFT, ["acme"]) == [(day, "succeeded", 3) for day in days[2:]]
    assert database.rows(LEFT, ["default"]) == before
    for table in ("attempts", "run_inputs"):
        assert database.count(table) == 6 + 12
    shown = json_output(database, "admin", "tenant", "retention", "acme", "--days", "none")
    assert shown["periods"] == [
        {"state": "any", "days": None, "kept_since": days[2].isoformat()},
        {"state": "skipped", "days": 2, "kept_since": (days[3] + DAY).isoformat()},
    ]
    with database.transaction() as reading:
        assert read_kept_since(reading, "acme") == datetime.combine(days[3] + DAY, time(), UTC)
        assert read_kept_since(reading, "default") is None
