"""One worker process, from the executor's side: start, exchange frames, kill with its whole group.

The executor starts the supervisor, which leads the process group and ends in the same way as the worker. The group is
killed before the supervisor is waited for: afterwards the system may reuse the group's number.
"""

import logging
import os
import pickle
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, cast

from tidewheel.clock import monotonic_seconds
from tidewheel.executor.complete_in import CompletionConfig
from tidewheel.executor.isolation.protocol import Frame, FrameReader, Kind, ProtocolError, encode_frame
from tidewheel.http_secrets import without_secrets
from tidewheel.process import tracing

_KILL_SECONDS = 0.5  # between SIGTERM and SIGKILL; a draining executor waits a second for it
_CHECK_SECONDS = 0.1  # between two checks on systems without pidfd_open
_READ_BYTES = 64 * 1024
_REST_BYTES = 1024 * 1024  # read from the pipe at the end; a process that keeps writing is not read any further

Sink = Callable[[bytes], object]


@dataclass(frozen=True, slots=True)
class Setup:
    """Settings of worker processes; `modules` are what they import, separated by commas."""

    modules: str
    memory_bytes: int | None = None
    completion: CompletionConfig | None = None


class Died(Exception):
    """The process has ended; `reason` describes its end."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class WorkerProcess:
    """A worker process; used by one thread."""

    def __init__(self, setup: Setup, wakeup: socket.socket) -> None:
        self._wakeup = wakeup
        life, self._life = os.pipe()
        child_reads, self._to_child = os.pipe()
        self._from_child, child_writes = os.pipe()
        theirs = (life, child_reads, child_writes)
        command = [sys.executable, "-P", "-m", "tidewheel.executor.isolation.supervisor"]
        try:
            self._process = subprocess.Popen(  # noqa: S603 - ourselves
                [*command, *map(str, theirs)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=theirs,
                start_new_session=True,
                env={**without_secrets(os.environ), "PYTHONPATH": os.pathsep.join(sys.path)},
            )
        except OSError:
            for pipe in (self._life, self._to_child, self._from_child):
                os.close(pipe)
            raise
        finally:
            for pipe in theirs:
                os.close(pipe)
        self._output = cast("IO[bytes]", self._process.stdout).fileno()
        self._exit = os.pidfd_open(self._process.pid) if hasattr(os, "pidfd_open") else None
        self._frames = FrameReader()
        self._received: list[Frame] = []
        self._to_send = bytearray(encode_frame(_setup_frame(setup)))
        self._kill_at: float | None = None
        self._end_reason: str | None = None
        self._interrupted = self._closed = self._killed = False
        self._selector = selectors.DefaultSelector()
        for pipe in (self._to_child, self._from_child, self._output):
            os.set_blocking(pipe, False)
        for readable in (self._from_child, self._output, wakeup, self._exit):
            if readable is not None:
                self._selector.register(readable, selectors.EVENT_READ)

    def send(self, frame: Frame) -> None:
        """Send a frame; `receive` sends the part that the pipe has no room for."""
        self._to_send += encode_frame(frame)
        self._write()

    def receive(self, sink: Sink, on_wakeup: Callable[[], object]) -> Frame:
        """Wait for its next frame; the sink gets its standard output and error meanwhile.

        Raises:
            Died: It has ended, or was killed after a protocol error; all processes it had started are killed.
        """
        while True:
            if self._received:
                frame = self._received.pop(0)
                if frame.kind is Kind.OUTCOME:
                    self._read_rest(sink)  # written before it was sent, so it is in the pipe
                return frame
            if self._end_reason is not None:
                raise Died(self._end_reason)
            self._wait(sink, on_wakeup)

    def interrupt(self) -> None:
        """Send SIGTERM to its group; kill what is left after half a second."""
        if not self._interrupted:
            self._interrupted = True
            self._signal(signal.SIGTERM)
            self.limit(_KILL_SECONDS)

    @property
    def interrupted(self) -> bool:
        """True if `interrupt` was called."""
        return self._interrupted

    def limit(self, seconds: float | None) -> None:
        """Kill it after this time; None cancels that."""
        self._kill_at = None if seconds is None else monotonic_seconds() + seconds

    def discard_output(self) -> None:
        """Discard output that leftover threads of earlier attempts have written."""
        self._read_rest(lambda _: None)

    def alive(self) -> bool:
        """Return True if it can receive frames."""
        return self._end_reason is None and not self._exited()

    def end(self) -> None:
        """Kill the rest of its group and close its pipes."""
        self._reap()
        self._selector.close()
        for pipe in (self._life, self._to_child, self._from_child, self._exit):
            if pipe is not None:
                os.close(pipe)
        cast("IO[bytes]", self._process.stdout).close()

    def _wait(self, sink: Sink, on_wakeup: Callable[[], object]) -> None:
        self._register_writes()
        ready = {key.fileobj for key, _ in self._selector.select(self._seconds())}
        if self._to_child in ready:
            self._write()
        if self._output in ready:
            self._read_output(sink)
        if self._from_child in ready:
            self._read_frames()
        if self._wakeup in ready:
            with suppress(BlockingIOError):
                self._wakeup.recv(1024)
            on_wakeup()
        if self._kill_at is not None and monotonic_seconds() >= self._kill_at:
            self._killed = True
            self._signal(signal.SIGKILL)
        # Without a pidfd its end is polled.
        if self._exit in ready or (self._exit is None and self._exited()):
            self._ended(sink)

    def _seconds(self) -> float | None:
        if self._kill_at is not None:
            return max(self._kill_at - monotonic_seconds(), 0.01)
        return None if self._exit is not None else _CHECK_SECONDS

    def _register_writes(self) -> None:
        registered = self._to_child in self._selector.get_map()
        if self._to_send and not registered:
            self._selector.register(self._to_child, selectors.EVENT_WRITE)
        elif registered and not self._to_send:
            self._selector.unregister(self._to_child)

    def _write(self) -> None:
        try:
            del self._to_send[: os.write(self._to_child, self._to_send[:_READ_BYTES])]
        except BlockingIOError:
            return
        except OSError:
            self._to_send.clear()  # it is ending, which the selector reports otherwise

    def _read_output(self, sink: Sink) -> bool:
        try:
            data = os.read(self._output, _READ_BYTES)
        except BlockingIOError:
            return False
        if data:
            sink(data)
        elif self._output in self._selector.get_map():
            self._selector.unregister(self._output)  # it has closed it
        return bool(data)

    def _read_rest(self, sink: Sink) -> None:
        for _ in range(_REST_BYTES // _READ_BYTES):
            if not self._read_output(sink):
                return

    def _read_frames(self) -> bool:
        try:
            data = os.read(self._from_child, _READ_BYTES)
        except BlockingIOError:
            return False
        if data:
            self._feed(data)
        elif self._from_child in self._selector.get_map():
            self._selector.unregister(self._from_child)  # it ends, or its handler has closed the pipe
            self._closed = True
            if self._kill_at is None:
                self.limit(_KILL_SECONDS)
        return bool(data)

    def _feed(self, data: bytes) -> None:
        try:
            self._received.extend(self._frames.feed(data))
        except ProtocolError as error:
            self._end_reason = f"the handler's process wrote invalid data to the executor's pipe ({error})"
            self._reap()

    def _exited(self) -> bool:
        """Return True if it has ended; it is not reaped, which keeps the number of its group."""
        try:
            return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    def _ended(self, sink: Sink) -> None:
        self._signal(signal.SIGKILL)  # the processes it has started; its own entry stays until it is waited for
        while self._read_frames():
            pass
        self._read_rest(sink)
        code = self._reap()
        closed = self._closed and self._killed
        self._end_reason = self._end_reason or (
            "the handler closed the pipe to the executor" if closed else _exit_reason(code)
        )

    def _reap(self) -> int:
        self._signal(signal.SIGKILL)
        return self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)


def _setup_frame(setup: Setup) -> Frame:
    head = {
        "path": sys.path,
        "pythonpath": os.environ.get("PYTHONPATH"),
        "modules": setup.modules,
        "memory_bytes": setup.memory_bytes,
        "level": logging.getLogger().level,
        "traces": tracing.spans is not None,
    }
    return Frame(Kind.SETUP, head, [pickle.dumps(setup.completion)])


def _exit_reason(code: int) -> str:
    if code >= 0:
        return f"the handler's process ended with exit code {code} before the handler returned"
    name = signal.Signals(-code).name
    hint = "; the system does so when memory runs out" if -code == signal.SIGKILL else ""
    return f"the handler's process was killed by {name}{hint}"
