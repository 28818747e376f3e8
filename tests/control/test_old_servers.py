"""Each process refuses a server that is too old, with what it has found and needs, and the page."""

from collections.abc import Callable, Iterator, Mapping

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pydantic import SecretStr

from tests.control.cli.command import process
from tests.fixtures.database import Database
from tests.fixtures.older_server import older_server
from tidewheel import Client
from tidewheel.control.doctor.check import Context, Finding, Limits, run_checks
from tidewheel.control.doctor.doctor import CHECKS
from tidewheel.errors import UnsupportedServer
from tidewheel.kafka.clients import bootstrap_check
from tidewheel.local.stack import StackInfo
from tidewheel.migrations.runner import migrate
from tidewheel.settings.connections import Connections

REFUSAL = r"PostgreSQL 14\.\d+ is too old .* needs 15 or newer.*docs/compatibility\.md"
INIT_PRODUCER_ID = b"\x00\x16\x00\x00\x00"  # its key, and the oldest version. Source: Kafka protocol guide, API keys
CALLS: Mapping[str, Callable[[str], object]] = {
    "migrate": migrate,
    "client": lambda url: Client(url).submit({"key": "job", "schedule": "manual", "target": {"handler": "h"}}),
}


@pytest.fixture
def old_url(database: Database) -> Iterator[str]:
    """The URL of a database on PostgreSQL 14, as its server reports."""
    with psycopg.connect(database.url) as connection:
        real = f"server_version\0{connection.info.server_version // 10_000}".encode()
    with older_server(int(str(conninfo_to_dict(database.url)["port"])), real, b"server_version\x0014") as port:
        yield make_conninfo(database.url, port=port, gssencmode="disable")


def findings(settings: Connections, name: str) -> list[Finding]:
    checks = [check for check in CHECKS if check.name == name]
    return list(run_checks(checks, Context(settings, Limits())).findings)


@pytest.mark.parametrize("name", CALLS)
def test_old_database_server_is_refused(old_url: str, name: str) -> None:
    with pytest.raises(UnsupportedServer, match=REFUSAL):
        CALLS[name](old_url)


def test_server_whose_pooler_reports_no_release_is_read(database: Database) -> None:
    port = int(str(conninfo_to_dict(database.url)["port"]))
    with older_server(port, b"server_version\0", b"server_versiox\0") as silent:
        url = make_conninfo(database.url, port=silent, gssencmode="disable")
        with psycopg.connect(url) as connection:
            assert connection.info.server_version == 0
        assert migrate(url) == []


@pytest.mark.landing
@pytest.mark.parametrize("command", [("service", "scheduler"), ("migrate",), ("job", "list")])
def test_process_exits_at_an_old_server(
    old_url: str, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEWHEEL_DATABASE_URL", old_url)
    done = process(*command)
    assert done.code == 1
    assert "PostgreSQL 14." in done.err


def test_doctor_finds_an_old_database_server(old_url: str) -> None:
    [found] = findings(Connections.load(database_url=SecretStr(old_url)), "database")
    assert found.what == "the database server is too old"


@pytest.mark.kafka
def test_brokers_that_lack_an_api_are_refused(info: StackInfo) -> None:
    lacking = INIT_PRODUCER_ID.replace(b"\x00\x16", b"\x7f\x16")
    with older_server(int(info.bootstrap.rpartition(":")[2]), INIT_PRODUCER_ID, lacking) as port:
        bootstrap = f"127.0.0.1:{port}"
        with pytest.raises(UnsupportedServer, match=r"lack InitProducerId version 0.*docs/compatibility\.md"):
            bootstrap_check({**info.kafka, "bootstrap.servers": bootstrap})()
        settings = Connections.load(kafka_properties=info.kafka_properties, kafka_bootstrap=bootstrap)
        [found] = findings(settings, "broker")
    assert found.what == "the Kafka brokers do not suit this release"
    bootstrap_check(info.kafka)()
