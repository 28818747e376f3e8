"""Two installations in one database, one of them in a schema of its own."""

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import LiteralString
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tests.control.cli.command import process, tidewheel
from tests.fixtures.database import Database
from tests.fixtures.services import make_fleet
from tidewheel import Client, cancel, enqueue, status
from tidewheel.control.client.enqueue import own_settings
from tidewheel.errors import MigrationError, SettingsError, Unavailable, UnknownJob
from tidewheel.local.stack import StackInfo
from tidewheel.migrations.runner import migrate
from tidewheel.settings.connections import Connections
from tidewheel.transitions.installation import read_installation, record_topic_prefix

pytestmark = pytest.mark.postgres

SCHEMA = "shop"
RUNS = 400
JOBS = {"beat": {"interval": "1s"}, "call": "manual"}

_ENDED: LiteralString = """
SELECT j.key, count(*) FROM finished_runs AS f JOIN jobs AS j USING (job_id)
 WHERE f.state = 'succeeded' GROUP BY j.key ORDER BY j.key
"""


@dataclass
class OwnersDatabase(Database):
    """A database in which every service is the owner of the tables."""

    plain: str = ""

    def url_of(self, service: str) -> str:
        del service
        return self.plain or self.url


def own_url(url: str, schema: str = SCHEMA) -> str:
    return Connections.load(database_url=url, database_schema=schema).database()


@pytest.fixture
def shop(fresh_database: Database) -> Iterator[OwnersDatabase]:
    """The database as an installation in the schema sees it, beside one in `public`."""
    url = own_url(fresh_database.url)
    migrate(url, tenant_role="shop_tenant")
    database = OwnersDatabase(url, fresh_database.installation, plain=fresh_database.url)
    yield database
    database.close()


