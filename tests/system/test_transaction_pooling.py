"""API, clients and `enqueue` behind a pooler that shares the sessions of the server."""

# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# asyncpg has no types.

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from typing import Any, LiteralString
from uuid import UUID

import asyncpg
import httpx
import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.control.api.answering import answering
from tests.control.cli.command import tidewheel
from tests.fixtures.database import Database
from tests.fixtures.pgbouncer import pgbouncer
from tests.fixtures.roles import as_role
from tests.fixtures.services import Fleet, until
from tidewheel import AsyncClient, Client, enqueue, enqueue_async
from tidewheel.api_keys import Scope
from tidewheel.clock import monotonic_seconds
from tidewheel.control.cli.exit_codes import ExitCode
from tidewheel.control.doctor.check import Context
from tidewheel.control.doctor.database import check_database
from tidewheel.errors import SettingsError, Unavailable
from tidewheel.migrations.runner import migrate
from tidewheel.postgres.partitions import day_of
from tidewheel.postgres.session import POOLED_BY_TRANSACTION, Session, connect_configured
from tidewheel.settings.connections import Connections
from tidewheel.settings.services import ApiSettings
from tidewheel.transitions.installation import record_topic_prefix

pytestmark = pytest.mark.postgres

TENANTS = ("acme", "globex", "initech")
CLIENTS = 3 * len(TENANTS)
SESSIONS = 2  # of the server
ROUNDS = 10  # of each client
LOADING, LOADED = 40, 4  # clients, and sessions of the server, under load
LOAD_SECONDS = 5.0
SETTINGS = ("tidewheel.tenant", "role", "statement_timeout", "lock_timeout", "search_path", "enable_seqscan", "jit")
JOB = {"schedule": "manual", "target": "note"}

_OF_POOLER: LiteralString = """
SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'tidewheel-client'
"""
_OF_RATES: LiteralString = """
SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'tidewheel-rates'
"""
_SQL_ENQUEUE: LiteralString = "SELECT tidewheel_enqueue('call', to_jsonb(%s::integer))"


@pytest.fixture
def pooled(database: Database) -> Iterator[str]:
    create_tenants(database)
    database.within(record_topic_prefix, Connections.load())
    for tenant in TENANTS:
        with Client(database.url, tenant=tenant) as client:
            client.submit({"key": tenant, **JOB})
    with pgbouncer(database.url, "transaction", sessions=SESSIONS) as url:
        yield url


def create_tenants(database: Database) -> dict[str, str]:
    """Create the tenants; return an API key of each."""
    keys: dict[str, str] = {}
    for tenant in TENANTS:
        with Client(database.url) as client:
            client.tenants.create(tenant)
        with Client(database.url, tenant=tenant) as client:
            keys[tenant] = client.api_keys.create(tenant, [Scope.READ, Scope.WRITE]).key
    return keys


def tenant_of(number: int) -> str:
    return TENANTS[number % len(TENANTS)]


def at_once(work: Callable[[int], set[UUID]]) -> set[UUID]:
    """Do the work of all clients at once; return all their runs."""
    with ThreadPoolExecutor(CLIENTS) as threads:
        return set[UUID]().union(*threads.map(work, range(CLIENTS)))


def settings_of_sessions(url: str, count: int = SESSIONS) -> list[list[str | None]]:
    """Return the settings of all sessions of a pooler: so many transactions at once have them all."""
    columns = sql.SQL(", ").join(sql.SQL("current_setting({}, true)").format(name) for name in SETTINGS)
    statement = sql.SQL("SELECT pg_backend_pid(), {}").format(columns)
    with ExitStack() as undo:
        connections = [undo.enter_context(psycopg.connect(url)) for _ in range(count)]
        rows = [connection.execute(statement).fetchall()[0] for connection in connections]
    assert len({row[0] for row in rows}) == count
    return [[value or None for value in row[1:]] for row in rows]


@pytest.mark.landing
def test_clients_of_several_tenants_on_a_few_sessions_see_their_own_alone(database: Database, pooled: str) -> None:
    before = settings_of_sessions(pooled)

    def work(number: int) -> set[UUID]:
        tenant, triggered = tenant_of(number), set[UUID]()
        with Client(pooled, tenant=tenant) as client:
            for each in range(ROUNDS):
                triggered.add(client.trigger(tenant, each))
                assert {run.key for run in client.runs.list().runs} == {tenant}
                assert [job.key for job in client.jobs.list().jobs] == [tenant]
        return triggered

    triggered = at_once(work)
    assert len(triggered) == CLIENTS * ROUNDS
    assert {run.run_id for run in database.job_runs()} == triggered
    assert settings_of_sessions(pooled) == before


