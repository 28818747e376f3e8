"""Rights of the services' roles, and row security."""

import json
import logging
from collections.abc import Mapping
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import LiteralString

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from pydantic import SecretStr

from tests.control.cli.command import tidewheel
from tests.fixtures.database import Database
from tests.fixtures.roles import as_role, role_passwords
from tests.fixtures.services import until
from tests.migrations.rights import functions_of, rights_of, tables_with_a_tenant, written
from tests.transitions.stepping import in_background
from tidewheel.control.cli.exit_codes import ExitCode
from tidewheel.control.client.client import Client
from tidewheel.control.doctor.check import Context, Limits, run_checks
from tidewheel.control.doctor.doctor import CHECKS
from tidewheel.errors import MigrationError
from tidewheel.local.stack import LocalStack
from tidewheel.migrations.row_security import TENANT_ROLE, role_problem, unsecured_tables
from tidewheel.migrations.runner import created_names, migrate, require_current
from tidewheel.migrations.service_roles import FUNCTIONS, RIGHTS, ROLES, SERVICES, role_of
from tidewheel.postgres.partitions import StoredDay, create_missing, day_of, drop_day, stored_days
from tidewheel.postgres.session import connect
from tidewheel.settings.connections import Connections

DAY = timedelta(days=1)
# The scheduler removes the keys of a deleted tenant, and the API checks them.
SECRETS: Mapping[str, LiteralString] = {
    "scheduler": "SELECT secret FROM message_keys",
    "api": "SELECT 1 FROM pg_authid",
}
GRANTS: LiteralString = """
SELECT c.relname, a.grantee::regrole::text, array_agg(a.privilege_type ORDER BY a.privilege_type)
  FROM pg_class AS c, aclexplode(c.relacl) AS a
 WHERE c.relnamespace = 'public'::regnamespace AND a.grantee::regrole::text LIKE 'tidewheel\\_%'
 GROUP BY 1, 2 ORDER BY 1, 2
"""
WRITABLE_BY_MONITOR: LiteralString = """
SELECT c.relname
  FROM pg_class AS c
 WHERE c.relnamespace = 'public'::regnamespace
   AND CASE c.relkind WHEN 'S' THEN has_sequence_privilege('tidewheel_monitor', c.oid, 'USAGE, UPDATE')
            WHEN 'i' THEN false WHEN 'I' THEN false
            ELSE has_any_column_privilege('tidewheel_monitor', c.oid, 'INSERT, UPDATE')
                 OR has_table_privilege('tidewheel_monitor', c.oid, 'DELETE, TRUNCATE') END
"""
# Payloads, results, checkpoints, messages and secrets are bytes.
BYTES_OF_MONITOR: LiteralString = """
SELECT c.relname, a.attname
  FROM pg_class AS c
  JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND a.atttypid IN ('bytea'::regtype, 'bytea[]'::regtype)
 WHERE c.relnamespace = 'public'::regnamespace AND has_column_privilege('tidewheel_monitor', c.oid, a.attnum, 'SELECT')
"""
CONTENT: tuple[LiteralString, ...] = (
    "SELECT payload FROM run_inputs",
    "SELECT error_message FROM attempts",
    "SELECT error_message FROM failed_runs",
    "SELECT spec FROM job_versions",
    "SELECT reason FROM dead_letters",
    "SELECT secret FROM message_keys",
    "SELECT tidewheel_enqueue('nightly')",
)
# An open run of these days.
OLD_RUN: LiteralString = """
INSERT INTO job_runs (run_id, job_id, tenant, shard, queue, lane, handler, cause, overlap, state, job_version,
                      scheduled_at, publish_at, created_at, started_at)
VALUES (gen_random_uuid(), gen_random_uuid(), 'default', 0, 'default', 'standard', 'noop', 'trigger', 'skip', 'running',
        1, now(), now(), %s::date::timestamp AT TIME ZONE 'UTC',
        (%s::date + 1)::timestamp AT TIME ZONE 'UTC' - interval '1 us')
"""


