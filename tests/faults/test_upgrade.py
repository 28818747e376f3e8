"""A loaded installation of each release is upgraded to this tree, rolled back and upgraded again.

The release, built from its commit, runs beside the tree: the same Python, with its package first on the path. Nothing
is lost or doubled, and every occurrence fires. The output has the longest pause of firing and the longest wait for a
lock.
"""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from http import HTTPStatus
from itertools import pairwise
from pathlib import Path
from typing import LiteralString

import httpx
import pytest

from tests.faults.workload import DOOMED, Held, Workload, now
from tests.fixtures.database import Database
from tests.fixtures.oracle import Oracle
from tests.fixtures.releases import RELEASES, Release, build
from tests.fixtures.services import LONG_LEASE, Asked, Fleet, Role, Service, make_fleet
from tests.strict_types import ROOT
from tidewheel.control.client.client import Client
from tidewheel.control.occurrence_audit.result import run_audit
from tidewheel.distribution import release_version
from tidewheel.errors import MigrationError
from tidewheel.local.daemon import free_port
from tidewheel.local.stack import StackInfo
from tidewheel.migrations import runner
from tidewheel.migrations.runner import Migration, migrate
from tidewheel.postgres.statements import trusted
from tidewheel.runs import RunState

pytestmark = [pytest.mark.postgres, pytest.mark.kafka, pytest.mark.slow]

SERVES = " serves "  # of an executor: it is a member of its groups
COMMAND = "from tidewheel.control.cli.main import main; main()"
# A client of the release: one trigger through the database, and one as an Avro message of its own schema.
CLIENT = """
import json, sys
from datetime import UTC, datetime
from tidewheel import Client
fields = {"request_id": sys.argv[1], "key": "errand", "payload": b'"by Avro"'}
try:
    from tidewheel.schemas.codec import encode_fields
    request = encode_fields("Request", {"type": "job_trigger", **fields})
except ImportError:  # of a release that had a class for it
    from tidewheel.schemas.codec import encode
    from tidewheel.schemas.generated.records import Request, RequestType
    request = encode(Request(type=RequestType.JOB_TRIGGER, **fields))
with Client() as client:
    run_id = client.trigger("errand", "of a client")
print(json.dumps({"run_id": str(run_id), "request": request.hex()}))
"""
PROCESSES: tuple[Role, ...] = ("executor", "executor", "relay", "scheduler", "intake", "api")
LONGEST_PAUSE = timedelta(seconds=12)  # a replaced scheduler's share waits for MEMBER_TIMEOUT; beyond is a busy machine
LONGEST_LOCK_WAIT = timedelta(seconds=5)  # a migration waits 200 ms for a lock; the rest is its work, on a busy machine
LOCK_WAITS: LiteralString = """
SELECT coalesce(max(clock_timestamp() - l.waitstart), interval '0')
  FROM pg_locks AS l
  JOIN pg_stat_activity AS a USING (pid)
 WHERE NOT l.granted AND l.locktype = 'relation' AND a.datname = current_database()
"""


# Beside the tree's own migrations, so that each hot table is altered at every time.
HOT = ("job_runs", "active_runs", "timers", "outbox", "finished_runs", "attempts", "jobs", "executors")


def probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the runner have a file that alters each hot table, an index, and a file `_post`."""
    real = runner.migrations
    adds = "".join(f"ALTER TABLE {table} ADD COLUMN probe int;\n" for table in HOT)
    drops = "".join(f"ALTER TABLE {table} DROP COLUMN probe;\n" for table in HOT)
    index = "-- outside a transaction\nCREATE INDEX CONCURRENTLY IF NOT EXISTS probe ON job_runs (probe);\n"
    files = {"9000_columns": adds, "9001_index": index, "9002_columns_post": drops}
    more = [Migration(int(name[:4]), f"{name}.sql", trusted(text)) for name, text in files.items()]
    monkeypatch.setattr(runner, "migrations", lambda: (*real(), *more))


@pytest.fixture(params=RELEASES, ids=lambda release: release.version)
def release(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package of a release."""
    released: Release = request.param
    return build(released, tmp_path_factory.mktemp("release"))


