"""Start processes that outlive their starter, find them again, run programs, choose free ports.

Invariant: nothing is signalled unless its command line carries the marker, an argument that names this stack's folder.
A recycled pid is therefore never hit. A process whose starter died before it recorded the pid is found all the same.
"""

import atexit
import os
import random
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple, TypeAlias

from tidewheel.errors import StackError

if TYPE_CHECKING:
    import psutil  # imported where it is used: every command calls `is_noted_alive`, which needs none on Linux

_POLL_SECONDS = 0.02  # short compared with the 40 ms that PostgreSQL takes to stop
_AFTER_KILL_SECONDS = 10.0  # SIGKILL is carried out at once unless the process hangs in the kernel
_PAUSE = threading.Event()  # never set: to wait on it is to sleep

# Children of this process, kept so that they are reaped; a forgotten Popen would leave a zombie, and a warning.
_CHILDREN: dict[int, subprocess.Popen[bytes]] = {}

# Below the ephemeral ranges of Linux (32768 and up) and of IANA (49152 and up). A client that retries a stopped
# broker's port from that very port would connect to itself and hold the port against the broker's return.
_LOWEST = 20_000
_HIGHEST = 32_000
_TRIES = 200
_LOG_TAIL_LINES = 5


class Account(NamedTuple):
    """The system user a program runs as."""

    uid: int
    gid: int


class Daemon:
    """A process known by its pid file and by `marker`, one whole argument of its command line."""

    def __init__(self, pid_file: Path, marker: str) -> None:
        self._pid_file = pid_file
        self._marker = marker

    def start(self, command: Sequence[str], *, log: Path, cwd: Path, account: Account | None = None) -> None:
        """Start `command` in a session of its own, its output appended to `log`; record its pid."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            try:
                child = start_program(command, cwd=cwd, output=output, account=account)
            except OSError as error:
                raise StackError(f"{command[0]} cannot be executed: {error}") from error
        _CHILDREN[child.pid] = child
        self._pid_file.write_text(f"{child.pid}\n")

    def process(self) -> "psutil.Process | None":
        """Return the process if it runs: by its recorded pid, else by a scan, which records the pid."""
        import psutil

        _reap()
        noted = self._noted()
        if noted is not None and self._carries_marker(noted):
            return noted
        found = next((process for process in psutil.process_iter() if self._carries_marker(process)), None)
        if found is not None:
            with suppress(OSError):  # a folder that is gone, or of another account
                self._pid_file.write_text(f"{found.pid}\n")
        return found

    def is_noted_alive(self) -> bool:
        """True if the process with the recorded pid runs; cheaper than `process`, blind to other pids."""
        _reap()
        with suppress(OSError, ValueError):
            words = Path(f"/proc/{int(self._pid_file.read_text())}/cmdline").read_bytes()
            if self._marker.encode() in words.split(b"\0"):
                return True
        noted = self._noted()
        return noted is not None and self._carries_marker(noted)

    @property
    def is_noted(self) -> bool:
        """True from its start until a command has stopped it: also after an end by itself."""
        return self._pid_file.exists()

    def stop(self, how: signal.Signals, timeout: timedelta) -> bool:
        """Send `how` and wait. Return True if no SIGKILL was needed."""
        process = self.ask(how)
        return self.wait(process, timeout)

    def ask(self, how: signal.Signals) -> "psutil.Process | None":
        """Send `how` and return at once with the process that got it, if there is one."""
        import psutil

        process = self.process()
        if process is not None:
            try:
                process.send_signal(how)
            except psutil.NoSuchProcess:
                process = None
        return process

    def wait(self, process: "psutil.Process | None", timeout: timedelta) -> bool:
        """Wait for a process to end; kill it after `patience`. Return True if it ended by itself."""
        by_itself = process is None or _gone(process, timeout.total_seconds())
        if process is not None and not by_itself:
            process.kill()
            _gone(process, _AFTER_KILL_SECONDS)
        _reap()
        self._pid_file.unlink(missing_ok=True)
        return by_itself

    def _noted(self) -> "psutil.Process | None":
        try:
            pid = int(self._pid_file.read_text())
        except (OSError, ValueError):
            return None
        import psutil

        try:
            return psutil.Process(pid)
        except (ValueError, psutil.Error):
            return None

    def _carries_marker(self, process: "psutil.Process") -> bool:
        import psutil

        try:
            return self._marker in process.cmdline()
        except psutil.Error:
            return False


def run_program(
    command: Sequence[str],
    *,
    cwd: Path,
    account: Account | None = None,
    stdin: IO[bytes] | None = None,
    variables: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run `command` to its end; `stdout` has its output and its errors.

    `variables` are added to the environment.
    """
    return subprocess.run(  # noqa: S603 - programs of our own wheels, arguments written by the stack
        command,
        cwd=cwd,
        env={**clean_environment(), **(variables or {})},
        stdin=stdin or subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
        user=account and account.uid,
        group=account and account.gid,
        extra_groups=None if account is None else [],  # without root's groups
    )