@pytest.mark.slow
def test_forty_async_clients_on_four_sessions_lose_and_double_nothing(database: Database) -> None:
    create_tenants(database)
    for tenant in TENANTS:
        with Client(database.url, tenant=tenant) as client:
            client.submit({"key": tenant, **JOB})
    ends_at = monotonic_seconds() + LOAD_SECONDS

    async def work(number: int, url: str) -> set[UUID]:
        tenant, triggered = tenant_of(number), set[UUID]()
        async with AsyncClient(url, tenant=tenant) as client:
            while monotonic_seconds() < ends_at:
                triggered.add(await client.trigger(tenant, len(triggered)))
                page, jobs = await asyncio.gather(client.runs.list(), client.jobs.list())
                assert {run.key for run in page.runs} == {tenant} == {job.key for job in jobs.jobs}
        return triggered

    async def load(url: str) -> list[set[UUID]]:
        return await asyncio.gather(*(work(number, url) for number in range(LOADING)))

    with pgbouncer(database.url, "transaction", sessions=LOADED) as pooled:
        before = settings_of_sessions(pooled, LOADED)
        triggered = asyncio.run(load(pooled))
        assert settings_of_sessions(pooled, LOADED) == before
    assert all(triggered)
    print(f"{sum(map(len, triggered))} triggers of {LOADING} clients in {LOAD_SECONDS} s")  # noqa: T201 - for docs
    by_tenant = {
        tenant: sum(len(each) for number, each in enumerate(triggered) if tenant_of(number) == tenant)
        for tenant in TENANTS
    }
    assert dict(database.rows("SELECT tenant, count(*) FROM job_runs GROUP BY 1")) == by_tenant
    assert {run.run_id for run in database.job_runs()} == set[UUID]().union(*triggered)


@pytest.mark.landing
def test_api_of_several_tenants_on_a_few_sessions_shows_each_its_own(database: Database) -> None:
    keys = create_tenants(database)
    with (
        pgbouncer(database.url, "transaction", sessions=SESSIONS) as pooled,
        answering(replace(database, url=pooled)) as http,
    ):

        def work(number: int) -> set[UUID]:
            tenant, triggered = tenant_of(number), set[UUID]()
            headers = {"Authorization": f"Bearer {keys[tenant]}"}
            job = f"{tenant}-{number}"
            answers = [http.put(f"/api/v1/jobs/{job}", json=JOB, headers=headers)]
            for each in range(ROUNDS):
                trigger = {"payload": {"n": each}}
                answers.append(http.post(f"/api/v1/jobs/{job}:trigger", json=trigger, headers=headers))
                triggered.add(UUID(answers[-1].json()["run_id"]))
                answers.append(http.get("/api/v1/runs", headers=headers))
                assert {run["key"].partition("-")[0] for run in answers[-1].json()["runs"]} == {tenant}
            assert all(answer.is_success for answer in answers)
            return triggered

        triggered = at_once(work)
        assert {run.run_id for run in database.job_runs()} == triggered
        assert settings_of_sessions(pooled) == settings_of_sessions(database.url)


def test_each_transaction_has_the_settings_of_a_session(pooled: str) -> None:
    url = make_conninfo(pooled, options='-c work_mem=7MB -c search_path="$user",\\ public')
    wanted = {
        "synchronous_commit": "on", "statement_timeout": "30s", "TimeZone": "UTC", "lock_timeout": "123ms",
        "work_mem": "7MB", "search_path": '"$user", public',
    }  # fmt: skip
    for _ in range(2 * SESSIONS):
        session = Session(url, "test", options="-c lock_timeout=123ms", pooled=True)
        for _ in range(7):  # psycopg would prepare the sixth
            with session.transaction() as connection:
                found = {name: connection.execute("SELECT current_setting(%s)", [name]).fetchone() for name in wanted}
            assert found == {name: (value,) for name, value in wanted.items()}
        session.close()


