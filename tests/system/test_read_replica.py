"""Lists and pages from a standby: the server that answers, one's own changes, fall-backs, refusals."""

import re
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path

import httpx
import psycopg
import pytest
from prometheus_client import REGISTRY
from psycopg.conninfo import make_conninfo

from tests.control.api.answering import ApiClient, answering
from tests.control.console.pages import HTML, posted, shown
from tests.control.console.seeded import seed
from tests.control.every_field import bring_into_every_state
from tests.control.test_every_view import Places, page_paths, route_paths
from tests.fixtures.database import ClockedDatabase, Database
from tests.fixtures.pgbouncer import pgbouncer
from tests.fixtures.replica import Pair, on, replicated
from tests.fixtures.services import until
from tidewheel.clock import monotonic_seconds
from tidewheel.control.doctor.check import Context, run_checks
from tidewheel.control.doctor.doctor import CHECKS
from tidewheel.control.reads.findings import Severity
from tidewheel.errors import SettingsError, Unavailable
from tidewheel.local.stack import StackInfo
from tidewheel.postgres.session import Session
from tidewheel.settings.connections import Connections

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

READ_FROM = "tidewheel-read-from"
REPLICA = "replica"
_OF_TABLES = re.compile(r"\b(FROM|JOIN)\s+(?!pg_|unnest|generate_series)[a-z_]+\b")
_WRITERS, _WRITES = 4, 40  # each trigger is read back twice
_AT_ONCE = 50  # triggers of a request of the load beside them


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with replicated(tmp_path_factory.mktemp("pair")) as made:
        yield made


@pytest.fixture
def database(pair: Pair) -> Iterator[ClockedDatabase]:
    with closing(pair.database()) as made:
        yield made


@pytest.fixture
def client(pair: Pair, database: ClockedDatabase) -> Iterator[ApiClient]:
    """An API that has used the replica."""
    database.submit()
    with answering(database, read_database_url=pair.replica_of(database)) as made:
        until(lambda: source(made) == REPLICA, "the replica is used")
        yield made


def source(client: httpx.Client, path: str = "/api/v1/runs") -> str:
    """Return the server that a list was read from."""
    answer = client.get(path)
    assert answer.status_code == HTTPStatus.OK, answer.text
    return answer.headers[READ_FROM]


def trigger(client: httpx.Client, key: str = "job") -> str:
    answer = client.post(f"/api/v1/jobs/{key}:trigger", json={})
    assert answer.status_code == HTTPStatus.CREATED, answer.text
    return str(answer.json()["run_id"])


def runs(client: httpx.Client, key: str = "job") -> tuple[list[str], str]:
    """Return the ids on the first page of a job's runs, and the server that they were read from."""
    answer = client.get(f"/api/v1/runs?job={key}&limit=1000")
    return [each["run_id"] for each in answer.json()["runs"]], answer.headers[READ_FROM]


def findings(pair: Pair, database: Database) -> list[tuple[Severity, str]]:
    settings = Connections.load(database_url=database.url, read_database_url=pair.replica_of(database))
    checks = [each for each in CHECKS if each.name in {"database", "schema", "replica"}]
    found = run_checks(checks, Context(settings)).findings
    return [(each.severity, each.what) for each in found if each.check == "replica"]


def test_every_list_and_every_page_is_read_from_the_replica(pair: Pair, database: ClockedDatabase) -> None:
    """A route that reads one thing by its key or its id, and a dialog of an action, reads the primary."""
    ids = seed(database)
    made = bring_into_every_state(database)
    with answering(database, read_database_url=pair.replica_of(database)) as client:
        places = Places(made, ids, client)
        until(lambda: source(client) == REPLICA, "the replica is used")
        wrong: list[object] = []
        tried = Counter[bool]()
        for route in places.routes():
            for path in [*route_paths(places, route)][:_TRIED]:
                answer, logged = look(pair, client, path)
                if answer.status_code == HTTPStatus.OK and route not in _OF_NO_TABLE:
                    wrong += misread(path, logged, on_replica=not route.endswith("}"), what=route)
                    tried[route.endswith("}")] += 1
        for page in page_paths(places):
            is_dialog = client.post(page, headers=HTML).status_code != HTTPStatus.METHOD_NOT_ALLOWED
            answer, logged = look(pair, client, page, HTML)
            if answer.status_code == HTTPStatus.OK:
                wrong += misread(page, logged, on_replica=not is_dialog, what="page")
                tried[is_dialog] += 1
        assert not wrong, "\n".join(map(str, wrong))
        assert min(tried.values()) > 50


