"""Ports of the local stack: what holds one, and what does not."""

import socket

from tidewheel.local.daemon import is_free


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
