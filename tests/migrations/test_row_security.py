"""Row-level security of the tables, and the role as which sessions act for a tenant."""

import logging
from contextlib import closing

import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from pydantic import SecretStr

from tests.fixtures.database import Database
from tests.fixtures.services import until
from tests.transitions.stepping import in_background
from tidewheel.control.doctor.check import Context, Limits, run_checks
from tidewheel.control.doctor.doctor import CHECKS
from tidewheel.errors import MigrationError
from tidewheel.migrations.row_security import TENANT_ROLE, role_problem, unsecured_tables
from tidewheel.migrations.runner import created_names, migrate, require_current
from tidewheel.postgres.session import connect
from tidewheel.settings.connections import Connections

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
        until(lambda: "waits for a lock; it is tried again" in caplog.text, "the migration has given up once")
        creating.rollback()
        assert running.result(30) == []
    with fresh_database.connection(autocommit=True) as connection:
        try:
            assert role_problem(connection, name) is None
            assert "no session can act" not in caplog.text
        finally:
            connection.execute(sql.SQL("DROP OWNED BY {}").format(role))
            connection.execute(sql.SQL("DROP ROLE {}").format(role))
