"""The primary is lost under load, or replaced while it lives, and its standby promoted.

Services follow to the standby. With a synchronous standby nothing is lost or doubled.
"""

import json
import os
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from threading import Thread

import psutil
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.control.test_doctor import examine
from tests.faults.own_server import fleet_on, own_server
from tests.faults.workload import ATTEMPTS, DOOMED, Workload, now
from tests.fixtures.database import Database
from tests.fixtures.oracle import Oracle
from tests.fixtures.services import LONG_LEASE, ROLES, Fleet, Role, until
from tidewheel.control.client.client import Client
from tidewheel.control.doctor.check import Limits
from tidewheel.control.occurrence_audit.result import run_audit
from tidewheel.control.reads.findings import Severity
from tidewheel.local.postgres import Postgres
from tidewheel.local.stack import LocalStack, StackInfo
from tidewheel.postgres.session import CommitUnknown, Session
from tidewheel.schemas.generated.records import Cause

pytestmark = [pytest.mark.postgres, pytest.mark.kafka, pytest.mark.slow]

_FIRED = "SELECT min(created_at) FROM runs WHERE cause = 'timer' AND created_at > %s"
_WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
_REPLAYED = "SELECT pg_last_wal_replay_lsn() >= pg_last_wal_receive_lsn()"
_TIMELINE_VARIABLE = "TIDEWHEEL_TEST_TIMELINE"  # names a file to which a test appends what it has measured


@pytest.fixture
def pair(info: StackInfo, tmp_path: Path) -> Iterator[LocalStack]:
    """A primary whose commits wait for a standby."""
    with own_server(info, tmp_path / "pair", standby=True) as made:
        yield made


@pytest.fixture
def fleet(pair: LocalStack, tmp_path: Path) -> Iterator[Fleet]:
    """Services on a database of that pair."""
    with fleet_on(pair, tmp_path) as made:
        yield made


def kill(server: Postgres) -> None:
    """Kill a server with all of its processes."""
    pid = server.pid
    assert pid is not None
    postmaster = psutil.Process(pid)
    for process in (postmaster, *postmaster.children()):
        with suppress(psutil.NoSuchProcess):
            process.kill()
    until(lambda: server.pid is None, "the server is gone")


def one(server: Postgres, url: str) -> str:
    """The address of a database on one server alone."""
    return make_conninfo(server.url, dbname=conninfo_to_dict(url)["dbname"])


def value(url: str, statement: str, *parameters: object) -> object:
    """Read one value from one server."""
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(statement.encode(), parameters).fetchone()
    return row[0] if row else None


def first_fire(fleet: Fleet, since: datetime) -> datetime:
    """Wait until a timer fires after this time."""
    fleet.until(lambda: fleet.database.value(_FIRED, [since]) is not None, "a timer fires")
    found = fleet.database.value(_FIRED, [since])
    assert isinstance(found, datetime)
    return found


def test_services_follow_a_promoted_standby(pair: LocalStack, fleet: Fleet, oracle: Oracle, work: Workload) -> None:
    work.submit()
    held = work.hold()
    fleet.start_all(LEASE=LONG_LEASE)
    held.wait_begun(1)
    work.wait_recovered_but([held], now())
    work.trigger("errand", 20)
    kill(pair.postgres)
    pair.standby.promote()
    promoted = now()
    work.wait_recovered_but([held], promoted)
    first_fire(fleet, promoted)
    held.let_go()
    work.finish()
    fleet.stop()
    oracle.check(failures=DOOMED, attempts=ATTEMPTS)