_OF_NO_TABLE = {"/api/v1/doctor", "/api/v1/openapi.json", "/healthz", "/readyz"}
_TRIED = 8  # of the paths of a route, which has one for each run


def look(
    pair: Pair, client: httpx.Client, path: str, headers: Mapping[str, str] | None = None
) -> tuple[httpx.Response, Mapping[str, list[str]]]:
    with pair.logged() as logged:
        answer = client.get(path, headers=headers)
    return answer, logged


def misread(path: str, logged: Mapping[str, list[str]], *, on_replica: bool, what: str) -> list[object]:
    """Return the path if its rows are read from another server."""
    read = {name: [each for each in lines if _OF_TABLES.search(each)] for name, lines in logged.items()}
    right, other = ("standby", "primary") if on_replica else ("primary", "standby")
    return [] if read[right] and not read[other] else [(what, path, read[other][:2])]


def test_own_change_is_read_at_once_while_the_replica_does_not_replay(pair: Pair, client: ApiClient) -> None:
    pair.pause()
    try:
        run = trigger(client)
        found, server = runs(client)
        assert run in found
        assert server.startswith("primary; the replica is "), server
        posted(client, "/jobs/job/pause")
        page = shown(client, "/jobs/job")
        assert "Resume" in page
        assert "This page was read from the primary" in page
        assert run in shown(client, "/runs?job=job")
        until(lambda: "not used" in shown(client, "/fleet"), "the fleet shows that the replica is behind")
        until(lambda: (REGISTRY.get_sample_value("tidewheel_replica_lag_bytes") or 0) > 0, "the lag is a metric")
        assert [severity for severity, _ in findings(pair, client.database)] == [Severity.WARNING]
    finally:
        pair.resume()
    until(lambda: source(client) == REPLICA, "the replica is used again")
    assert run in runs(client)[0]
    assert "This page was read from the primary" not in shown(client, "/jobs/job")
    assert findings(pair, client.database) == []
    until(lambda: REGISTRY.get_sample_value("tidewheel_replica_lag_bytes") == 0, "a look has found no lag")
    assert "has all" in shown(client, "/fleet")


def test_replica_that_is_cut_off_from_the_primary_does_not_look_fresh(pair: Pair, client: ApiClient) -> None:
    with pair.cut_off():
        run = trigger(client)
        found, server = runs(client)
        assert (run in found, server.partition(";")[0]) == (True, "primary")
    until(lambda: source(client) == REPLICA, "the replica is used again")


def test_replica_that_stops_or_freezes_is_replaced_by_the_primary(pair: Pair, client: ApiClient) -> None:
    with pair.frozen():
        began = monotonic_seconds()
        with ThreadPoolExecutor(8) as threads:
            reads = [threads.submit(source, client) for _ in range(8)]
            servers = [each.result() for each in reads]
        assert {each.partition(";")[0] for each in servers} == {"primary"}
        assert monotonic_seconds() - began < 12  # as long as a look, and the opening of a connection
        until(lambda: source(client) == "primary; the replica does not answer", "a look has found it")
        began = monotonic_seconds()
        source(client)
        assert monotonic_seconds() - began < 1
    until(lambda: source(client) == REPLICA, "the replica is used again")
    pair.standby.stop("immediate")
    assert source(client).partition(";")[0] == "primary"
    assert "This page was read from the primary" in shown(client, "/")
    assert [severity for severity, _ in findings(pair, client.database)] == [Severity.WARNING]
    pair.standby.start()
    until(lambda: source(client) == REPLICA, "the replica is used again")


class Reading:
    """Work of a read that notes why each try has no replica."""

    def __init__(self, on_replica: Callable[[Session], str]) -> None:
        self._on_replica, self.tries = on_replica, list[str]()

    def __call__(self, session: Session | None, problem: str) -> str:
        self.tries.append(problem)
        return problem if session is None else self._on_replica(session)


FAILED = "could not finish the read"


