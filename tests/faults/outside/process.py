"""One service as a process, and waiting for what a process does."""

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.fixtures.waiting import WaitRanOut
from tidewheel.errors import StackError

_START_SECONDS = 90.0
_RETRY_SECONDS = 0.5
_LOOK_SECONDS = 0.05
_NEVER = threading.Event()


@dataclass(eq=False)
class Process:
    """One service."""

    name: str
    child: subprocess.Popen[bytes]
    log: Path
    expected: bool = False  # its end

    @property
    def alive(self) -> bool:
        """True if it runs, or is stopped."""
        return self.child.poll() is None

    @property
    def role(self) -> str:
        """The kind of service."""
        return self.name.partition("-")[0]


def insist(start: Callable[[], object]) -> None:
    """Start a server, as often as it takes."""
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            start()
        except StackError:
            if time.monotonic() > deadline:
                raise
            _NEVER.wait(_RETRY_SECONDS)
        else:
            return


def send_signal(pid: int, how: signal.Signals) -> None:
    """Send a signal to a process that may be gone."""
    with suppress(ProcessLookupError):
        os.kill(pid, how)


def has_started(process: Process) -> bool:
    """Return True if a service has logged that it serves."""
    return f"{process.role} started" in process.log.read_text(errors="replace")


def listens(port: int) -> bool:
    """Return True if a server accepts connections on a port."""
    with suppress(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
        return True
    return False


def free_port() -> int:
    """Return a port that is free."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def until(condition: Callable[[], object], what: str, seconds: float = _START_SECONDS) -> None:
    """Wait until a condition holds; fails with `what` when it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            message = f"not within {seconds:g} s: {what}"
            raise WaitRanOut(message)
        _NEVER.wait(_LOOK_SECONDS)