def run(release: Path, environment: Mapping[str, str], code: str, *arguments: str) -> str:
    """Run code of a release in a process of its own; return its output."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**environment, "PYTHONPATH": f"{release}{os.pathsep}{ROOT}"},
        cwd=release.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def fleet(empty_database: Database, release: Path, info: StackInfo, tmp_path: Path) -> Iterator[Fleet]:
    """The services of a test, on a database that the release has migrated."""
    environment = {**os.environ, "TIDEWHEEL_DATABASE_URL": empty_database.url}
    assert release.name in run(release, environment, COMMAND, "--version")
    run(release, environment, COMMAND, "migrate", "--roles")
    made = make_fleet(empty_database, info.kafka, tmp_path)
    try:
        yield made
    finally:
        made.close()


class Installation:
    """The services under load, each of the release or of the tree."""

    def __init__(self, fleet: Fleet, oracle: Oracle, release: Path) -> None:
        self.fleet, self.oracle, self.release = fleet, oracle, release
        self.work = Workload(fleet, oracle)
        self.held: list[Held] = []  # runs that outlive every replacement
        self._port = free_port()
        with Client(fleet.database.url) as client:
            self._key = client.api_keys.create("upgrade", ["read", "write"]).key
        self.running = [self.start(role, release) for role in PROCESSES]
        self.wait(lambda: all(map(serves, self.running)), "every service serves")
        self._last = now()

    def start(self, role: Role, release: Path | None) -> Service:
        more = {"LEASE": LONG_LEASE, "DRAIN_TIMEOUT": "PT1S"} if role == "executor" else {}
        if role == "api":
            more = {"API_PORT": str(self._port), "API_TOKEN": "of-executors-alone"}
        return self.fleet.start(role, release=release, **more)

    def wait(self, condition: Callable[[], object], what: str) -> None:
        """Wait for a condition, under load."""
        self.fleet.until(condition, what)

    def goes_on(self) -> bool:
        """Trigger more when it is time to; always true, for use in a condition."""
        if now() - self._last > timedelta(milliseconds=200):
            self._last = now()
            self.work.trigger("errand", 1)
            self.work.trigger("shaky", 1)
            self.work.trigger("root", 1)
        return True

    def replace(self, release: Path | None, order: list[int]) -> None:
        """Replace one process after another by one of a release, and look after each that all work together."""
        for place in order:
            old = self.running[place]
            old.ask_to_stop()
            if old.role == "api":
                self.wait(lambda: self.goes_on() and not old.alive, "the API's port is free")  # noqa: B023
            new = self.running[place] = self.start(old.role, release)
            self.wait(lambda: self.goes_on() and not old.alive and serves(new), f"{old.role} is replaced")  # noqa: B023
            old.wait_stopped()
            since = now()
            self.work.trigger("shaky", 1)
            self.work.trigger("root", 1)
            self.work.wait_recovered_but(self.held, since)

    def call(self, *folders: Path) -> None:
        """Trigger by the API, and by the client and the Avro messages of each of these releases."""
        url = f"http://127.0.0.1:{self._port}/api/v1/jobs/errand:trigger"
        headers = {"Authorization": f"Bearer {self._key}"}
        answer = httpx.post(url, json={"payload": "by REST"}, headers=headers, timeout=30, trust_env=False)
        assert answer.status_code == HTTPStatus.CREATED, answer.text
        self.fleet.promised.add(answer.json()["run_id"])
        for folder in folders:
            request_id = f"r-{len(self.fleet.asked)}"
            done = json.loads(run(folder, self.fleet.environment("api"), CLIENT, request_id))
            self.fleet.promised.add(done["run_id"])
            self.fleet.asked[request_id] = Asked({"type": "job.trigger", "key": "errand", "payload": "by Avro"}, now())
            self.fleet.produce(self.fleet.topics.requests, b"errand", bytes.fromhex(done["request"]))
        self.fleet.flush()


def serves(service: Service) -> bool:
    return service.has_logged(SERVES) if service.role == "executor" else service.started


@contextmanager
def watched(database: Database) -> Generator[list[timedelta]]:
    """Collect the longest waits for locks of tables, looking every few milliseconds."""
    waits: list[timedelta] = []
    stop = threading.Event()
    connection = database.connection(autocommit=True)

    def look() -> None:
        while not stop.wait(0.005):
            [(longest,)] = connection.execute(LOCK_WAITS).fetchall()
            assert isinstance(longest, timedelta)
            waits.append(longest)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield waits
    finally:
        stop.set()
        thread.join()


def versions(database: Database) -> set[str]:
    """The releases of the processes that are there."""
    return {str(version) for (version,) in database.rows("SELECT version FROM processes")}


def longest_pause(oracle: Oracle, first: datetime, last: datetime) -> timedelta:
    """Return the longest time without an effect of a job that fires every second."""
    at = [first, *(e.at for e in oracle.effects() if e.job_key == "tock" and first < e.at < last), last]
    return max(later - earlier for earlier, later in pairwise(at))


def test_loaded_installation_is_upgraded_rolled_back_and_upgraded_again(
    fleet: Fleet,
    oracle: Oracle,
    release: Path,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    database, begun_at = fleet.database, now()
    site = Installation(fleet, oracle, release)
    work = site.work
    fleet.ask({"type": "job.submit", "job": {"key": "root", "schedule": "manual", "target": "note"}})
    oracle.wait_answered()
    fleet.ask({"type": "job.submit", "job": {"key": "leaf", "schedule": {"after": ["root"]}, "target": "note"}})
    work.submit()
    oracle.wait_answered()
    site.held = [work.hold("gated"), work.hold("gated-sync")]
    for each in site.held:
        each.wait_begun(1)
    assert versions(database) == {release.name}
    site.call(release)  # those of the tree come after its migrations, which store its schemas for older readers
    phases: list[tuple[str, datetime]] = [("before", now())]

    probe(monkeypatch)
    with watched(database) as waits:
        applied = migrate(database.url)
        site.call(release, ROOT)
        work.trigger("shaky", 3)
        work.wait_recovered_but(site.held, now())
    phases.append(("migrate", now()))

    site.replace(None, [0, 2, 3, 1, 4, 5])  # an executor, the relay, the scheduler, the other executor, intake, API
    assert versions(database) == {release_version()}
    site.call(release, ROOT)
    phases.append(("forward", now()))

    site.replace(release, [5, 4, 3, 2, 1, 0])
    assert versions(database) == {release.name}
    site.call(release, ROOT)
    phases.append(("back", now()))
    with pytest.raises(MigrationError, match=f"others run: .*executor {re.escape(release.name)} on"):
        migrate(database.url, post=True)

    site.replace(None, [4, 3, 5, 2, 1, 0])
    site.call(release, ROOT)
    with watched(database) as more_waits:
        applied += migrate(database.url, post=True)
    waits += more_waits
    work.wait_recovered_but(site.held, now())
    phases.append(("forward again", now()))

    for each in site.held:
        each.let_go()
    work.finish()
    leaves = {str(run_id) for (run_id,) in database.rows("SELECT run_id FROM runs WHERE cause = 'workflow'")}
    assert len(leaves) == sum(asked.document.get("key") == "root" for asked in fleet.asked.values())
    fleet.promised |= leaves
    fleet.stop()
    findings = oracle.check(failures=DOOMED)
    outcomes = {str(o) for (o,) in database.rows("SELECT DISTINCT outcome FROM ended_attempts")}
    assert outcomes <= {"succeeded", "failed", "released"}, "an attempt was lost"
    pauses = {name: longest_pause(oracle, at, until) for (_, at), (name, until) in pairwise(phases)}
    audit = run_audit(database.url, begun_at, None, tenant=None, key=None, report=None)
    assert audit.passed, audit.findings
    figures = {
        "applied": applied,
        "runs": findings.runs,
        "repeated effects": findings.repeated_effects,
        "longest pause of firing [s]": {name: round(pause.total_seconds(), 2) for name, pause in pauses.items()},
        "longest wait for a table's lock [s]": round(max(waits).total_seconds(), 3),
        "seconds": round((now() - begun_at).total_seconds()),
    }
    record_property("upgrade", figures)
    print(f"\nupgrade from {release.name}: {json.dumps(figures)}")  # noqa: T201 - with -s
    assert max(pauses.values()) < LONGEST_PAUSE, figures
    assert max(waits) < LONGEST_LOCK_WAIT, figures


def test_key_with_the_scope_execute_opens_nothing_of_the_release_before(fleet: Fleet, release: Path) -> None:
    migrate(fleet.database.url)
    with Client(fleet.database.url) as client:
        keys = {scope: client.api_keys.create(scope, [scope]).key for scope in ("read", "execute")}
    port = free_port()
    api = fleet.start("api", release=release, API_PORT=str(port), API_TOKEN="of-executors-alone")
    fleet.until(lambda: serves(api), "the API of the release serves")

    def opened(method: str, path: str, scope: str) -> bool:
        headers, url = {"Authorization": f"Bearer {keys[scope]}"}, f"http://127.0.0.1:{port}/api/v1/{path}"
        answer = httpx.request(method, url, json={}, headers=headers, timeout=30, trust_env=False)
        return answer.status_code not in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}

    assert opened("GET", "jobs", "read")
    for method, path in (("GET", "jobs"), ("POST", "jobs"), ("GET", "keys"), ("POST", "executors")):
        assert not opened(method, path, "execute"), path


def test_what_only_this_tree_has_outlasts_the_way_back(fleet: Fleet, release: Path) -> None:
    """The release's services leave a kind of work that they do not know, and run jobs with unknown fields."""
    database = fleet.database

    def replace(other: Path | None) -> None:
        stop()
        started = [fleet.start(role, release=other) for role in ("executor", "relay", "scheduler", "intake")]
        fleet.until(lambda: all(map(serves, started)), "every service serves")

    def stop() -> None:
        running = [service for service in fleet.services if service.alive]
        for service in running:
            service.ask_to_stop()
        for service in running:
            service.wait_stopped()

    with Client(database.url) as client:

        def succeeded(key: str) -> int:
            return len(client.runs.list(key=key, status="succeeded", limit=200).runs)

        def runs_go_on() -> None:
            before = succeeded("chain")
            fleet.until(lambda: succeeded("chain") > before + 1, "the job with bounds fires")
            assert client.runs.wait(client.trigger("errand")).state == RunState.SUCCEEDED

        migrate(database.url)
        replace(release)
        client.submit({"key": "doomed", "schedule": "manual", "target": "lost-cause", "retry": {"max_attempts": 1}})
        client.submit({"key": "errand", "schedule": "manual", "target": "note"})
        assert client.runs.wait(client.trigger("doomed")).state == RunState.FAILED

        replace(None)
        client.tenants.limit("default", timezone="Europe/Berlin")
        client.submit({"key": "yearly", "schedule": {"cron": "0 0 1 1 *"}, "target": "note"})
        client.submit({"key": "chain", "schedule": {"fixed_delay": "1s", "max": "1h"}, "target": "note"})
        runs_go_on()

        stop()
        work_id = client.runs.retry_failed(key="doomed").work_id
        assert work_id is not None
        replace(release)
        runs_go_on()
        assert client.works.get(work_id).state == "running"

        replace(None)
        assert client.works.wait(work_id).state == "finished"
        retried = client.runs.list(key="doomed", cause="retry").runs
        assert [client.runs.wait(run.run_id).state for run in retried] == [RunState.FAILED]
        assert client.jobs.get("yearly").job["schedule"] == {"cron": ["0 0 1 1 *"], "timezone": "Europe/Berlin"}
        runs_go_on()