def test_rights_are_those_that_the_statements_need(shared_database: Database) -> None:
    """The statements are those of the modules that a service imports; an application needs some."""
    with shared_database.transaction() as connection:
        tenants = tables_with_a_tenant(connection)
        needed = {service: rights_of(connection, service) for service in SERVICES}
    for table in tenants:
        needed["scheduler"][table] |= set("rd")
    wrong: list[str] = []
    for table in sorted({*RIGHTS, *(table for rights in needed.values() for table in rights)}):
        derived = {service: written(needed[service].get(table, ())) for service in SERVICES}
        declared = {service: RIGHTS.get(table, {}).get(service, "") for service in SERVICES}
        derived["application"] = written(set(declared["application"]) & needed["application"].get(table, set()))
        if derived != declared:
            right = ", ".join(f'"{service}": "{letters}"' for service, letters in derived.items() if letters)
            wrong.append(f'"{table}": {{{right}}},')
    assert not wrong, "write into RIGHTS of migrations/service_roles.py:\n" + "\n".join(wrong)
    assert list(RIGHTS) == sorted(RIGHTS)
    called = {service: functions_of(service) for service in SERVICES}
    assert not [(name, each) for name, services in FUNCTIONS.items() for each in services if name not in called[each]]


def test_roles_are_created_once_and_each_migration_restores_their_rights(
    fresh_database: Database, stack: LocalStack, tmp_path: Path
) -> None:
    given = role_passwords(fresh_database.url)
    for service in ("relay", "api"):
        (tmp_path / service).write_text(f"{given[service]}\n")
    logged = make_conninfo(fresh_database.url, options="-c log_statement=ddl -c scram_iterations=1")
    before = fresh_database.rows(GRANTS)
    for _ in range(2):
        done = tidewheel(logged, "migrate", "--roles", "--passwords", tmp_path)
        assert done.lines == ["granted the rights of the roles tidewheel_…"]
        assert fresh_database.rows(GRANTS) == before
    log = (stack.home / "logs" / "postgres.log").read_text(errors="replace")
    assert 'ALTER ROLE "tidewheel_relay" LOGIN PASSWORD \'SCRAM-SHA-256$' in log
    assert not [service for service in given if given[service] in log], "a password is in the log of statements"
    fresh_database.execute("GRANT DELETE ON api_keys TO tidewheel_relay; REVOKE SELECT ON outbox FROM tidewheel_relay")
    assert migrate(fresh_database.url) == []
    assert fresh_database.value("SELECT has_table_privilege('tidewheel_relay', 'outbox', 'SELECT')") is True
    assert fresh_database.value("SELECT has_table_privilege('tidewheel_relay', 'api_keys', 'DELETE')"), (
        "a process of the release before may need the other"
    )
    assert migrate(fresh_database.url, post=True) == []
    assert fresh_database.rows(GRANTS) == before
    (tmp_path / "relais").write_text("secret")
    assert tidewheel(logged, "migrate", "--roles", "--passwords", tmp_path).refusals == [
        f"--passwords: relais is not a role; name the files {', '.join(ROLES)}"
    ]
    (tmp_path / "relais").rename(tmp_path / "intake").write_text("\n")
    [empty] = tidewheel(logged, "migrate", "--roles", "--passwords", tmp_path).refusals
    assert empty.startswith("--passwords: intake is empty")
    [alone] = tidewheel(logged, "migrate", "--passwords", tmp_path).refusals
    assert "add --roles" in alone
    for wrong in (
        ("--roles", "--passwords", tmp_path),
        ("--roles", "--passwords", tmp_path / "none"),
        ("--passwords", tmp_path),
    ):
        assert tidewheel(logged, "migrate", *wrong).code == ExitCode.REFUSED


def test_installation_has_roles_of_its_own_prefix(fresh_database: Database) -> None:
    """A second installation on the server: no role of the first one has rights in its database."""
    url = fresh_database.url
    with fresh_database.connection(autocommit=True) as connection:
        [(prefix,)] = connection.execute("SELECT 'shop_' || oid FROM pg_database WHERE datname = current_database()")
        assert isinstance(prefix, str)
        tenants, api = f"{prefix}_tenant", f"{prefix}_api"
        connection.execute("DROP OWNED BY tidewheel_scheduler, tidewheel_api")
        try:
            assert migrate(url, roles={}, role_prefix=prefix, tenant_role=tenants) == []
            found = connection.execute("SELECT rolname FROM pg_roles WHERE starts_with(rolname, %s)", [prefix])
            assert {name for (name,) in found} == {tenants, *(role_of(service, prefix) for service in ROLES)}
            own = make_conninfo(url, options=f"-c role={role_of('scheduler', prefix)}")
            today = day_of(fresh_database.now())
            with connect(own, "test", autocommit=True) as scheduler:
                require_current(scheduler)
                made = sql.Identifier(f"attempts_{today + 7 * DAY:%Y%m%d}")
                create_missing(scheduler, [today + 7 * DAY])
                scheduler.execute(sql.SQL("DELETE FROM {}").format(made))
            may = "SELECT has_table_privilege(%s, 'job_runs', 'SELECT')"
            assert [fresh_database.value(may, [role]) for role in (api, "tidewheel_api")] == [True, False]
            for post in (False, True):
                with pytest.raises(MigrationError, match=f"PREFIX is tidewheel, .* set it to {prefix}"):
                    migrate(url, post=post)
            with pytest.raises(MigrationError, match=r"TIDEWHEEL_ROLE_PREFIX: role name .* is reserved"):
                migrate(url, roles={}, role_prefix="pg")
            assert migrate(url, role_prefix=prefix, tenant_role=tenants, post=True) == []
        finally:
            connection.rollback()
            for name in (tenants, *(role_of(service, prefix) for service in ROLES)):
                connection.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(name)))


