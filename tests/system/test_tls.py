"""Services on servers that demand TLS, and the certificates that they refuse.

The programs of the embedded PostgreSQL have no TLS: a gate before them has it, and refuses connections without it.
"""

import asyncio
import os
import ssl
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.fixtures.certificates import Authority
from tests.fixtures.database import Database
from tests.fixtures.roles import role_passwords
from tests.fixtures.services import Fleet, until
from tidewheel import Client
from tidewheel.errors import Unavailable
from tidewheel.kafka.clients import bootstrap_check
from tidewheel.kafka.topics import Topics
from tidewheel.local import kafka
from tidewheel.local.broker_config import KafkaPasswords, Node, server_properties
from tidewheel.local.stack import LocalStack
from tidewheel.postgres.session import connect
from tidewheel.settings.connections import Connections
from tidewheel.settings.sources import client_variables
from tidewheel.transitions.installation import read_installation

pytestmark = [pytest.mark.postgres, pytest.mark.kafka, pytest.mark.slow]

_SSL_REQUEST = struct.pack(">ii", 8, 80877103)  # Source: PostgreSQL, message formats
_COMMAND_SECONDS = 60.0


@dataclass(frozen=True)
class Servers:
    """A PostgreSQL and a broker that demand TLS, and the authority of their certificates."""

    database_url: str
    kafka: dict[str, str]
    authority: Authority


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    folder = tmp_path_factory.mktemp("tls")
    authority = Authority(folder, "internal")
    local = LocalStack(folder / "stack")
    try:
        info = local.up()
        port = int(conninfo_to_dict(info.database_url)["port"] or 0)
        local.broker(1).stop()
        with pytest.MonkeyPatch.context() as patch, gate(port, authority) as gate_port:
            patch.setattr(kafka, "server_properties", with_tls(folder, authority))
            local.broker(1).launch()
            trusting = {"security.protocol": "SASL_SSL", "ssl.ca.location": str(authority.file)}
            url = make_conninfo(
                info.database_url, port=gate_port, sslmode="verify-full", sslrootcert=str(authority.file)
            )
            made = Servers(url, {**info.kafka, **trusting}, authority)
            until(lambda: enters(made.kafka), "the broker serves")
            yield made
    finally:
        local.down(erase=True)


def test_job_is_completed_by_services_on_servers_that_demand_tls(servers: Servers, tmp_path: Path) -> None:
    prefix = f"t{uuid4().hex[:10]}"
    with psycopg.connect(servers.database_url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(prefix)))
    url = make_conninfo(servers.database_url, dbname=prefix)
    folder = tmp_path / "passwords"
    folder.mkdir()
    for service, password in role_passwords(url).items():
        (folder / service).write_text(f"{password}\n")
    variables = {"TIDEWHEEL_DATABASE_URL": url, "TIDEWHEEL_TOPIC_PREFIX": prefix, **client_variables(servers.kafka)}
    for command in (["migrate", "--roles", "--passwords", str(folder)], ["admin", "topics", "apply"]):
        done = run(command, variables)
        assert done.returncode == 0, done.stderr
    settings = Connections.load(database_url=url, topic_prefix=prefix)
    with connect(url, "test") as connection:
        database = Database(url, read_installation(connection, settings))
    fleet = Fleet(database, servers.kafka, Topics(prefix), tmp_path)
    try:
        fleet.start_all()
        fleet.wait_started()
        fleet.ask({"type": "job.submit", "job": {"key": "over-tls", "schedule": "manual", "target": "note"}})
        fleet.flush()
        fleet.until(lambda: database.value("SELECT count(*) FROM jobs") == 1, "intake has read the request")
        with Client(url) as client:
            assert client.runs.wait(client.trigger("over-tls", {"n": 1})).state == "succeeded"
    finally:
        fleet.close()
        database.close()