def test_services_leave_an_old_primary_that_lives(pair: LocalStack, fleet: Fleet, oracle: Oracle) -> None:
    old, new = pair.postgres, pair.standby
    work = Workload(fleet, oracle)
    work.submit()
    fleet.start_all(LEASE=LONG_LEASE)
    work.wait_recovered(now())
    new.promote()
    promoted = now()
    work.trigger("errand", 20)
    fleet.until(lambda: value(one(old, fleet.database.url), _WAITING), "commits on the old primary wait")
    work.wait_recovered(promoted)
    fired = first_fire(fleet, promoted)
    # Nothing that any process has seen is on the old primary: neither before its crash nor after.
    seen = "SELECT count(*) FROM runs WHERE created_at > %s"
    assert value(one(old, fleet.database.url), seen, promoted) == 0
    two = [each for each in examine(fleet.database) if each.check == "replication"]
    assert any(each.severity is Severity.ERROR and "two servers" in each.what for each in two), two
    old.stop("immediate")
    old.start()
    late = fleet.start("scheduler")  # its string names the old primary, which accepts writes again
    fleet.until(lambda: late.started, "a scheduler has started beside the old primary")
    work.wait_recovered(now())
    work.finish()
    fleet.stop()
    oracle.check(failures=DOOMED, attempts=ATTEMPTS)
    _record({"old primary lives": {"promotion to first fire": (fired - promoted).total_seconds()}})


