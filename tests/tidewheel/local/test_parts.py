"""Parts of the local stack: configuration, ports, and errors of a PostgreSQL that starts."""

import socket
from pathlib import Path

import psycopg
import pytest

from tidewheel.local.broker_config import KafkaPasswords, Node, server_properties
from tidewheel.local.daemon import is_free
from tidewheel.local.postgres import _reason  # pyright: ignore[reportPrivateUsage]

TIME_ENTRY = 12  # bytes; a time index has the larger entries of the two
PASSWORDS = KafkaPasswords(client="one", node="other")
INTERVAL = 4096  # bytes of messages for an entry, the broker's default

_AT = 'connection failed: connection to server at "127.0.0.1", port 27158 failed: '


def test_segment_rolls_before_its_index_is_full() -> None:
    """A follower's append of many batches fails on an index that it fills."""
    nodes = [Node(node_id=number, port=9000 + number, controller_port=9100 + number) for number in (1, 2, 3)]
    told = dict(line.split("=", 1) for line in server_properties(nodes[0], nodes, Path("data"), PASSWORDS).splitlines())
    bytes_of_full_index = int(told["log.index.size.max.bytes"]) // TIME_ENTRY * INTERVAL
    for kind in ("log", "offsets.topic", "transaction.state.log"):
        assert int(told[f"{kind}.segment.bytes"]) < bytes_of_full_index * 0.8


def test_listener_holds_its_port_and_ended_connections_do_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = int(server.getsockname()[1])
        assert not is_free(port)
        client = socket.create_connection(("127.0.0.1", port))
        accepted, _ = server.accept()
        accepted.close()
        assert client.recv(1) == b""
        client.close()
    assert is_free(port)


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (
            f"{_AT}FATAL:  the database system is not yet accepting connections\n"
            "DETAIL:  Consistent recovery state has not been yet reached.",
            "the database system is not yet accepting connections",
        ),
        (f"{_AT}FATAL:  the database system is starting up", "the database system is starting up"),
        (
            f"{_AT}Connection refused\n\tIs the server running on that host and accepting TCP/IP connections?",
            "Connection refused",
        ),
        ("", "OperationalError"),
    ],
)
def test_reason_of_a_wait_is_the_error_without_address_and_detail(error: str, shown: str) -> None:
    assert _reason(psycopg.OperationalError(error)) == shown
