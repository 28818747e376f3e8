"""The embedded servers admit their owner only, whose clients give no password to another server."""

import socket
import struct
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from psycopg.conninfo import make_conninfo

from tidewheel.local.broker_config import password_admin_settings
from tidewheel.local.stack import StackInfo
from tidewheel.local.state import StackState, read_state

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]

_DESCRIBE_CLUSTER, _SASL_HANDSHAKE, _SASL_AUTHENTICATE = 60, 17, 36  # Source: https://kafka.apache.org/protocol
_SASL_AUTHENTICATION_FAILED = 58
_REFUSED_SECONDS = 3.0


def state_of(home: Path) -> StackState:
    state = read_state(home)
    assert state is not None
    return state


def enters(settings: dict[str, str]) -> bool:
    try:
        AdminClient({**settings, "log_level": 0}).list_topics(timeout=_REFUSED_SECONDS)
    except KafkaException:
        return False
    return True


@pytest.mark.slow
def test_broker_admits_no_client_without_its_password(info: StackInfo) -> None:
    anybody = {"bootstrap.servers": info.bootstrap}
    assert enters(dict(info.kafka))
    assert not enters(anybody)
    assert not enters({**info.kafka, "sasl.password": "guess"})
    assert not enters({**info.kafka, "sasl.username": "node"})
    assert not enters(password_admin_settings(info.bootstrap, "guess"))
    assert not enters({**info.kafka, "sasl.mechanism": "PLAIN"})


def test_controller_serves_no_connection_without_its_password(info: StackInfo) -> None:
    state = state_of(info.data_dir)
    port = state.nodes[0].controller_port
    with connected(port) as controller:
        assert exchange(controller, describe_cluster()) == b""
    for password, error in (("guess", _SASL_AUTHENTICATION_FAILED), (state.kafka_passwords.node, 0)):
        with connected(port) as controller:
            exchange(controller, request(_SASL_HANDSHAKE, 1, text("PLAIN")))
            login = f"\0node\0{password}".encode()
            answer = exchange(controller, request(_SASL_AUTHENTICATE, 0, struct.pack(">i", len(login)) + login))
            assert struct.unpack(">h", answer[4:6])[0] == error
            assert (state.cluster_id.encode() in exchange(controller, describe_cluster())) is (error == 0)


def test_rogue_postgresql_is_given_no_password(info: StackInfo) -> None:
    with (
        rogue(answer_with_a_question_for_the_password) as (port, received),
        pytest.raises(psycopg.OperationalError, match=r"scram-sha-256.*cleartext password"),
    ):
        psycopg.connect(make_conninfo(info.database_url, port=port), connect_timeout=5)
    assert received
    assert state_of(info.data_dir).password.encode() not in b"".join(received)


@pytest.mark.landing
def test_rogue_broker_is_given_no_password(info: StackInfo) -> None:
    with rogue(answer_as_a_broker) as (port, received):
        assert not enters({**info.kafka, "bootstrap.servers": f"127.0.0.1:{port}"})
    password = info.kafka["sasl.password"].encode()
    assert any(b"n=tidewheel,r=" in part for part in received), "it came as far as SCRAM"
    assert password not in b"".join(received)


@contextmanager
def connected(port: int) -> Generator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        yield connection


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def request(key: int, version: int, body: bytes) -> bytes:
    """A request of Kafka's protocol: key, version, correlation id, client id, body."""
    content = struct.pack(">hhi", key, version, 7) + text("test") + body
    return struct.pack(">i", len(content)) + content


def describe_cluster() -> bytes:
    """The request for the cluster's id and its controllers, with the empty tags of a flexible version."""
    return request(_DESCRIBE_CLUSTER, 1, b"\0" + b"\0" + b"\2" + b"\0")


def exchange(connection: socket.socket, message: bytes) -> bytes:
    """Send a message; return the answer without its length, nothing if the connection is closed."""
    try:
        connection.sendall(message)
        return received_by(connection)
    except ConnectionError:
        return b""


def received_by(connection: socket.socket) -> bytes:
    head = connection.recv(4, socket.MSG_WAITALL)
    return connection.recv(struct.unpack(">i", head)[0], socket.MSG_WAITALL) if len(head) == 4 else b""


@contextmanager
def rogue(serve: Callable[[socket.socket, list[bytes]], None]) -> Generator[tuple[int, list[bytes]]]:
    """A server of another user on a port of 127.0.0.1, and all that it received."""
    received: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        stopped = threading.Event()

        def run() -> None:
            while not stopped.is_set():
                try:
                    connection, _ = server.accept()
                except TimeoutError:
                    continue
                with connection:
                    connection.settimeout(5)
                    try:
                        serve(connection, received)
                    except OSError:
                        continue

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield server.getsockname()[1], received
        finally:
            stopped.set()
            thread.join()


def answer_with_a_question_for_the_password(connection: socket.socket, received: list[bytes]) -> None:
    while part := connection.recv(65536):
        received.append(part)
        encryption = len(part) == 8  # SSLRequest or GSSENCRequest
        connection.sendall(b"N" if encryption else b"R" + struct.pack(">ii", 8, 3))  # AuthenticationCleartextPassword


def answer_as_a_broker(connection: socket.socket, received: list[bytes]) -> None:
    while part := received_by(connection):
        received.append(part)
        key, version, correlation = struct.unpack(">hhi", part[:8])
        reply = struct.pack(">i", correlation)
        match key:
            case 18:  # ApiVersions: of this version none, of version 0 those that lead to SASL
                known = [(18, 0, 0), (3, 0, 4), (_SASL_HANDSHAKE, 0, 1), (_SASL_AUTHENTICATE, 0, 0)]
                reply += struct.pack(">hi", 35 if version else 0, len(known))
                reply += b"".join(struct.pack(">hhh", *each) for each in known)
            case 17:  # SaslHandshake
                reply += struct.pack(">hi", 0, 2) + text("SCRAM-SHA-256") + text("PLAIN")
            case _:  # SaslAuthenticate: the server's first message, then a signature made without the password
                said = part[part.index(b"n=tidewheel,r=") + 14 :] if b"n=tidewheel,r=" in part else b""
                first = b"r=" + said + b"rogue,s=c2FsdHNhbHRzYWx0,i=4096"
                final = b"v=" + b"A" * 43 + b"="
                answer = first if said else final
                reply += struct.pack(">hhi", 0, -1, len(answer)) + answer
        connection.sendall(struct.pack(">i", len(reply)) + reply)