def test_connection_without_tls_is_not_tried(servers: Servers) -> None:
    """The servers demand it; a client that trusts them sends nothing in clear."""
    with pytest.raises(psycopg.OperationalError, match="no encryption"):
        psycopg.connect(make_conninfo(servers.database_url, sslmode="disable"))
    assert not enters({**servers.kafka, "security.protocol": "SASL_PLAINTEXT"})


def test_certificate_of_another_authority_is_refused_with_its_setting(servers: Servers, tmp_path: Path) -> None:
    other = str(Authority(tmp_path, "other").file)
    with pytest.raises(Unavailable, match="certificate verify failed"):
        connect(make_conninfo(servers.database_url, sslrootcert=other), "test")
    with pytest.raises(Unavailable, match=r"certificate verify failed.*ssl\.ca\.location"):
        bootstrap_check({**servers.kafka, "ssl.ca.location": other})()
    done = run(
        ["relay"],
        {
            "TIDEWHEEL_FAIL_FAST": "true",
            "TIDEWHEEL_DATABASE_URL": make_conninfo(servers.database_url, sslrootcert=other),
            **client_variables(servers.kafka),
        },
    )
    assert done.returncode == 1
    assert "certificate verify failed" in done.stderr


def run(command: list[str], variables: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TIDEWHEEL_", "PG"))}
    program = [sys.executable, "-m", "tidewheel.control.cli", *command]
    return subprocess.run(
        program, env=kept | variables, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False
    )


def enters(settings: dict[str, str]) -> bool:
    try:
        AdminClient({**settings, "log_level": 0}).list_topics(timeout=3)
    except KafkaException:
        return False
    return True


class with_tls:
    """`server_properties` of a node whose clients' listener demands TLS."""

    def __init__(self, folder: Path, authority: Authority) -> None:
        self._store, self._trusted = folder / "broker.pem", authority.file
        certificate, key = authority.issue()
        self._store.write_bytes(key.read_bytes() + certificate.read_bytes())
        self._store.chmod(0o600)

    def __call__(
        self, node: Node, nodes: tuple[Node, ...], data: Path, passwords: KafkaPasswords, *, lasting: bool
    ) -> str:
        plain = server_properties(node, nodes, data, passwords, lasting=lasting)
        assert "CLIENT:SASL_PLAINTEXT" in plain
        return plain.replace("CLIENT:SASL_PLAINTEXT", "CLIENT:SASL_SSL") + (
            f"ssl.keystore.type=PEM\nssl.keystore.location={self._store}\n"
            f"ssl.truststore.type=PEM\nssl.truststore.location={self._trusted}\n"
        )


class gate:
    """A port that speaks TLS as PostgreSQL does, demands it, and passes on what it deciphers."""

    def __init__(self, port: int, authority: Authority) -> None:
        self._port, self._context = port, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(*authority.issue())
        self._served: Future[int] = Future()
        # `run` cancels what still copies: its sockets would be found unclosed in another test.
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    def __enter__(self) -> int:
        self._thread.start()
        return self._served.result(_COMMAND_SECONDS)

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._pass, "127.0.0.1", 0)
        self._served.set_result(server.sockets[0].getsockname()[1])
        await self._ended.wait()
        server.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if await reader.readexactly(8) != _SSL_REQUEST:
                fields = b"SFATAL\0C28000\0Mthis server admits no connection with no encryption\0\0"
                writer.write(b"E" + struct.pack(">i", len(fields) + 4) + fields)
                await writer.drain()
                return
            writer.write(b"S")
            await writer.start_tls(self._context)
            inner, outer = await asyncio.open_connection("127.0.0.1", self._port)
            try:
                await asyncio.wait(
                    [asyncio.ensure_future(_copy(reader, outer)), asyncio.ensure_future(_copy(inner, writer))],
                    return_when=asyncio.FIRST_COMPLETED,
                )
            finally:
                outer.close()
        except (OSError, asyncio.IncompleteReadError):  # the client refuses the certificate, or is gone
            pass
        finally:
            writer.close()


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while part := await source.read(65536):
            sink.write(part)
            await sink.drain()
    except OSError:
        pass