def test_user_that_may_not_create_roles_is_told_the_statements(fresh_database: Database) -> None:
    """A user that owns the tables, as members of their owner do, and is no superuser."""
    with fresh_database.connection(autocommit=True) as connection:
        [(few,)] = connection.execute("SELECT 'few_' || oid FROM pg_database WHERE datname = current_database()")
        role = sql.Identifier(str(few))
        connection.execute(sql.SQL("CREATE ROLE {} IN ROLE tidewheel").format(role))
        try:
            as_few = make_conninfo(fresh_database.url, options=f"-c role={few}")
            with pytest.raises(MigrationError, match="as a superuser: CREATE ROLE tidewheel_scheduler NOLOGIN"):
                migrate(as_few, roles={"relay": "sesame"})
            assert migrate(as_few) == []
        finally:
            connection.execute(sql.SQL("DROP ROLE {}").format(role))


def test_role_does_what_its_service_does_and_nothing_else(database: Database) -> None:
    for service in SERVICES:
        with connect(database.url_of(service), "test") as connection:
            if service != "application":
                require_current(connection)
            for refused in (
                SECRETS.get(service, "SELECT secret_hash FROM api_keys"),
                "DROP TABLE finished_runs",
                "ALTER TABLE jobs DISABLE ROW LEVEL SECURITY",
                "CREATE TABLE mine (id int)",
                "TRUNCATE outbox",
                "UPDATE tidewheel_migrations SET checksum = ''",
                "SELECT tidewheel_drop_day('attempts', '2020-01-01')" if service != "scheduler" else "DROP TABLE jobs",
            ):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute(refused)
                connection.rollback()
    with Client(database.url_of("api")) as client:
        client.submit({"key": "by-api", "schedule": "manual", "target": "send-email"})
        assert client.runs.get(client.trigger("by-api")).state == "queued"


def test_monitor_reads_what_status_and_doctor_read(fresh_database: Database) -> None:
    with Client(fresh_database.url) as client:
        client.submit({"key": "nightly", "schedule": "manual", "target": "send-email"})
        client.trigger("nightly")
    urls = as_role(fresh_database.url, "monitor"), fresh_database.url
    of_monitor, of_owner = (json.loads(tidewheel(url, "status", "-o", "json").out) for url in urls)
    assert of_monitor["problems"] == of_owner["problems"] != []
    checks = [check for check in CHECKS if check.name not in {"broker", "topics"}]
    mine, owners = (
        run_checks(checks, Context(Connections.load(database_url=SecretStr(url)), Limits())) for url in urls
    )
    assert mine.skipped == ("isolation", "signatures")
    assert {each.what for each in mine.findings} == {
        each.what for each in owners.findings if each.check not in mine.skipped
    }
    with connect(urls[0], "test") as connection, fresh_database.connection():
        seen = connection.execute("SELECT query FROM pg_stat_activity WHERE usename <> current_user").fetchall()
        assert seen, "an exporter sees the sessions of others"
        assert ("<insufficient privilege>",) not in seen


def test_monitor_writes_nothing_and_reads_no_content(database: Database) -> None:
    assert database.rows(WRITABLE_BY_MONITOR) == []
    assert database.rows(BYTES_OF_MONITOR) == []
    with connect(as_role(database.url, "monitor"), "test") as connection:
        for refused in CONTENT:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(refused)
            connection.rollback()


