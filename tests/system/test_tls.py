"""Services on servers that demand TLS, and the certificates and tokens that are refused.

The embedded PostgreSQL is built without TLS. The one here is the PostgreSQL 17 of the matrix, from Maven Central.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Literal, get_args
from uuid import uuid4

import psycopg
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.fixtures.certificates import Authority
from tests.fixtures.database import Database
from tests.fixtures.identity_provider import AUDIENCE, CLIENT, ISSUER, IdentityProvider
from tests.fixtures.roles import role_passwords
from tests.fixtures.services import Fleet, until
from tidewheel import Client
from tidewheel.clock import SystemClock
from tidewheel.errors import SettingsError, Unavailable
from tidewheel.kafka.clients import bootstrap_check
from tidewheel.kafka.topics import Topics
from tidewheel.local import kafka, postgres
from tidewheel.local.broker_config import KafkaPasswords, Node, client_properties, server_properties
from tidewheel.local.daemon import Account, free_port
from tidewheel.local.postgres import server_account
from tidewheel.local.stack import LocalStack
from tidewheel.postgres.session import connect, connect_configured
from tidewheel.settings.connections import Connections
from tidewheel.settings.sources import client_variables
from tidewheel.transitions.installation import read_installation
from tools.matrix.cells import Cell, postgres_programs

pytestmark = [pytest.mark.postgres, pytest.mark.kafka, pytest.mark.slow]

Way = Literal["password", "certificate", "token"]
"""How a client signs in to the broker; by a certificate it also does so to PostgreSQL, beside its password."""

_COMMAND_SECONDS = 60.0
# The broker ends the session of a client whose token has expired.
_TOKENS_LIVE = timedelta(seconds=10)
_CERTIFIED = "certified"  # the first part of the names of databases whose clients need a certificate
_HBA = f"""
hostssl "/^{_CERTIFIED}" all 127.0.0.1/32 scram-sha-256 clientcert=verify-full
hostssl all all 127.0.0.1/32 scram-sha-256
"""
_OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearer"


@dataclass(frozen=True)
class Servers:
    """A PostgreSQL and a broker that demand TLS, the authority of certificates, and the issuer of tokens."""

    database_url: str
    kafka: Mapping[Way, dict[str, str]]
    authority: Authority
    provider: IdentityProvider

    def database(self, way: Way) -> str:
        """Create a database for clients that sign in this way; return the URL of its owner."""
        name = f"{_CERTIFIED if way == 'certificate' else 'plain'}_{uuid4().hex[:10]}"
        with psycopg.connect(self.database_url, autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        url = make_conninfo(self.database_url, dbname=name)
        return certified(url, self.authority) if way == "certificate" else url


@dataclass
class CertifiedDatabase(Database):
    """A database to which each service connects with the certificate of its role."""

    authority: Authority | None = None

    def url_of(self, service: str) -> str:
        url = super().url_of(service)
        return url if self.authority is None else certified(url, self.authority)


def certified(url: str, authority: Authority) -> str:
    """Return the URL with a certificate for its user."""
    certificate, key = authority.issue_client(str(conninfo_to_dict(url)["user"]))
    return make_conninfo(url, sslcert=str(certificate), sslkey=str(key))


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    folder = tmp_path_factory.mktemp("tls")
    authority = Authority(folder, "internal")
    local = LocalStack(folder / "stack")
    with (
        pytest.MonkeyPatch.context() as patch,
        postgres_programs(Cell("tls", postgres="17")) as programs,
        IdentityProvider(folder, authority, _TOKENS_LIVE) as provider,
    ):

        def find_programs(account: Account | None) -> Path | None:
            del account
            return programs

        patch.setattr(postgres, "find_programs", find_programs)
        try:
            info = local.up()
            demand_tls(info.database_url, folder / "stack" / "postgres" / "data", authority)
            local.broker(1).stop()
            properties = BrokerProperties(folder, authority, provider.keys)
            java = kafka.Broker._java  # pyright: ignore[reportPrivateUsage]
            allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={provider.keys.as_uri()}"

            def java_with_keys(broker: kafka.Broker) -> list[str]:
                return [*java(broker), allowed]

            patch.setattr(kafka.Broker, "_java", java_with_keys)
            patch.setattr(kafka, "server_properties", properties)
            local.broker(1).launch()
            url = make_conninfo(
                info.database_url, sslmode="verify-full", sslrootcert=str(authority.file), channel_binding="require"
            )
            made = Servers(url, properties.clients(info.kafka, provider), authority, provider)
            until(lambda: enters(made.kafka["password"]), "the broker serves")
            yield made
        finally:
            local.down(erase=True)


@pytest.mark.parametrize("way", get_args(Way))
def test_job_is_completed_by_services_on_servers_that_demand_tls(servers: Servers, tmp_path: Path, way: Way) -> None:
    url, settings = servers.database(way), servers.kafka[way]
    prefix = str(conninfo_to_dict(url)["dbname"])
    folder = tmp_path / "passwords"
    folder.mkdir()
    for service, password in role_passwords(url).items():
        (folder / service).write_text(f"{password}\n")
    properties = tmp_path / "kafka.properties"
    properties.write_text(client_properties(settings))
    variables = {
        "TIDEWHEEL_DATABASE_URL": url,
        "TIDEWHEEL_TOPIC_PREFIX": prefix,
        "TIDEWHEEL_KAFKA_PROPERTIES": str(properties),
    }
    for command in (["migrate", "--roles", "--passwords", str(folder)], ["admin", "topics", "apply"]):
        done = run(command, variables)
        assert done.returncode == 0, done.stderr
    with connect(url, "test") as connection:
        installation = read_installation(connection, Connections.load(database_url=url, topic_prefix=prefix))
    authority = servers.authority if way == "certificate" else None
    database = CertifiedDatabase(url, installation, authority=authority)
    fleet = Fleet(database, settings, Topics(prefix), tmp_path)
    try:
        fleet.start_all(SWEEP="PT2M")  # longer than the test: what has ended was brought by Kafka
        fleet.wait_started()
        fleet.ask({"type": "job.submit", "job": {"key": "over-tls", "schedule": "manual", "target": "note"}})
        fleet.flush()
        fleet.until(lambda: database.value("SELECT count(*) FROM jobs") == 1, "intake has read the request")
        with Client(url) as client:
            assert client.runs.wait(client.trigger("over-tls", {"n": 1})).state == "succeeded"
            expiry = servers.provider.last_expiry
            fleet.until(lambda: SystemClock().now() > expiry, "the tokens of the first run have expired")
            assert client.runs.wait(client.trigger("over-tls", {"n": 2})).state == "succeeded"
        assert run(["status"], variables).returncode == 0
    finally:
        fleet.close()
        database.close()


def test_connection_without_tls_is_not_tried(servers: Servers) -> None:
    """The servers demand it; a client that trusts them sends nothing in clear."""
    with pytest.raises(psycopg.OperationalError, match="no encryption"):
        psycopg.connect(make_conninfo(servers.database_url, sslmode="disable", channel_binding="prefer"))
    assert not enters({**servers.kafka["password"], "security.protocol": "SASL_PLAINTEXT"})


def test_certificate_of_another_authority_is_refused_with_its_setting(servers: Servers, tmp_path: Path) -> None:
    other = str(Authority(tmp_path, "other").file)
    settings = servers.kafka["password"]
    with pytest.raises(Unavailable, match="certificate verify failed"):
        connect(make_conninfo(servers.database_url, sslrootcert=other), "test")
    with pytest.raises(Unavailable, match=r"certificate verify failed.*ssl\.ca\.location"):
        bootstrap_check({**settings, "ssl.ca.location": other})()
    done = run(
        ["relay"],
        {
            "TIDEWHEEL_FAIL_FAST": "true",
            "TIDEWHEEL_DATABASE_URL": make_conninfo(servers.database_url, sslrootcert=other),
            **client_variables(settings),
        },
    )
    assert done.returncode == 1
    assert "certificate verify failed" in done.stderr


def test_client_without_its_certificate_is_refused_with_the_setting(servers: Servers, tmp_path: Path) -> None:
    """Without one, with one of another authority, and with one of another name."""
    url = servers.database("certificate")
    bare = make_conninfo(servers.database_url, dbname=conninfo_to_dict(url)["dbname"])
    strange = Authority(tmp_path, "strange")
    others = make_conninfo(certified(make_conninfo(bare, user="postgres"), servers.authority), user="tidewheel")
    for each in (bare, certified(bare, strange), others):
        with pytest.raises(SettingsError, match=r"(client certificate|unknown ca|authentication failed).*sslcert"):
            connect_configured(each, "test")
    settings = servers.kafka["certificate"]
    without = {name: value for name, value in settings.items() if name not in client_certificate(strange)}
    for each in (without, {**settings, **client_certificate(strange)}):
        with pytest.raises(Unavailable, match=r"certificate.*ssl\.certificate\.location"):
            bootstrap_check(each)()


def test_key_that_others_can_read_is_refused_with_the_setting(servers: Servers) -> None:
    url = servers.database("certificate")
    Path(str(conninfo_to_dict(url)["sslkey"])).chmod(0o644)
    with pytest.raises(SettingsError, match=r"private key file.*sslkey"):
        connect_configured(url, "test")


def test_refused_secret_ends_a_start_and_a_provider_that_is_away_does_not(servers: Servers, tmp_path: Path) -> None:
    settings = servers.kafka["token"]
    with pytest.raises(SettingsError, match="invalid_client"):
        bootstrap_check({**settings, "sasl.oauthbearer.client.secret": "guess"})()
    away = {"sasl.oauthbearer.token.endpoint.url": f"https://127.0.0.1:{free_port()}/token"}
    strange = {"https.ca.location": str(Authority(tmp_path, "strange").file)}
    for changed in (away, strange):
        with pytest.raises(Unavailable, match=r"token\.endpoint\.url.*https\.ca\.location"):
            bootstrap_check({**settings, **changed})()


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


def demand_tls(url: str, data: Path, authority: Authority) -> None:
    """Let a running PostgreSQL demand TLS of all clients, and a certificate of those of some databases."""
    certificate, key = authority.issue()
    account = server_account()
    for name, source in {"server.crt": certificate, "server.key": key, "clients.pem": authority.file}.items():
        target = data / name
        target.write_bytes(source.read_bytes())
        target.chmod(0o600)
        if account is not None:
            os.chown(target, account.uid, account.gid)
    (data / "pg_hba.conf").write_text(_HBA)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET ssl_ca_file = 'clients.pem'")
        connection.execute("ALTER SYSTEM SET ssl = on")
        connection.execute("SELECT pg_reload_conf()")

    def refuses_plain() -> bool:
        try:
            psycopg.connect(make_conninfo(url, sslmode="disable")).close()
        except psycopg.OperationalError:
            return True
        return False

    until(refuses_plain, "PostgreSQL demands TLS")


def client_certificate(authority: Authority) -> dict[str, str]:
    """Return the settings with which a client of the brokers shows a certificate."""
    certificate, key = authority.issue_client(CLIENT)
    return {"ssl.certificate.location": str(certificate), "ssl.key.location": str(key)}


class BrokerProperties:
    """`server_properties` of a node whose listeners for clients demand TLS: one for each way to sign in."""

    def __init__(self, folder: Path, authority: Authority, keys: Path) -> None:
        self._store, self._authority, self._keys = folder / "broker.pem", authority, keys
        certificate, key = authority.issue()
        self._store.write_bytes(key.read_bytes() + certificate.read_bytes())
        self._store.chmod(0o600)
        self._mutual, self._tokens = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"

    def clients(self, password: Mapping[str, str], provider: IdentityProvider) -> dict[Way, dict[str, str]]:
        """Return the settings of clients."""
        trusting = {"ssl.ca.location": str(self._authority.file)}
        mutual = {"bootstrap.servers": self._mutual, "security.protocol": "SSL", **client_certificate(self._authority)}
        return {
            "password": {**password, **trusting, "security.protocol": "SASL_SSL"},
            "certificate": {**trusting, **mutual},
            "token": {**trusting, **provider.client, "bootstrap.servers": self._tokens},
        }

    def __call__(
        self, node: Node, nodes: tuple[Node, ...], data: Path, passwords: KafkaPasswords, *, lasting: bool
    ) -> str:
        plain = server_properties(node, nodes, data, passwords, lasting=lasting)
        given = dict(line.split("=", 1) for line in plain.splitlines())
        added = f",MUTUAL://{self._mutual},TOKENS://{self._tokens}"
        tokens = "listener.name.tokens."
        changed = {
            "listeners": given["listeners"] + added,
            "advertised.listeners": given["advertised.listeners"] + added,
            "listener.security.protocol.map": ("CLIENT:SASL_SSL,CONTROLLER:SASL_PLAINTEXT,MUTUAL:SSL,TOKENS:SASL_SSL"),
            "super.users": f"{given['super.users']};User:CN={CLIENT};User:{CLIENT}",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self._store,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self._authority.file,
            "listener.name.mutual.ssl.client.auth": "required",
            f"{tokens}sasl.enabled.mechanisms": "OAUTHBEARER",
            f"{tokens}oauthbearer.sasl.jaas.config": f"{_OAUTH}LoginModule required;",
            f"{tokens}oauthbearer.sasl.server.callback.handler.class": f"{_OAUTH}ValidatorCallbackHandler",
            f"{tokens}oauthbearer.connections.max.reauth.ms": _TOKENS_LIVE // timedelta(milliseconds=1),
            f"{tokens}sasl.oauthbearer.jwks.endpoint.url": self._keys.as_uri(),
            f"{tokens}sasl.oauthbearer.expected.audience": AUDIENCE,
            f"{tokens}sasl.oauthbearer.expected.issuer": ISSUER,
        }
        return "".join(f"{name}={value}\n" for name, value in {**given, **changed}.items())