@pytest.mark.kafka
@pytest.mark.slow
def test_two_installations_under_load_share_nothing(
    fresh_database: Database, shop: OwnersDatabase, info: StackInfo, tmp_path: Path
) -> None:
    """Their services have one role, so no right keeps them apart."""
    beside = OwnersDatabase(fresh_database.url, fresh_database.installation)
    first = make_fleet(beside, info.kafka, tmp_path)
    (tmp_path / SCHEMA).mkdir()
    second = make_fleet(shop, info.kafka, tmp_path / SCHEMA)
    with closing(beside), closing(first), closing(second):
        # Polls longer than the test: what happens in time was notified.
        unpolled = {"SCHEDULER_POLL": "PT2M", "RELAY_POLL": "PT2M"}
        first.start_all(**unpolled)
        second.start_all(**unpolled, DATABASE_SCHEMA=SCHEMA)
        for fleet in (first, second):
            fleet.wait_started()
            for key, schedule in JOBS.items():
                fleet.ask({"type": "job.submit", "job": {"key": key, "schedule": schedule, "target": "note"}})
            for number in range(RUNS if fleet is first else RUNS // 2):
                fleet.ask({"type": "job.trigger", "key": "call", "payload": {"n": number}}, key="call")
            fleet.flush()
        for fleet, runs in ((first, RUNS), (second, RUNS // 2)):
            database = fleet.database
            fleet.until(lambda: dict(database.rows(_ENDED)).get("call") == runs, "all triggered runs have ended")  # noqa: B023
            fleet.until(lambda: dict(database.rows(_ENDED)).get("beat", 0) >= 3, "the job fires")  # noqa: B023
        assert dict(first.database.rows(_ENDED))["call"] == RUNS
        assert dict(second.database.rows(_ENDED))["call"] == RUNS // 2


def test_calls_in_own_transactions_find_the_schema_and_restore_the_search_path(
    shop: OwnersDatabase, fresh_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEWHEEL_DATABASE_SCHEMA", SCHEMA)
    monkeypatch.setenv("TIDEWHEEL_DATABASE_URL", fresh_database.url)
    own_settings.cache_clear()
    with Client() as client:
        client.submit({"key": "call", "schedule": "manual", "target": "note"})
    with psycopg.connect(fresh_database.url) as own:
        own.execute("CREATE TABLE jobs_of_mine (run_id uuid)")
        own.execute("SET LOCAL search_path = public, pg_temp")
        run_id = enqueue(own, "call", {"n": 1}, delay=timedelta(hours=1))
        own.execute("INSERT INTO jobs_of_mine VALUES (%s)", [run_id])
        assert own.execute("SHOW search_path").fetchone() == ("public, pg_temp",)
        assert status(own, run_id).run_id == run_id
        cancel(own, run_id)
        with pytest.raises(UnknownJob), own.transaction():
            enqueue(own, "unknown")
        assert own.execute("SHOW search_path").fetchone() == ("public, pg_temp",)
    own_settings.cache_clear()
    assert [run.run_id for run in shop.job_runs()] == [run_id]
    assert shop.count("pending_cancels") == 1
    assert (fresh_database.count("job_runs"), fresh_database.count("pending_cancels")) == (0, 0)


def test_missing_partitions_are_created_where_no_installation_is_in_public(
    shop: OwnersDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = psycopg.connect(shop.plain, autocommit=True)
    with closing(plain):
        plain.execute("ALTER SCHEMA public RENAME TO aside; CREATE SCHEMA public")
        monkeypatch.setenv("TIDEWHEEL_DATABASE_SCHEMA", SCHEMA)
        monkeypatch.setenv("TIDEWHEEL_DATABASE_URL", shop.plain)
        own_settings.cache_clear()
        with Client() as client:
            client.submit({"key": "call", "schedule": "manual", "target": "note"})
        [(today,)] = shop.rows("SELECT to_char(tidewheel_now() AT TIME ZONE 'UTC', 'YYYYMMDD')")
        shop.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(f"run_inputs_{today}")))
        with psycopg.connect(shop.plain) as own, pytest.raises(Unavailable, match="it exists now"):
            enqueue(own, "call", {"n": 1})
        with psycopg.connect(shop.plain) as own:
            enqueue(own, "call", {"n": 1})
    own_settings.cache_clear()
    assert shop.count("run_inputs") == 1


def test_installation_with_the_topics_of_its_neighbour_does_not_start(
    fresh_database: Database, shop: OwnersDatabase
) -> None:
    """Each of the two would take requests of the other one."""
    first, second, other = (Connections.load(topic_prefix=prefix) for prefix in ("shared", "shared", "own"))
    fresh_database.within(record_topic_prefix, first)
    with pytest.raises(SettingsError, match=r"schema 'public'.*TIDEWHEEL_TOPIC_PREFIX"):
        shop.within(record_topic_prefix, second)
    shop.within(record_topic_prefix, other)
    shop.within(record_topic_prefix, second)
    assert shop.within(read_installation, Connections.load()).topics.prefix == "own"


def test_migrate_names_the_remedy_where_the_role_may_create_no_schema(fresh_database: Database) -> None:
    role, password = "shop_owner", "secret"
    statement = sql.SQL("DROP ROLE IF EXISTS {role}; CREATE ROLE {role} LOGIN PASSWORD {password}")
    fresh_database.execute(statement.format(role=sql.Identifier(role), password=sql.Literal(password)))
    url = own_url(make_conninfo(fresh_database.url, user=role, password=password))
    with pytest.raises(MigrationError, match=f"CREATE SCHEMA {SCHEMA} AUTHORIZATION {role}"):
        migrate(url)
    fresh_database.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))


@pytest.mark.landing
@pytest.mark.process
def test_commands_that_name_a_home_find_the_schema_there(info: StackInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    schema, home = f"s{uuid4().hex[:10]}", str(info.data_dir)
    migrate(own_url(info.database_url, schema), tenant_role=None)
    monkeypatch.setenv("TIDEWHEEL_DATABASE_SCHEMA", schema)
    try:
        [path] = process("admin", "psql", "--home", home, "-X", "-Atc", "SHOW search_path").out.splitlines()
        assert path == schema
        status = process("status", "--home", home, "-o", "json")
        assert json.loads(status.out)["unknown"] is None, status
    finally:
        with psycopg.connect(info.database_url, autocommit=True) as owner:
            owner.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(schema)))


def test_command_before_migrate_names_it(fresh_database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEWHEEL_DATABASE_SCHEMA", SCHEMA)
    done = tidewheel(fresh_database, "job", "list")
    assert done.code != 0
    assert "run `tidewheel migrate`" in done.err
