"""Services start, work and end while PostgreSQL or the broker is away.

They wait, log one line, and end when requested. Without the broker they execute runs. These tests have servers of
their own.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from psycopg.conninfo import make_conninfo

from tests.faults.own_server import fleet_on, own_stack, serves
from tests.faults.workload import DOOMED, Workload, now
from tests.fixtures.oracle import Oracle
from tests.fixtures.services import ROLES, Fleet, Role, Service, until
from tidewheel.clock import monotonic_seconds
from tidewheel.control.client.client import Client
from tidewheel.local.stack import LocalStack

pytestmark = [pytest.mark.postgres, pytest.mark.kafka, pytest.mark.slow]

ALL_ROLES: tuple[Role, ...] = (*ROLES, "api")
NEEDS_KAFKA: tuple[Role, ...] = ("intake", "relay", "executor")
NO_PORT = {"METRICS_PORT": "0", "API_PORT": "0", "API_TOKEN": "token-of-this-test-only"}
_RECOVERED_SECONDS = 15.0  # two pauses of at most 2 s, PostgreSQL's and Kafka's, on a busy machine; others last 30 s
_STOP_SECONDS = 20.0  # services give up after 15 s


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    """A PostgreSQL and a broker of these tests' own."""
    with own_stack(tmp_path_factory.mktemp("servers")) as local:
        yield local


@pytest.fixture
def fleet(servers: LocalStack, tmp_path: Path) -> Iterator[Fleet]:
    """Services on those servers."""
    servers.up()
    with fleet_on(servers, tmp_path) as made:
        yield made
        servers.up()