def test_client_goes_on_after_the_sessions_of_the_server_have_ended(database: Database, pooled: str) -> None:
    """Each trigger is repeated with its request_id, as after any lost connection."""

    def accepted(client: Client, tenant: str, request_id: str) -> bool:
        try:
            client.trigger(tenant, request_id=request_id)
        except Unavailable:
            return False
        return True

    def work(number: int) -> set[UUID]:
        for each in range(ROUNDS):
            if each % 5 == 0:
                for (pid,) in database.rows(_OF_POOLER):
                    database.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
            until(lambda: accepted(clients[number], tenant_of(number), f"{number}/{each}"), "it is accepted")  # noqa: B023
        return set()

    with ExitStack() as undo:
        clients = [undo.enter_context(Client(pooled, tenant=tenant_of(number))) for number in range(CLIENTS)]
        at_once(work)
    by_tenant = "SELECT tenant, count(*) FROM job_runs GROUP BY 1 ORDER BY 1"
    assert database.rows(by_tenant) == [(tenant, CLIENTS // len(TENANTS) * ROUNDS) for tenant in TENANTS]


def committed_of(url: str, act: Callable[["psycopg.Connection[Any]", int], UUID]) -> set[UUID]:
    """Act in transactions of several connections at once, of which half roll back; return the committed."""

    def work(number: int) -> set[UUID]:
        committed = set[UUID]()
        with psycopg.connect(url, prepare_threshold=None) as own:
            for each in range(ROUNDS):
                made = act(own, number + each)
                if each % 2:
                    own.rollback()
                else:
                    own.commit()
                    committed.add(made)
        return committed

    return at_once(work)


def test_enqueue_commits_and_rolls_back_with_the_callers_rows(database: Database, pooled: str) -> None:
    def act(own: "psycopg.Connection[Any]", number: int) -> UUID:
        return enqueue(own, tenant_of(number), number, tenant=tenant_of(number))

    committed = committed_of(pooled, act)
    assert len(committed) == CLIENTS * ROUNDS // 2
    assert {run.run_id for run in database.job_runs()} == committed


def test_sql_function_commits_and_rolls_back_with_an_applications_rows(database: Database, pooled: str) -> None:
    database.submit("call")

    def act(own: "psycopg.Connection[Any]", number: int) -> UUID:
        [[request_id]] = own.execute(_SQL_ENQUEUE, [number]).fetchall()
        return UUID(request_id)

    committed = committed_of(as_role(pooled, "application"), act)
    assert {UUID(document["request_id"]) for document in database.own_requests()} == committed


def test_enqueue_takes_places_of_a_rate_and_creates_partitions_beside_the_caller(
    fresh_database: Database,
) -> None:
    database = fresh_database
    with Client(database.url) as client:
        client.tenants.limit("default", triggers_per_second=1000)
        client.submit({"key": "call", **JOB})
    with psycopg.connect(database.url) as own:
        enqueue(own, "call", 0)
    until(lambda: database.rows(_OF_RATES) == [], "the session beside the caller's is closed")
    with pgbouncer(database.url, "transaction", sessions=SESSIONS) as pooled:
        with psycopg.connect(pooled, prepare_threshold=None) as own:
            enqueue(own, "call", 1)
            own.commit()
            now = database.now()
            for day in {day_of(now), day_of(now + timedelta(minutes=5))}:
                database.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(f"run_inputs_{day:%Y%m%d}")))
            with pytest.raises(Unavailable, match="it exists now"):
                enqueue(own, "call", 2)
            own.rollback()
            enqueue(own, "call", 2)
        assert settings_of_sessions(pooled) == settings_of_sessions(database.url)
    assert database.count("job_runs") == 3


def test_enqueue_async_over_asyncpg(database: Database, pooled: str) -> None:
    parts = conninfo_to_dict(pooled)
    server: dict[str, Any] = {"host": parts["host"], "port": parts["port"], "database": parts["dbname"]}

    async def run() -> None:
        own: Any = await asyncpg.connect(
            **server, user=parts["user"], password=parts["password"], statement_cache_size=0
        )
        try:
            async with own.transaction():
                await enqueue_async(own, "acme", tenant="acme")
        finally:
            await own.close()

    asyncio.run(run())
    assert len(database.own_requests()) == 1


def test_audit_is_refused_since_its_lock_needs_a_session(database: Database, pooled: str) -> None:
    with Client(pooled) as client, pytest.raises(SettingsError, match="pool_mode = session"):
        client.audit(database.now())


def test_command_whose_locks_need_a_session_is_refused(database: Database, pooled: str) -> None:
    own = ("migrate", "migrate --dry-run", "migrate --roles", "admin secrets rotate task-tokens",
           "admin restore --dry-run")  # fmt: skip
    for command in own:
        done = tidewheel(replace(database, url=pooled), *command.split())
        assert done.code == ExitCode.FAILED, command
        assert POOLED_BY_TRANSACTION in " ".join(done.err.split()), command
    assert settings_of_sessions(pooled) == settings_of_sessions(database.url)