def start_program(
    command: Sequence[str], *, cwd: Path, output: IO[bytes], account: Account | None = None
) -> subprocess.Popen[bytes]:
    """Start `command` in a session of its own, so that it outlives us and our terminal."""
    return subprocess.Popen(  # noqa: S603 - as above
        command,
        cwd=cwd,
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        user=account and account.uid,
        group=account and account.gid,
        extra_groups=None if account is None else [],
    )


def clean_environment() -> dict[str, str]:
    """Return the programs' environment, without the caller's PG*, CLASSPATH and JAVA_*."""
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}


def free_port(taken: Collection[int] = ()) -> int:
    """Return a port without a listener, and none of `taken`."""
    for _ in range(_TRIES):
        port = random.randrange(_LOWEST, _HIGHEST)  # noqa: S311 - a port is no secret
        if port not in taken and is_free(port):
            return port
    raise StackError(f"none of {_TRIES} ports tried between {_LOWEST} and {_HIGHEST} is free on 127.0.0.1")


def is_free(port: int) -> bool:
    """Return True if a server could listen on this port of 127.0.0.1 now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: ended connections hold no port
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def answers(port: int) -> bool:
    """Return True if a server accepts connections on this port of 127.0.0.1."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def log_tail(text: str) -> str:
    """Return the last lines of a log or of a program's output, for an error."""
    return " | ".join(line.strip() for line in text.splitlines()[-_LOG_TAIL_LINES:])


def _gone(process: "psutil.Process", seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while _runs(process):
        if time.monotonic() > deadline:
            return False
        _PAUSE.wait(_POLL_SECONDS)
    return True


def _runs(process: "psutil.Process") -> bool:
    """Return True if any thread is left: a zombie first thread may still hold files and ports.

    A zombie with no other thread has ended, even if its parent never reaps it (a container's first process may not).
    """
    import psutil

    _reap()
    try:
        return process.is_running() and (process.status() != psutil.STATUS_ZOMBIE or process.num_threads() > 1)
    except psutil.NoSuchProcess:
        return False


def _reap() -> None:
    for pid, child in list(_CHILDREN.items()):
        if child.poll() is not None:
            _CHILDREN.pop(pid, None)


@atexit.register
def _leave() -> None:
    """Leave the processes that outlive this one; Popen would warn of each at the interpreter's end."""
    _reap()
    for child in _CHILDREN.values():
        child.returncode = 0


@dataclass(frozen=True, slots=True)
class Step:
    """One thing being done, in words, with the bytes to do; 0 where they cannot be counted."""

    what: str
    done_bytes: int = 0
    total_bytes: int = 0
    part: str = ""

    @property
    def words(self) -> str:
        """The step with its part."""
        return f"{self.what}: {self.part}" if self.part else self.what


Progress: TypeAlias = Callable[[Step], None]


def in_silence(step: Step) -> None:
    """Show nothing."""
    del step