@contextmanager
def impatient_replay(pair: Pair) -> Generator[None]:
    """Let the replay wait for 100 ms only, and as long as before afterwards."""
    with psycopg.connect(pair.standby.url, autocommit=True) as control:
        try:
            control.execute("ALTER SYSTEM SET max_standby_streaming_delay = '100ms'")
            control.execute("SELECT pg_reload_conf()")
            yield
        finally:
            control.execute("ALTER SYSTEM RESET max_standby_streaming_delay")
            control.execute("SELECT pg_reload_conf()")


def test_read_that_the_replay_cancels_is_repeated_on_the_primary(pair: Pair, database: ClockedDatabase) -> None:
    def on_replica(session: Session) -> str:
        with session.transaction() as connection:
            connection.execute("SELECT FROM gone")
            database.execute("DROP TABLE gone")
            connection.execute("SELECT pg_sleep(30)")
        return "the replay waits"

    database.execute("CREATE TABLE gone (thing integer)")
    work = Reading(on_replica)
    with impatient_replay(pair), pair.reading(database) as reader:
        assert reader.read(work) == FAILED
    assert work.tries == ["", FAILED]


@pytest.mark.parametrize("swallows", [False, True])
def test_read_whose_connection_is_lost_is_repeated_on_the_primary(
    pair: Pair, database: ClockedDatabase, *, swallows: bool
) -> None:
    """No second connection is opened: it may lead to another standby, or to the same one after a crash."""
    processes = list[object]()

    def on_replica(session: Session) -> str:
        with session.transaction() as connection:
            [(process,)] = connection.execute("SELECT pg_backend_pid()").fetchall()
        with psycopg.connect(pair.standby.url, autocommit=True) as control:
            control.execute("SELECT pg_terminate_backend(%s, 10000)", [process])
        for _ in range(2):
            with suppress(Unavailable if swallows else LookupError), session.transaction() as connection:
                processes.append(connection.execute("SELECT pg_backend_pid()").fetchone())
        return "read on two connections"

    work = Reading(on_replica)
    with pair.reading(database) as reader:
        assert reader.read(work) == FAILED
        assert (work.tries, processes) == (["", FAILED], [])
        assert reader.read(lambda _, problem: problem) == ""


@pytest.mark.parametrize("inside", [False, True])
def test_error_of_another_server_is_not_the_replicas(pair: Pair, database: ClockedDatabase, *, inside: bool) -> None:
    def on_replica(session: Session) -> str:
        with session.transaction() as connection:
            connection.execute("SELECT")
            if inside:
                raise Unavailable("the archive does not answer")
        raise Unavailable("the archive does not answer")

    work = Reading(on_replica)
    with pair.reading(database) as reader:
        with pytest.raises(Unavailable, match="archive"):
            reader.read(work)
        assert work.tries == [""]
        assert reader.read(lambda _, problem: problem) == ""


def test_primary_that_freezes_ends_no_read_on_the_replica(pair: Pair, database: ClockedDatabase) -> None:
    def on_replica(session: Session) -> str:
        with session.transaction() as connection, pair.frozen(pair.primary):
            connection.execute("SELECT pg_sleep(6)")
        return "read on the replica"

    with pair.reading(database) as reader:
        assert reader.read(Reading(on_replica)) == "read on the replica"


def test_comparison_that_fails_unexpectedly_ends_neither_thread_nor_reads(
    pair: Pair, database: ClockedDatabase
) -> None:
    """A function of the database takes the place of the server's, and names no segment."""
    primary = make_conninfo(database.url, options="-c search_path=public,pg_catalog")
    with pair.looking(primary, pair.replica_of(database)) as replica:
        database.execute(
            "CREATE FUNCTION public.pg_walfile_name(pg_lsn) RETURNS text LANGUAGE sql AS $$ SELECT 'nothing' $$"
        )
        until(lambda: replica.state.problem == "cannot be compared with the primary", "a look has failed")
        database.execute("DROP FUNCTION public.pg_walfile_name(pg_lsn)")
        until(lambda: not replica.state.problem, "the replica is used again")


