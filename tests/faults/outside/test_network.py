"""Namespaces, links, small disks and the proxy do what the rows of the matrix rely on."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.faults.outside.network import Namespace, fill, mount, unmount, why_no_mounts, why_no_namespaces
from tests.faults.outside.proxy import Proxy

pytestmark = pytest.mark.process

_ASK = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=2) as line:
    for _ in range(int(sys.argv[2])):
        line.sendall(b"?")
        assert line.recv(1) == b"!"
        sys.stdin.readline()
"""


@pytest.fixture
def port() -> Iterator[int]:
    """A server that answers each byte."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer(line: socket.socket) -> None:
            with line:
                while line.recv(1):
                    line.sendall(b"!")

        def serve() -> None:
            while True:
                try:
                    line, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=answer, args=[line], daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def space() -> Iterator[Namespace]:
    if reason := why_no_namespaces():
        pytest.skip(f"not run: {reason}")
    made = Namespace(240)
    yield made
    made.remove()


def ask(space: Namespace, port: int) -> str:
    """Ask the server from within; return what went wrong, or nothing."""
    command = [*space.command, sys.executable, "-c", _ASK, str(port), "1"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return done.stderr.strip().rpartition("\n")[2]


def test_cut_link_is_silent_and_mends(space: Namespace, port: int) -> None:
    assert ask(space, port) == ""
    space.cut()
    assert ask(space, port) == "TimeoutError: timed out"
    space.mend()
    assert ask(space, port) == ""


@pytest.mark.landing
def test_cut_port_is_silent_and_leaves_the_others(space: Namespace, port: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        space.cut_port(port)
        assert ask(space, port) == "TimeoutError: timed out"
        assert ask(space, other.getsockname()[1]) == "TimeoutError: timed out"  # it accepts, and never answers
        other.accept()[0].close()
        space.mend_port(port)
    assert ask(space, port) == ""


def test_cut_reaches_a_connection_that_is_open(space: Namespace, port: int) -> None:
    command = [*space.command, sys.executable, "-c", _ASK, str(port), "2"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as asking:
        assert asking.stdin is not None
        assert asking.stderr is not None
        while not _is_connected(port):
            assert asking.poll() is None
        space.cut_port(port)
        asking.stdin.write("\n")
        asking.stdin.close()
        assert "TimeoutError" in asking.stderr.read()


def test_small_disk_is_full(tmp_path: Path) -> None:
    if reason := why_no_mounts(tmp_path / "probe"):
        pytest.skip(f"not run: {reason}")
    mount(tmp_path / "disk", 2)
    try:
        ballast = fill(tmp_path / "disk")
        with pytest.raises(OSError, match="No space left"):
            (tmp_path / "disk" / "more").write_bytes(b"x")
        ballast.unlink()
        (tmp_path / "disk" / "more").write_bytes(b"x")
    finally:
        unmount(tmp_path / "disk")


def test_proxy_passes_swallows_and_resets(port: int) -> None:
    proxy = Proxy(port, seed=1)
    try:
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=5) as line:
            line.sendall(b"?")
            assert line.recv(1) == b"!"
            proxy.line.silent = True
            line.sendall(b"?")
            line.settimeout(0.3)
            with pytest.raises(TimeoutError):
                line.recv(1)
            proxy.line.silent = False
            line.settimeout(5)
            assert line.recv(1) == b"!"
            proxy.line.resets = 1.0
            line.sendall(b"?")
            with suppress(ConnectionResetError):
                assert line.recv(1) == b""
    finally:
        proxy.close()


def _is_connected(port: int) -> bool:
    """Return True if a connection from a namespace is established."""
    here = f"{0x0100007F:08X}:{port:04X}"
    lines = Path(f"/proc/{os.getpid()}/net/tcp").read_text().splitlines()
    return any(here in line and line.split()[3] == "01" for line in lines)