def test_audit_finds_what_an_asynchronous_standby_lost(
    pair: LocalStack, fleet: Fleet, oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page on operations has a table of these effects."""
    begun = now()
    pair.postgres.replicate_to(None)
    work = Workload(fleet, oracle)
    work.submit()
    fleet.start_all(LEASE=LONG_LEASE)
    work.wait_recovered(now())
    with psycopg.connect(pair.standby.url, autocommit=True) as standby:
        standby.execute("ALTER SYSTEM SET primary_conninfo = ''")
        standby.execute("SELECT pg_reload_conf()")
    streams = "SELECT count(*) FROM pg_stat_replication"
    until(lambda: value(pair.postgres.url, streams) == 0, "the standby receives nothing more")
    cut, standby_url = now(), one(pair.standby, fleet.database.url)
    until(lambda: value(standby_url, _REPLAYED), "the standby has applied what it received")
    received = value(standby_url, "SELECT array_agg(run_id::text) FROM finished_runs")
    assert isinstance(received, list)
    with Client(fleet.database.url) as client:
        direct = str(client.trigger("errand", payload={"number": -1}))
    work.trigger("errand", 1)
    fleet.until(lambda: oracle.answered() and direct in oracle.completed(), "the direct trigger has completed")
    work.wait_recovered(cut)
    kill(pair.postgres)
    killed = now()
    pair.standby.promote()
    work.wait_recovered(now())
    work.finish()
    fleet.stop()
    oracle.reader.read_to_end()
    # Read last: runs end on the old primary until it is killed, and the relay publishes these ends later.
    ended = {each.run_id: each for each in oracle.completions() if each.finished_at < killed}
    before = {run: each for run, each in ended.items() if run not in received}
    database = fleet.database
    assert database.rows("SELECT FROM runs WHERE run_id = %s", [direct]) == []  # acknowledged, executed, lost
    unknown = {run for run in before if not database.rows("SELECT FROM runs WHERE run_id = %s", [run])}
    assert len(unknown) == 2  # the other came from Kafka: intake has read its request again, as a new run
    again = set(before) - unknown
    assert {before[run].cause for run in again} >= {Cause.TIMER}
    effects = Counter(effect.run_id for effect in oracle.effects())
    assert all(effects[run] == 2 for run in again if before[run].job_key == "tock")
    # Of the last minute before its snapshot the audit compares no ends, for these may be younger than it.
    monkeypatch.setattr("tidewheel.control.occurrence_audit.result._MARGIN", timedelta(0))
    assert run_audit(database.url, begun).passed  # the database agrees with itself
    checked = run_audit(database.url, begun, kafka=fleet.kafka)
    found = {each.finding.words.split()[1] for each in checked.findings}
    assert found == set(before)
    assert not checked.passed


def test_cancelled_wait_for_the_standby_is_no_commit(pair: LocalStack) -> None:
    """PostgreSQL reports such a COMMIT as done, with a warning; a fail-over may lose it."""
    url = pair.up().database_url
    with psycopg.connect(pair.postgres.url, autocommit=True) as control:
        control.execute("CREATE TABLE things (thing integer)")
        pair.standby.stop("immediate")
        cancel = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        session = Session(url, "test")

        def cancelled() -> bool:
            return control.execute(cancel).rowcount > 0

        other = Thread(target=lambda: until(cancelled, "a COMMIT waits and is cancelled"))
        other.start()
        with pytest.raises(CommitUnknown, match="standby was cancelled"), session.transaction() as connection:
            connection.execute("INSERT INTO things VALUES (1)")
        other.join()
        session.close()


@contextmanager
def receiver_stopped(standby: Postgres) -> Generator[None]:
    """Stop the process of a standby that receives WAL, and continue it afterwards."""
    assert standby.pid is not None
    children = psutil.Process(standby.pid).children()
    [receiver] = [each for each in children if "walreceiver" in " ".join(each.cmdline())]
    receiver.suspend()
    try:
        yield
    finally:
        receiver.resume()


def test_doctor_finds_what_a_fail_over_would_lose(pair: LocalStack, fleet: Fleet) -> None:
    limits = Limits()

    def found(database: Database = fleet.database) -> dict[str, Severity]:
        return {each.what: each.severity for each in examine(database, limits) if each.check == "replication"}

    def has(what: str, severity: Severity = Severity.WARNING) -> bool:
        return any(what in each and got is severity for each, got in found().items())

    assert found() == {}
    anywhere = make_conninfo(fleet.database.url, target_session_attrs="any")
    assert any("may connect to a standby" in each for each in found(Database(anywhere, fleet.database.installation)))
    with psycopg.connect(pair.postgres.url, autocommit=True) as control:
        control.execute("ALTER ROLE tidewheel SET synchronous_commit = 'local'")
        assert has("lose applications' commits")
        control.execute("ALTER ROLE tidewheel RESET synchronous_commit")
        pair.postgres.replicate_to(None)
        until(lambda: has("commits do not wait"), "the asynchronous standby is found")
        limits = Limits(standby_bytes=1 << 20)
        assert not has("is behind its primary")
        with receiver_stopped(pair.standby):
            control.execute("SELECT pg_logical_emit_message(true, 'test', repeat('x', 2 << 20))")
            assert has("is behind its primary")
        until(lambda: not has("is behind its primary"), "the standby has the rest")
        pair.postgres.replicate_to(pair.standby)
        pair.standby.stop("immediate")
        until(lambda: has("commits wait for a standby", Severity.ERROR), "the absent standby is found")
        assert has("does not answer")


def test_three_brokers_and_two_of_each_service_lose_a_broker_and_the_primary(tmp_path: Path) -> None:
    """The topology of a deployment, as local processes."""
    stack = LocalStack(tmp_path / "stack", brokers=3, standby=True)
    try:
        with fleet_on(stack, tmp_path) as fleet:
            oracle = Oracle(fleet)
            try:
                _lose_a_broker_and_the_primary(stack, fleet, oracle)
            finally:
                oracle.close()
    finally:
        stack.down(erase=True)


def _lose_a_broker_and_the_primary(stack: LocalStack, fleet: Fleet, oracle: Oracle) -> None:
    roles: tuple[Role, ...] = (*ROLES, "api")
    work = Workload(fleet, oracle)
    work.submit()
    for role in (*roles, *roles):
        fleet.start(role, LEASE=LONG_LEASE, **({"API_PORT": "0"} if role == "api" else {}))
    work.wait_recovered(now())
    work.trigger("errand", 200)
    stack.broker(2).kill()
    kill(stack.postgres)
    killed = now()
    stack.standby.promote()
    promoted = now()
    fired = first_fire(fleet, promoted)
    work.trigger("errand", 100)
    work.wait_recovered(promoted)
    recovered = now()
    work.finish()
    fleet.stop()
    found = oracle.check(failures=DOOMED)
    seconds = {
        "kill to promoted": (promoted - killed).total_seconds(),
        "kill to first fire": (fired - killed).total_seconds(),
        "kill to backlog gone": (recovered - killed).total_seconds(),
    }
    _record({"three brokers, two of each service": {**seconds, "runs": found.runs}})


def _record(measured: dict[str, object]) -> None:
    line = json.dumps(measured)
    if path := os.environ.get(_TIMELINE_VARIABLE):
        with Path(path).open("a") as file:
            file.write(f"{line}\n")
