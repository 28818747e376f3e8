"""One process that outlives its starter and is found again.

Invariant: nothing is signalled unless its command line carries the marker, an argument that names this stack's folder.
A recycled pid is therefore never hit. A process whose starter died before it recorded the pid is found all the same.
"""

import atexit
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from tidewheel.errors import StackError
from tidewheel.local.program import Account, start_program

if TYPE_CHECKING:
    import psutil  # imported where it is used: every command calls `is_noted_alive`, which needs none on Linux

_POLL_SECONDS = 0.02  # short compared with the 40 ms that PostgreSQL takes to stop
_AFTER_KILL_SECONDS = 10.0  # SIGKILL is carried out at once unless the process hangs in the kernel
_PAUSE = threading.Event()  # never set: to wait on it is to sleep

# Children of this process, kept so that they are reaped; a forgotten Popen would leave a zombie, and a warning.
_CHILDREN: dict[int, subprocess.Popen[bytes]] = {}


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
                message = f"{command[0]} cannot be executed: {error}"
                raise StackError(message) from error
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