def ready(service: Service) -> tuple[int, str]:
    """Return what /readyz answers; 0 before its port is known."""
    ports = {m[1] for line in service.log_lines() if (m := re.search(r"metrics on port (\d+)", str(line["message"])))}
    if len(ports) != 1:
        return 0, ""
    try:
        with urlopen(f"http://127.0.0.1:{ports.pop()}/readyz", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def complaints(service: Service) -> list[str]:
    """Return what it has logged as warning or worse."""
    return [str(line["message"]) for line in service.log_lines() if line["level"] in ("warning", "error", "critical")]


def assert_logged_once(service: Service) -> None:
    """Each error is one line, however often it repeats; a server that goes away gives two at most."""
    until(lambda: complaints(service), "it has logged why it waits")  # later than /readyz answers it
    lines = complaints(service)
    assert 1 <= len(lines) == len(set(lines)) <= 2
    assert all("this process tries again until it succeeds" in line for line in lines)


def seconds_until(fleet: Fleet, condition: Callable[[], object], what: str) -> float:
    began = monotonic_seconds()
    fleet.until(condition, what)
    return monotonic_seconds() - began


def test_services_that_start_without_a_database_wait_for_it_and_recover_at_once(
    servers: LocalStack, fleet: Fleet
) -> None:
    fleet.database.close()
    servers.postgres.stop("immediate")
    services = fleet.start_all(*ALL_ROLES, **NO_PORT)
    for service in services.values():
        fleet.until(lambda: "waiting to start: the database does not answer" in ready(service)[1], service.role)  # noqa: B023
        assert ready(service)[0] == 503
    for service in services.values():
        assert_logged_once(service)
    servers.postgres.start()
    took = seconds_until(fleet, lambda: all(each.started for each in services.values()), "all have started")
    assert took < _RECOVERED_SECONDS


def test_services_that_start_without_a_broker_wait_for_it(servers: LocalStack, fleet: Fleet) -> None:
    servers.broker(1).kill()
    services = fleet.start_all(*ALL_ROLES, **NO_PORT)
    fleet.until(lambda: all(services[role].started for role in ("scheduler", "api")), "these need no broker")
    role: Role
    for role in NEEDS_KAFKA:
        fleet.until(lambda: "waiting to start: no Kafka broker answers" in ready(services[role])[1], role)  # noqa: B023
        assert not services[role].started
        assert_logged_once(services[role])
    servers.up()
    took = seconds_until(fleet, lambda: all(each.started for each in services.values()), "all have started")
    assert took < 2 * _RECOVERED_SECONDS  # an executor then asks for the group protocol, which takes 2 s


def test_service_that_waits_for_a_database_ends_when_requested(servers: LocalStack, fleet: Fleet) -> None:
    fleet.database.close()
    servers.postgres.stop("immediate")
    for role, service in fleet.start_all(*ALL_ROLES, **NO_PORT).items():
        fleet.until(lambda: complaints(service), f"{role} waits")  # noqa: B023
        assert service.terminate() < 10.0, role  # a pause is 2 s at most; a busy machine included


@pytest.mark.parametrize("absent", ["database", "broker"])
def test_service_that_must_fail_fast_ends_at_once(servers: LocalStack, fleet: Fleet, absent: str) -> None:
    fleet.database.close()
    if absent == "database":
        servers.postgres.stop("immediate")
    else:
        servers.broker(1).kill()
    service = fleet.start("relay", FAIL_FAST="1", **NO_PORT)
    assert exit_code(service) == 1
    assert "does not answer" in service.log_tail() or "answers at" in service.log_tail()


@pytest.mark.parametrize("wrong", ["password", "dbname"])
def test_service_that_the_database_refuses_ends_at_once(fleet: Fleet, wrong: str) -> None:
    url = make_conninfo(fleet.database.url, **{wrong: "unknown"})
    service = fleet.start("scheduler", DATABASE_URL=url, **NO_PORT)
    assert exit_code(service) == 1
    assert "authentication failed" in service.log_tail() or 'database "unknown" does not exist' in service.log_tail()


def test_service_that_finds_no_schema_ends_at_once(servers: LocalStack, fleet: Fleet) -> None:
    empty = make_conninfo(servers.postgres.url, dbname="postgres")
    service = fleet.start("scheduler", DATABASE_URL=empty, **NO_PORT)
    assert exit_code(service) == 1
    assert "run `tidewheel migrate`" in service.log_tail()


def exit_code(service: Service) -> int | None:
    service.meant_to_die = True
    service.process.join(20)
    return service.process.exitcode


FAULTS = ("broker away", "broker back", "database away", "database back")


@pytest.mark.parametrize("fault", FAULTS)
def test_every_service_ends_soon_after_a_fault(servers: LocalStack, fleet: Fleet, fault: str) -> None:
    services = fleet.start_all(*ALL_ROLES, **NO_PORT)
    fleet.wait_started()
    for service in services.values():
        fleet.until(lambda: ready(service)[0] == 200, f"{service.role} is ready")  # noqa: B023
    fleet.database.close()
    if fault.startswith("broker"):
        servers.broker(1).kill()
        fleet.until(lambda: ready(services["intake"])[0] == 503, "intake has noticed")
    else:
        servers.postgres.stop("immediate")
        fleet.until(lambda: all(ready(each)[0] == 503 for each in services.values()), "all have noticed")
    if fault.endswith("back"):
        servers.up()
    took: dict[str, float] = {}
    for service in services.values():
        service.ask_to_stop()
    began = monotonic_seconds()
    for role, service in services.items():
        service.process.join(60)
        took[role] = round(monotonic_seconds() - began, 1)
        assert service.process.exitcode == 0, service.log_tail()
    assert max(took.values()) < _STOP_SECONDS, took


def test_broker_outage_delays_no_run(
    fleet: Fleet, oracle: Oracle, work: Workload, servers: LocalStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    work.submit()
    fleet.start_all()
    work.wait_recovered(now())
    monkeypatch.setenv("TIDEWHEEL_TOPIC_PREFIX", fleet.topics.prefix)  # for the client, which is in this process
    servers.broker(1).kill()
    try:
        with Client(fleet.database.url) as client:
            runs = [client.trigger("errand") for _ in range(5)] + [client.trigger("shaky") for _ in range(5)]
            fleet.promised |= {str(run) for run in runs}
            for run in runs:
                assert client.runs.wait(run).state == "succeeded"
        assert fleet.database.count("outbox") >= 2 * len(runs)
    finally:
        servers.broker(1).launch()
    fleet.until(lambda: serves(fleet), "the broker serves again")
    work.wait_recovered(now())
    work.finish()
    fleet.stop()
    oracle.check(failures=DOOMED)
