"""A session that acts for a tenant finds, changes and adds no row of another one by any statement.

The statements and their parameters are those that a scenario of one tenant executes. Each is then executed as another
tenant, as none, and as the same one beside the owner of the tables.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, LiteralString, NamedTuple, cast
from uuid import UUID

import psycopg
import pytest

from tests.fixtures.acts import ending
from tests.fixtures.database import ClockedDatabase
from tests.scheduler.firing import fire_due
from tests.tidewheel.postgres.test_statements import STATEMENTS
from tests.transitions.test_workflows import play
from tidewheel.activity import Stage
from tidewheel.control.api.streams import read_run_changes
from tidewheel.control.client.client import Client
from tidewheel.control.client.connection import Connection, begin_for_tenant
from tidewheel.control.reads.overview import read_now_of
from tidewheel.control.reads.resuming import preview_resume
from tidewheel.control.reads.workload import read_activity, slowest_runs
from tidewheel.ids import job_id
from tidewheel.migrations.row_security import TENANT_ROLE
from tidewheel.nouns.freezes.model import FrozenScope
from tidewheel.nouns.freezes.operations import preview_thaw
from tidewheel.nouns.freezes.reads import freeze_changes, list_freezes
from tidewheel.nouns.jobs.reads import list_jobs
from tidewheel.nouns.operation import Noun, operations
from tidewheel.nouns.works.operations import WORKS, list_works
from tidewheel.postgres.pg_binary import Field, FieldDumper
from tidewheel.postgres.session import BY_KEY, Conn, OwnConnection, connect
from tidewheel.postgres.statements import Statements, trusted
from tidewheel.runs import RunState
from tidewheel.testing.databases import Template

MINE, OTHER = "acme", "rival"
_NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)
# The tenant's policy gives the one condition, and a join of the owner the other.
_OF_TENANT = re.compile(r"\(tenant = (current_setting\('tidewheel\.tenant'::text, true\)|\w+\.tenant)\)")
_DAY = re.compile(r"_\d{8}$")
_INSERT = re.compile(r"INSERT INTO (\w+) \(")

_NOUNS = ("api_keys", "audit_log", "batches", "dead_letters", "freezes", "limits", "tenants", "workflows")
_DOORS = ("tidewheel.control", "tidewheel.intake", *(f"tidewheel.nouns.{name}" for name in _NOUNS))
_WITHOUT_TENANT = {"INSERT INTO outbox ("}
# Their results differ from one execution to the next.
OF_THE_SESSION = {
    "tidewheel.control: set_repeatable_read",
    "tidewheel.intake: next_cancellation_id",
    "tidewheel.intake: next_freeze_id",
}

# The planner then expects a million rows in each table, of which a tenant has a tenth.
_MANY: LiteralString = """
UPDATE pg_class SET relpages = 1, reltuples = 1000000
 WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'
"""
_TEN_TENANTS: LiteralString = """
SELECT pg_restore_attribute_stats(
           'schemaname', 'public', 'relname', c.relname::text, 'attname', 'tenant', 'inherited', false,
           'null_frac', 0::real, 'avg_width', 8, 'n_distinct', 10::real)
  FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attname = 'tenant'
 WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r'