def test_no_client_misses_its_own_change_under_load(pair: Pair, database: ClockedDatabase) -> None:
    servers, missed = Counter[str](), list[str]()

    def write(number: int) -> None:
        key = f"job-{number}"
        for _ in range(_WRITES):
            run = trigger(client, key)
            found, server = runs(client, key)
            servers[server.partition(";")[0]] += 1
            missed.extend([] if run in found else [f"{run} in the list, from {server}"])
            missed.extend([] if run in shown(client, f"/runs?job={key}") else [f"{run} on the page"])

    def load() -> None:
        runs = [{"ref": f"run-{number}", "key": "load"} for number in range(_AT_ONCE)]
        while not ended.is_set():
            assert client.post("/api/v1/batches", json={"runs": runs}).status_code == HTTPStatus.CREATED

    ended = threading.Event()
    for key in ("load", *(f"job-{number}" for number in range(_WRITERS))):
        database.submit(key)
    with answering(database, read_database_url=pair.replica_of(database), api_key_rate=1e6) as client:
        until(lambda: source(client) == REPLICA, "the replica is used")
        began = monotonic_seconds()
        with ThreadPoolExecutor(_WRITERS + 1) as threads:
            loading = threads.submit(load)
            try:
                for each in [threads.submit(write, number) for number in range(_WRITERS)]:
                    each.result()
            finally:
                ended.set()
            loading.result()
        seconds = monotonic_seconds() - began
        written = database.count("job_runs")
    print(f"{written / seconds:.0f} triggers/s for {seconds:.1f} s, lists from {dict(servers)}")  # noqa: T201
    assert not missed
    assert servers[REPLICA] > servers["primary"], servers


def test_server_that_is_no_copy_is_refused_at_the_start(pair: Pair, database: ClockedDatabase, info: StackInfo) -> None:
    refused = pytest.raises(SettingsError, match=r"TIDEWHEEL_READ_DATABASE_URL.*another cluster, database or schema")
    with closing(pair.database()) as other:
        until(lambda: can_connect(pair.replica_of(other)), "the other database is on the standby")
        for url in (info.database_url, pair.standby.url, pair.replica_of(other)):
            with refused, answering(database, read_database_url=url):
                pass


def can_connect(url: str) -> bool:
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return False
    return True


def test_url_of_the_primary_itself_reads_the_primary(database: ClockedDatabase) -> None:
    database.submit()
    with answering(database, read_database_url=database.url) as client:
        assert source(client) == "primary; the replica accepts writes and is no standby"


def test_permanent_fault_of_the_replica_is_named(pair: Pair, database: ClockedDatabase) -> None:
    database.submit()
    database.execute("CREATE ROLE visitor LOGIN PASSWORD 'secret'")
    until(lambda: pair.on_standby("SELECT to_regrole('visitor') IS NOT NULL"), "the role is on the standby")
    visitor = make_conninfo(pair.replica_of(database), user="visitor", password="secret")
    for url, problem in (
        (visitor, "is read as another role than the primary"),
        (make_conninfo(visitor, password="wrong"), "refuses the connection"),
        (make_conninfo(visitor, dbname="nowhere"), "refuses the connection"),
    ):
        with answering(database, read_database_url=url) as client:
            assert source(client) == f"primary; the replica {problem}"


def test_standby_that_is_promoted_is_not_read(tmp_path: Path) -> None:
    with replicated(tmp_path) as pair, closing(pair.database()) as database:
        database.submit()
        with answering(database, read_database_url=pair.replica_of(database)) as client:
            until(lambda: source(client) == REPLICA, "the replica is used")
            pair.standby.promote()
            assert source(client).startswith("primary; the replica "), "no read after the promotion"
            run = trigger(client)
            assert run in runs(client)[0]
            until(lambda: "accepts writes" in source(client), "a look has found it")
        with pair.another() as left_behind:  # by the promotion: it goes on with the old primary, at a higher position
            until(lambda: can_connect(on(left_behind, database)), "the standby has the database")
            promoted = replace(database, url=pair.replica_of(database))
            with answering(promoted, read_database_url=on(left_behind, database)) as client:
                assert source(client) == "primary; the replica has not stored the timeline of the primary"


def test_replica_is_read_through_a_pooler_that_shares_sessions(pair: Pair, database: ClockedDatabase) -> None:
    database.submit()
    until(lambda: can_connect(pair.replica_of(database)), "the database is on the standby")
    with (
        pgbouncer(pair.replica_of(database), "transaction", sessions=2) as url,
        answering(database, read_database_url=url) as client,
    ):
        until(lambda: source(client) == REPLICA, "the replica is used")
        run = trigger(client)
        assert run in runs(client)[0]
        until(lambda: source(client) == REPLICA, "the replica is used")
