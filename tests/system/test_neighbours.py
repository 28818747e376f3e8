"""Two installations in one database, each with a schema and database roles of its own."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import LiteralString
from uuid import UUID, uuid4

import httpx
import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.fixtures.database import Database
from tests.fixtures.pgbouncer import pgbouncer
from tests.fixtures.roles import as_role
from tests.fixtures.services import ROLES as ROLES_OF_SERVICES
from tests.fixtures.services import Fleet, make_fleet, until
from tests.system.test_own_schema import own_url
from tidewheel import Client
from tidewheel.api_keys import Scope
from tidewheel.local.stack import StackInfo
from tidewheel.migrations.runner import migrate
from tidewheel.migrations.service_roles import ROLES, role_of
from tidewheel.postgres.held_lock import find_lock_holders
from tidewheel.postgres.session import connect
from tidewheel.postgres.statements import Statements

pytestmark = pytest.mark.postgres

CALLERS = 4  # of the API, and of the client, for each installation
EACH = 50  # triggers of a caller
JOBS = {"beat": {"interval": "1s"}, "call": "manual"}

_ENDED: LiteralString = """
SELECT j.key, count(*) FROM finished_runs AS f JOIN jobs AS j USING (job_id)
 WHERE f.state = 'succeeded' GROUP BY j.key ORDER BY j.key
"""
# As an executor claims: the key is that of 0.1, which all installations of a database share.
_CLAIM: LiteralString = """
WITH locked AS (DELETE FROM claims_lock WHERE false)
SELECT pg_try_advisory_xact_lock_shared(hashtext('tidewheel.claims'))
"""
_WAITS: LiteralString = "SELECT EXISTS (SELECT FROM pg_locks WHERE pid = %s AND NOT granted)"
_LOCK_WAITS = Statements("tidewheel.scheduler")["measure_lock_waits"]


@dataclass
class Shop(Database):
    """An installation in a schema; its roles have the schema's name as their prefix."""

    name: str = ""
    address: str = ""
    passwords: dict[str, str] = field(default_factory=dict[str, str])

    def url_of(self, service: str) -> str:
        return make_conninfo(self.address, user=role_of(service, self.name), password=self.passwords[service])


@pytest.fixture
def shop(fresh_database: Database) -> Iterator[Shop]:
    """An installation beside the one in `public`; roles are those of the server, and are gone afterwards."""
    name, passwords = f"s{uuid4().hex[:10]}", {service: token_hex(16) for service in ROLES}
    url = own_url(fresh_database.url, name)
    migrate(url, roles=passwords, role_prefix=name, tenant_role=f"{name}_tenant")
    shop = Shop(url, fresh_database.installation, name=name, address=fresh_database.url, passwords=passwords)
    yield shop
    shop.close()
    names = sql.SQL(", ").join(sql.Identifier(role_of(service, name)) for service in (*ROLES, "tenant"))
    with psycopg.connect(fresh_database.url, autocommit=True) as owner:
        owner.execute(sql.SQL("DROP OWNED BY {}").format(names))
        owner.execute(sql.SQL("DROP ROLE {}").format(names))


def test_role_of_one_installation_has_no_right_in_the_other(fresh_database: Database, shop: Shop) -> None:
    reads = sql.SQL("SELECT FROM {}.jobs")
    for url, schema in ((shop.url_of("executor"), "public"), (fresh_database.url_of("executor"), shop.name)):
        with psycopg.connect(url) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(reads.format(sql.Identifier(schema)))


def test_claim_of_a_neighbour_is_no_strangers(fresh_database: Database, shop: Shop) -> None:
    with connect(own_url(shop.url_of("executor"), shop.name), "tidewheel-executor") as claiming:
        claiming.execute(_CLAIM)
        assert fresh_database.within(find_lock_holders) == []
        claiming.rollback()
    with psycopg.connect(as_role(fresh_database.url, "monitor")) as stranger:
        stranger.execute("SELECT pg_try_advisory_xact_lock_shared(hashtext('tidewheel.claims'))")
        assert len(fresh_database.within(find_lock_holders)) == 1


def test_wait_of_a_neighbour_for_a_lock_is_not_counted(fresh_database: Database, shop: Shop) -> None:
    for database in (fresh_database, shop):
        with Client(database.url) as client:
            client.submit({"key": "call", "schedule": "manual", "target": "note"})
    with (
        closing(connect(own_url(shop.url_of("scheduler"), shop.name), "tidewheel-scheduler")) as waiting,
        ThreadPoolExecutor(1) as thread,
        closing(shop.connection()) as holding,
    ):
        holding.execute("SELECT FROM jobs FOR UPDATE")
        waited = thread.submit(waiting.execute, "SELECT FROM jobs FOR UPDATE")
        until(lambda: shop.value(_WAITS, [waiting.info.backend_pid]), "it waits")
        counted = [database.rows(_LOCK_WAITS)[0][0] for database in (fresh_database, shop)]
        holding.rollback()
        waited.result()
    assert counted == [0, 1]