"""
# Statements of the doors that the scenario does not execute for a tenant, by the reason.
_NOT_EXECUTED = {
    "it concerns all tenants, and runs as the owner of the tables": """
        nouns.freezes: list_all_freezes
        nouns.audit_log: list_audit_log_of_all
        control: find_api_key list_executors list_schedulers ping
        control: read_fleet_facts read_held_lanes read_intake_offsets read_queues read_services record_api_key_use
        nouns.tenants: list_tenants add_tenant change_limits free_name grant_role keep_tenant revoke_role
        nouns.tenants: schedule_deletion count_finished_runs count_open_runs count_tenant_jobs forget_job_room
        nouns.tenants: lock_tenant read_tenant_periods set_tenant_period show_tenant
        nouns.api_keys: add_executor_key lock_keys_of_tenant read_key_limits
        control: read_fallbacks add_message_key delete_message_keys lock_message_keys
        control: read_message_key_age add_task_token_key delete_task_token_keys lock_task_token_keys
        control: read_task_token_key_ages count_attempts_of_old_keys replace_readable_key
        control: add_sign_in drop_sign_ins end_sign_in record_sign_in_use take_link
        control: count_runs_of_executors list_runs_of_executor read_payload_schema""",
    "it runs in a caller's own transaction": """
        control: cancel_in_transaction enqueue_by_topic status_in_transaction""",
    "a task token names a run of any tenant": "intake: extend_deadlines lock_attempts read_final_states",
    "only services execute it": "intake: acquire_partition hold_deletions purge_replies store_offsets",
    "only pages of the console and their routes execute it": """
        control: find_last_jobs_of_page find_oldest_runs find_oldest_open_runs find_oldest_failed_runs
        control: find_oldest_runs_of_job find_oldest_open_runs_of_job
        control: find_job_key read_run_payload find_timeline_runs count_timeline_runs read_took_p95 read_versions_since
        control: read_selected_jobs read_pauses count_runs_of_jobs read_tenant_pulse read_run_pulses read_job_pulses
        control: read_plain_schedules read_streak read_error_lines read_newest_errors read_job_times find_unwell
        nouns.api_keys: show_api_key
        control: find_keys_from count_wrong name_executors
        nouns.freezes: count_freezable find_standing_freezes
        nouns.workflows: read_graphs
        nouns.batches: find_runs_of_batches
        control: list_children read_retry_facts find_longest_attempts count_states count_states_of_job""",
    "it needs locked rows, a faulty job or an occurrence of a rare kind": """
        control: find_chain find_unfired oldest_day_of_runs
        control: read_able read_attempts_of read_job_error read_last_attempts show_failed_run
        intake: add_job_cancellation add_pending_cancel calendar_names drop_moves find_pending_cancel open_windows
        intake: read_edges_above read_open_states take_over_pause wait_for_runs write_windows""",
    "the scenario has no batch, no quota of jobs and no child of several parents yet": """
        control: find_occurrence_of_child read_child_runs
        nouns.batches: read_batch_runs read_run_edges show_batch list_failed_runs read_batch_callbacks
        intake: count_jobs find_live_jobs leave_job_room lock_job_quota lock_old_job_quota take_job_room""",
}
NOT_OF_ONE_TENANT = {
    f"tidewheel.{package}: {name}"
    for lines in _NOT_EXECUTED.values()
    for package, _, names in (line.strip().partition(":") for line in lines.strip().splitlines())
    for name in names.split()
}


@dataclass
class Recorded:
    """A statement with the parameters of the execution that touched the most rows."""

    text: str
    parameters: Any
    rows: int


@dataclass
class Recording:
    """The statements that sessions execute for a tenant, by name."""

    named: dict[str, Recorded] = field(default_factory=dict[str, Recorded])

    def add(self, text: str, parameters: object, rows: int) -> None:
        name = _NAMES.get(text) or (found[0] if (found := _INSERT.match(text)) else None)
        if name is not None and (name not in self.named or self.named[name].rows < rows):
            self.named[name] = Recorded(text, parameters, rows)


_NAMES = {Statements(package)[name]: f"{package}: {name}" for package, name in STATEMENTS}


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> Recording:
    made, execute = Recording(), psycopg.Cursor[Any].execute

    def recorded(self: psycopg.Cursor[Any], query: Any, params: Any = None, **options: Any) -> Any:  # noqa: ANN401
        found = execute(self, query, params, **options)
        if isinstance(self.connection, OwnConnection) and self.connection.tenant is not None:
            made.add(str(query), params, self.rowcount)
        return found

    monkeypatch.setattr(psycopg.Cursor, "execute", recorded)
    return made


@pytest.fixture
def empty(clocked_template: Template) -> Iterator[ClockedDatabase]:
    """A database without a row of the first tenant."""
    made = ClockedDatabase(clocked_template.take(), clocked_template.installation)
    yield made
    made.close()
    clocked_template.give_back(made.url)


@pytest.fixture
def lived(clocked: ClockedDatabase, recording: Recording) -> Recording:
    """The statements of a tenant that has used every call."""
    clocked.execute("INSERT INTO tenants (tenant) VALUES (%s), (%s)", [MINE, OTHER])
    clocked.stop_clock(_NOON)
    with Client(clocked.url, tenant=MINE) as client, closing(Connection(clocked.url, tenant=MINE)) as connection:
        _define(client)
        clocked.advance(timedelta(minutes=1))  # an edge is in force after the instant of its submit
        _run(client, clocked)
        _fail(client, clocked)
        _plan(client, clocked)
        _operate(client)
        with connection.snapshot() as reading:
            span = timedelta(hours=1)
            list_jobs(reading, MINE)
            list_freezes(reading, MINE, counts_all=False)
            freeze_changes(reading, MINE, _NOON, _NOON + span)
            preview_thaw(reading, FrozenScope(MINE, None, {"team": "a"}, None), only=MINE)
            preview_resume(reading, MINE, [job_id(MINE, "job")])
            list_works(reading, MINE, key="job")
            read_now_of(reading, MINE, 64, None, sees_slots=True)
            read_activity(reading, MINE, [_NOON - span, _NOON + span], tuple(Stage))
            slowest_runs(reading, MINE, _NOON - span, _NOON + span, 10)
            read_run_changes(reading, MINE, "job", after=(_NOON - span, UUID(int=0)), until=_NOON + 99 * span, known=[])
    return recording


def _define(client: Client) -> None:
    client.calendars.put("closed", days=["2026-12-24"])
    client.submit({"key": "hourly", "schedule": "@every 1h", "target": "work", "exclude_calendars": ["closed"]})
    client.submit({"key": "job", "schedule": "manual", "target": "work", "labels": {"team": "a"}})
    client.submit({"key": "keyed", "schedule": "manual", "target": "work", "concurrency_key": "k"})
    client.submit({"key": "root", "schedule": "manual", "target": "work"})
    client.submit({"key": "child", "schedule": {"after": ["root"]}, "target": "work"})
    client.submit({"key": "child", "schedule": {"after": ["root"]}, "target": "other"})
    client.submit({"key": "chain", "schedule": {"fixed_delay": "1h", "max": "2h"}, "target": "work"})
    client.calendars.put("closed", days=["2026-12-24", "2026-12-25"])
    client.calendars.list()
    client.calendars.get("closed")
    client.patch("job", {"labels": {"team": "b"}})
    client.rollback("job", 1)
    client.versions("job")
    client.diff("job", 1, 2)
    client.preview({"key": "new", "schedule": "@every 1h", "target": "work", "exclude_calendars": ["closed"]})


def _run(client: Client, database: ClockedDatabase) -> None:
    first = client.trigger("job", {"n": 1}, labels={"a": "b"}, request_id="t-1")
    client.trigger("job", {"n": 1}, labels={"a": "b"}, request_id="t-1")
    client.run_later("later", delay=60)
    started = database.begin(first)
    database.end(ending(started, RunState.SUCCEEDED, result=b"1", output=b"hello"))
    fire_due(database)
    [run_id] = database.rows("SELECT run_id FROM job_runs JOIN jobs USING (job_id) WHERE key = 'chain'")[0]
    database.end(ending(database.begin(run_id), RunState.SUCCEEDED))
    client.reschedule("chain", timedelta(hours=2))
    client.next("chain")
    client.runs.get(first)
    client.runs.detail(first)
    client.runs.logs(first)
    client.runs.cancel(client.trigger("keyed"))
    running = database.begin(client.trigger("keyed"))
    client.runs.cancel(running.run_id)
    database.end(ending(running, RunState.CANCELLED))
    client.trigger("root")
    play(database, lambda key: RunState.FAILED if key == "child" else RunState.SUCCEEDED)
    assert client.workflows.list()
    [occurrence] = client.workflows.list("root")
    client.workflows.get(occurrence.root_run_id)
    client.workflows.resume(occurrence.root_run_id)
    client.workflows.pause(occurrence.root_run_id)
    client.workflows.cancel(occurrence.root_run_id)


def _fail(client: Client, database: ClockedDatabase) -> None:
    failed = [client.trigger("job") for _ in range(3)]
    for run_id in failed:
        started = database.begin(run_id)
        database.end(ending(started, RunState.FAILED, error_type="ValueError", error_message="no", trace="line 1"))
    page = client.dead_letters.list(key="job")
    client.dead_letters.list(limit=1)
    client.dead_letters.get(page.dead_letters[0].id)
    client.runs.retry(failed[0])
    redriven = client.dead_letters.redrive(key="job")
    assert redriven.work_id is not None
    client.works.get(redriven.work_id)
    client.works.pause(redriven.work_id)
    client.works.resume(redriven.work_id)
    client.works.cancel(redriven.work_id)
    for part in (client.dead_letters, client.runs):
        for name, each in operations(type(part)).items():
            if each.starts == WORKS:
                getattr(part, name)(key="job")
    first, _ = (client.trigger("job", ordering_key="acme") for _ in range(2))
    database.end(ending(database.begin(first), RunState.FAILED))
    client.ordering_keys.blocked()
    client.runs.cancel(client.ordering_keys.unblock("acme").run_id)
    client.ordering_keys.unblock("acme", skip=True)


def _plan(client: Client, database: ClockedDatabase) -> None:
    client.skip("hourly", _NOON + timedelta(hours=2))
    client.move("hourly", _NOON + timedelta(hours=3), _NOON + timedelta(hours=3, minutes=5))
    client.unskip("hourly", _NOON + timedelta(hours=2))
    client.next("hourly")
    client.statistics("hourly")
    client.pause("hourly")
    database.advance(timedelta(hours=1, minutes=1))
    client.resume("hourly")
    for hours in (0, 1, 3):
        client.explain("hourly", _NOON + timedelta(hours=hours))
    filled = client.backfill("hourly", _NOON, _NOON + timedelta(hours=1), what="all")
    assert filled.backfill_id is not None
    client.works.get(filled.backfill_id)
    client.works.pause(filled.backfill_id)
    client.works.resume(filled.backfill_id)
    client.works.cancel(filled.backfill_id)


def _operate(client: Client) -> None:
    for status in (None, "queued", "failed", "succeeded"):
        client.runs.list(status=status)
        client.runs.list(status=status, key="job", run_labels={"team": "a"})
    client.freezes.freeze(labels={"team": "a"})
    client.freezes.freeze(key_prefix="ho", reason="a fault")
    client.submit({"key": "ho", "schedule": "manual", "target": "work"})
    client.freezes.thaw(key_prefix="ho")
    client.runs.cancel_matching(key="job", dry_run=True)
    number = client.runs.cancel_matching(labels={"team": "a"}).cancellation_id or 0
    client.runs.cancellation(number)
    client.release(everything=True)
    client.release("job")
    key = client.api_keys.create("ci", ["read"])
    for part in vars(client).values():
        for name, each in operations(type(part)).items() if isinstance(part, Noun) else ():
            needs = name == "preview_thaw" or any(parameter.required for parameter in each.parameters)  # a scope, an id
            if each.route.startswith("GET") and not needs:
                getattr(part, name)()
    client.api_keys.revoke(key.summary.key_id)
    client.audit_log.list(object="job/job")
    client.delete("child")
    client.delete("hourly")
    client.calendars.delete("closed")


@pytest.mark.landing
def test_another_tenant_and_none_find_change_and_add_nothing(
    lived: Recording, clocked: ClockedDatabase, empty: ClockedDatabase
) -> None:
    """The outcome is that on a database without rows, and a row of the first tenant is refused."""
    empty.stop_clock(clocked.now())
    wrong: list[object] = []
    for name, each in lived.named.items():
        for tenant in (OTHER, ""):
            found, wanted = _execute(clocked, each, tenant), _execute(empty, each, tenant)
            if name in OF_THE_SESSION:
                continue
            is_insert = name.startswith("INSERT") and name not in _WITHOUT_TENANT
            if not found.is_refused and (is_insert or found != wanted):
                wrong.append((name, tenant, found, wanted))
    assert not wrong, "\n".join(map(repr, wrong))


@pytest.mark.landing
def test_the_tenant_itself_finds_what_the_owner_finds_by_the_same_indexes(
    lived: Recording, clocked: ClockedDatabase
) -> None:
    clocked.execute(_MANY)
    clocked.execute(_TEN_TENANTS)
    wrong: list[object] = []
    for name, each in lived.named.items():
        if name not in OF_THE_SESSION:
            found, all_rows = _execute(clocked, each, MINE), _execute(clocked, each, None)
            if found != all_rows:
                wrong.append((name, found, all_rows))
            mine = _conditions(clocked, each, MINE)
            scanned = {
                (table, by)
                for table, by in _conditions(clocked, each, None)
                if (table, "key") not in mine and (by == "key" or (table, "tenant") not in mine)
            }
            if scanned:
                wrong.append((name, scanned))
    assert not wrong, "\n".join(map(repr, wrong))


def test_every_statement_of_the_doors_is_executed_or_listed(lived: Recording) -> None:
    doors = {f"{package}: {name}" for package, name in STATEMENTS if package in _DOORS}
    left = doors - lived.named.keys()
    assert left == NOT_OF_ONE_TENANT, "\n".join(sorted(left ^ NOT_OF_ONE_TENANT))


class Found(NamedTuple):
    """The outcome of a statement: its rows, how many it touched, the SQLSTATE of its error."""

    rows: Sequence[object]
    touched: int
    error: str | None

    @property
    def is_refused(self) -> bool:
        return self.error == psycopg.errors.InsufficientPrivilege.sqlstate


def _execute(database: ClockedDatabase, each: Recorded, tenant: str | None) -> Found:
    """Execute a statement for a tenant, or as the owner, and roll back."""
    with connect(database.url, "test") as connection:
        _begin(connection, tenant)
        try:
            cursor = connection.cursor()
            cursor.adapters.register_dumper(Field, FieldDumper)
            cursor.execute(trusted(each.text), each.parameters)
            rows = sorted(cursor.fetchall(), key=repr) if cursor.description else []
            return Found(rows, cursor.rowcount, None)
        except psycopg.Error as error:
            return Found([], 0, error.sqlstate)
        finally:
            connection.rollback()


def _begin(connection: Conn, tenant: str | None) -> None:
    if tenant is not None:
        begin_for_tenant(connection, TENANT_ROLE, tenant, "public")


def _conditions(database: ClockedDatabase, each: Recorded, tenant: str | None) -> set[tuple[str, str]]:
    """Return the tables that a plan reads by an index: by `tenant` alone, or by a `key` beside it.

    Without hash joins, whose cost is close to that of a nested loop for some statements: the choice would be chance.
    """
    with connect(database.url, "test", options=f"{BY_KEY} -c enable_sort=on -c enable_hashjoin=off") as connection:
        _begin(connection, tenant)
        try:
            cursor = connection.cursor()
            cursor.adapters.register_dumper(Field, FieldDumper)
            rows = cursor.execute(trusted(f"EXPLAIN (FORMAT JSON) {each.text}"), each.parameters).fetchall()
        except psycopg.errors.SyntaxError:  # SET
            return set()
        finally:
            connection.rollback()
    return set(_tables(cast("list[Any]", rows[0][0])[0]["Plan"]))


def _tables(node: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if condition := node.get("Index Cond", ""):
        by = "key" if _OF_TENANT.sub("", condition).strip("() AND") else "tenant"
        yield _DAY.sub("", node.get("Relation Name", "")), by
    for each in node.get("Plans", ()):
        yield from _tables(each)