def test_forgetting_of_processes_is_refused_before_it_deletes_one(database: Database, pooled: str) -> None:
    database.execute(
        "INSERT INTO processes (process_id, role, host, pid, version, settings, sent_at, last_heartbeat_at, started_at)"
        " VALUES (gen_random_uuid(), 'relay', 'host-1', 7, '0.0.9', '{}', now(), now() - interval '1 hour', now())"
    )
    done = tidewheel(pooled, "migrate", "--post", "--forget-silent", "5m")
    assert (done.code, done.out) == (ExitCode.FAILED, "")
    assert POOLED_BY_TRANSACTION in " ".join(done.err.split())
    assert database.count("processes") == 1


def test_migrate_works_through_a_pooler_in_session_mode(empty_database: Database) -> None:
    with pgbouncer(empty_database.url, "session") as pooled:
        assert tidewheel(replace(empty_database, url=pooled), "migrate").code == ExitCode.DONE
    assert empty_database.count("jobs") == 0


@pytest.mark.landing
@pytest.mark.parametrize("schema", [None, "shop"])
def test_command_that_reads_once_finds_the_schema_and_leaves_nothing_in_a_session(
    empty_database: Database, monkeypatch: pytest.MonkeyPatch, schema: str | None
) -> None:
    if schema is not None:
        monkeypatch.setenv("TIDEWHEEL_DATABASE_SCHEMA", schema)
    migrate(Connections.load(database_url=empty_database.url).database(), tenant_role=None)
    with pgbouncer(empty_database.url, "transaction", sessions=SESSIONS) as pooled:
        for command in ("migrate --status", "status"):
            behind, direct = (tidewheel(url, *command.split()) for url in (pooled, empty_database.url))
            assert (behind.code, behind.err) == (direct.code, direct.err)
            assert behind.out.count("applied") == direct.out.count("applied")
        assert settings_of_sessions(pooled) == settings_of_sessions(empty_database.url)


def test_pooler_without_transactions_is_refused(database: Database) -> None:
    with (
        pgbouncer(database.url, "statement") as pooled,
        pytest.raises(SettingsError, match=r"refuses transactions.*set pool_mode = transaction or session"),
    ):
        connect_configured(pooled, "test", pooled=True)


def test_doctor_finds_the_pooler_unless_it_runs_in_the_api(pooled: str) -> None:
    for settings, finds in ((Connections, True), (ApiSettings, False)):
        found = check_database(Context(settings.load(database_url=pooled)))
        assert [each.what for each in found] == ([POOLED_BY_TRANSACTION] if finds else [])


@pytest.mark.kafka
@pytest.mark.slow
def test_api_and_clients_work_on_shared_sessions_beside_services_with_their_own(fleet: Fleet) -> None:
    direct = fleet.database.url
    keys = create_tenants(fleet.database)
    fleet.start_all()
    with pgbouncer(direct, "transaction", sessions=8) as pooled:
        api = fleet.start("api", API_PORT="0", DATABASE_URL=as_role(pooled, "api"))
        fleet.wait_started()
        assert api.has_logged("each transaction sets what it needs of a session")
        url = fleet.api_url(api)

        def work(number: int) -> set[UUID]:
            tenant, job = tenant_of(number), f"{tenant_of(number)}-{number}"
            headers = {"Authorization": f"Bearer {keys[tenant]}"}
            with httpx.Client(base_url=f"{url}/api/v1", headers=headers, trust_env=False, timeout=60) as http:
                assert http.put(f"/jobs/{job}", json=JOB).is_success
                for each in range(ROUNDS):
                    assert http.post(f"/jobs/{job}:trigger", json={"payload": {"n": each}}).is_success
            with Client(pooled, tenant=tenant) as client:
                run = client.runs.wait(client.trigger(job, {"n": ROUNDS}))
                assert run.state == "succeeded"
            return {run.run_id}

        assert len(at_once(work)) == CLIENTS
        fleet.until(fleet.settled, "all runs have ended")
        ended = "SELECT tenant, count(*) FROM finished_runs WHERE state = 'succeeded' GROUP BY 1 ORDER BY 1"
        each = CLIENTS // len(TENANTS) * (ROUNDS + 1)
        assert fleet.database.rows(ended) == [(tenant, each) for tenant in TENANTS]
        api.terminate()