def trigger(database: Database, api_url: str, client_url: str) -> set[UUID]:
    """Trigger runs by the API and by clients at once; return them."""
    with Client(database.url) as client:
        key = client.api_keys.create("load", [Scope.READ, Scope.WRITE]).key

    def by_api(number: int) -> set[UUID]:
        headers = {"Authorization": f"Bearer {key}"}
        with httpx.Client(base_url=f"{api_url}/api/v1", headers=headers, trust_env=False, timeout=60) as http:
            answers = [http.post("/jobs/call:trigger", json={"payload": {"n": number}}) for _ in range(EACH)]
        assert all(answer.is_success for answer in answers)
        return {UUID(answer.json()["run_id"]) for answer in answers}

    def by_client(number: int) -> set[UUID]:
        with Client(client_url) as client:
            return {client.trigger("call", {"n": number}) for _ in range(EACH)}

    with ThreadPoolExecutor(2 * CALLERS) as threads:
        made = [threads.submit(act, number) for number in range(CALLERS) for act in (by_api, by_client)]
        return set[UUID]().union(*(each.result() for each in made))


@pytest.mark.kafka
@pytest.mark.slow
def test_neighbours_behind_poolers_share_nothing_under_load(
    fresh_database: Database, shop: Shop, info: StackInfo, tmp_path: Path
) -> None:
    """Services in session mode, APIs and clients in transaction mode on a few sessions."""
    users = {role_of(service, shop.name): password for service, password in shop.passwords.items()}
    (tmp_path / shop.name).mkdir()
    with (
        pgbouncer(fresh_database.url, "session", passwords=users) as in_sessions,
        pgbouncer(fresh_database.url, "transaction", sessions=4, passwords=users) as shared,
        closing(make_fleet(fresh_database, info.kafka, tmp_path)) as first,
        closing(make_fleet(shop, info.kafka, tmp_path / shop.name)) as second,
        ThreadPoolExecutor(2) as threads,
    ):
        api_urls = start(first, in_sessions, shared), start(second, in_sessions, shared, schema=shop.name)
        clients = (
            through(shared, fresh_database.url_of("api")),
            own_url(through(shared, shop.url_of("api")), shop.name),
        )
        triggered = [*threads.map(trigger, (fresh_database, shop), api_urls, clients)]
        for fleet, runs in zip((first, second), triggered, strict=True):
            assert len(runs) == 2 * CALLERS * EACH
            assert fresh_database.within(find_lock_holders) == []
            wait_ended(fleet, runs)


def start(fleet: Fleet, in_sessions: str, shared: str, *, schema: str | None = None) -> str:
    """Start the services with their own roles, and create the jobs; return the address of the API."""
    own = {} if schema is None else {"DATABASE_SCHEMA": schema, "ROLE_PREFIX": schema}
    for role in ROLES_OF_SERVICES:
        fleet.start(role, **own, DATABASE_URL=through(in_sessions, fleet.database.url_of(role)))
    api = fleet.start("api", **own, API_PORT="0", DATABASE_URL=through(shared, fleet.database.url_of("api")))
    fleet.wait_started()
    for key, schedule in JOBS.items():
        fleet.ask({"type": "job.submit", "job": {"key": key, "schedule": schedule, "target": "note"}})
    fleet.flush()
    fleet.until(lambda: fleet.database.count("jobs") == len(JOBS), "the jobs are there")
    return fleet.api_url(api)


def through(pooled: str, url: str) -> str:
    """Return the URL of a role through a pooler."""
    parts = conninfo_to_dict(url)
    return make_conninfo(pooled, user=parts["user"], password=parts["password"])


def wait_ended(fleet: Fleet, runs: set[UUID]) -> None:
    """Wait until these runs, and some of the interval, have succeeded; there are no others."""
    database = fleet.database

    def ended() -> dict[str, int]:
        return dict(database.rows(_ENDED))

    fleet.until(lambda: ended().get("call") == len(runs) and ended().get("beat", 0) >= 3, "all runs have ended")
    of_calls: LiteralString = "SELECT run_id FROM finished_runs JOIN jobs USING (job_id) WHERE key = 'call'"
    assert {run_id for (run_id,) in database.rows(of_calls)} == runs