def test_days_are_created_and_dropped_by_a_role_that_owns_none(fresh_database: Database) -> None:
    today = day_of(fresh_database.now())
    scheduler = connect(fresh_database.url_of("scheduler"), "test", autocommit=True)
    with scheduler:
        # Names are looked up in the schema of the tables, never in what the caller has created.
        scheduler.execute("CREATE TEMP TABLE attempts (id int); CREATE TEMP TABLE settings (name text)")
        for day in (today - 20 * DAY, today - 2 * DAY, today + 8 * DAY):
            with pytest.raises(psycopg.errors.InvalidParameterValue, match="no open run was created or started on it"):
                create_missing(scheduler, [day])
        fresh_database.execute(OLD_RUN, [today - 20 * DAY, today - 21 * DAY])
        create_missing(scheduler, [today - 20 * DAY, today - 21 * DAY, today + 7 * DAY])
        scheduler.execute("DROP TABLE attempts, settings")
        old = [each for each in stored_days(fresh_database.connection()) if each.day < today - DAY]
        assert len(old) == 8
        reading = fresh_database.connection()
        reading.execute("SELECT count(*) FROM attempts")
        [held] = [each for each in old if each[:2] == ("attempts", today - 20 * DAY)]
        with pytest.raises(psycopg.errors.LockNotAvailable):
            drop_day(scheduler, held)
        reading.rollback()
        for stored in old:
            drop_day(scheduler, stored)
        assert {each.day for each in stored_days(fresh_database.connection())}.isdisjoint({each.day for each in old})
        for table, day in (("attempts", today), ("jobs", today - DAY), ("pg_class", today - DAY)):
            with pytest.raises(psycopg.errors.InvalidParameterValue):
                drop_day(scheduler, StoredDay(table, day, attached=True, pending=False))


_CHECKED = {"database", "schema", "isolation"}


def test_every_table_with_a_tenant_has_the_policy(shared_database: Database) -> None:
    with shared_database.transaction() as connection:
        assert unsecured_tables(connection, created_names()) == []
        assert role_problem(connection, TENANT_ROLE) is None


def test_migrate_secures_a_table_whose_row_security_was_disabled(fresh_database: Database) -> None:
    fresh_database.execute("ALTER TABLE jobs DISABLE ROW LEVEL SECURITY")
    fresh_database.execute("DROP POLICY of_tenant ON calendars")
    with fresh_database.transaction() as connection:
        assert unsecured_tables(connection, created_names()) == ["calendars", "jobs"]
    assert migrate(fresh_database.url) == []
    with fresh_database.transaction() as connection:
        assert unsecured_tables(connection, created_names()) == []


def test_user_that_sees_no_row_is_refused_at_start_and_by_doctor(fresh_database: Database) -> None:
    """Another user than the owner, with all rights of tables but without ownership."""
    with fresh_database.connection(autocommit=True) as connection:
        [(name,)] = connection.execute("SELECT 'guest_' || oid FROM pg_database WHERE datname = current_database()")
        guest = sql.Identifier(str(name))
        connection.execute(sql.SQL("CREATE ROLE {}").format(guest))
        connection.execute(sql.SQL("GRANT ALL ON ALL TABLES IN SCHEMA public TO {}").format(guest))
        try:
            as_guest = make_conninfo(fresh_database.url, options=f"-c role={name}")
            with connect(as_guest, "test") as guests, pytest.raises(MigrationError, match="does not own the tables"):
                require_current(guests)
            settings = Connections.load(database_url=SecretStr(as_guest))
            found = run_checks([each for each in CHECKS if each.name in _CHECKED], Context(settings, Limits())).findings
            [hidden] = [each for each in found if each.what == "services see no row of any tenant"]
            assert "OWNER TO" in hidden.remedy
        finally:
            connection.execute(sql.SQL("DROP OWNED BY {}").format(guest))
            connection.execute(sql.SQL("DROP ROLE {}").format(guest))


def test_role_that_another_session_creates_is_waited_for(
    fresh_database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tidewheel.migrations")
    name = fresh_database.value("SELECT 'tenants_' || oid FROM pg_database WHERE datname = current_database()")
    role = sql.Identifier(name)
    with closing(fresh_database.connection()) as creating:
        creating.execute(sql.SQL("CREATE ROLE {}").format(role))
        running = in_background(lambda: migrate(fresh_database.url, tenant_role=name))
        until(lambda: "waiting for a lock, then trying again" in caplog.text, "the migration has given up once")
        creating.rollback()
        assert running.result(30) == []
    with fresh_database.connection(autocommit=True) as connection:
        try:
            assert role_problem(connection, name) is None
            assert "no session can act" not in caplog.text
        finally:
            connection.execute(sql.SQL("DROP OWNED BY {}").format(role))
            connection.execute(sql.SQL("DROP ROLE {}").format(role))
