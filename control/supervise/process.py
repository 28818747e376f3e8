"""One supervised process: its gate, its output, its end."""

import asyncio
import json
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from tidewheel.control.supervise.child import GO
from tidewheel.jobs.strict_json import as_list, as_object

_READ_BYTES = 64 * 1024
_LINE_BYTES = 256 * 1024  # a longer line of output is cut into several
_REPORT_BYTES = 16 * 1024 * 1024  # the paths of a large project
_REST_SECONDS = 1.0  # programs that a service has left behind may hold its output open
_TAIL_LINES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A service to keep running.

    Args:
        role: Its command, such as `intake`.
        variables: Its environment variables, beside those of the supervisor.
        stop_seconds: Time between SIGTERM and SIGKILL.
    """

    role: str
    flags: Sequence[str] = ()
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    stop_seconds: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The report of a process that has imported its code.

    Args:
        error: The reason for which the handlers cannot be imported; None if they can.
        files: The user's files that it imported, or that the error names.
        payloads: An example of the payload of each handler that takes a model.
    """

    error: str | None = None
    files: frozenset[str] = frozenset()
    handlers: tuple[str, ...] = ()
    payloads: Mapping[str, object] = field(default_factory=dict[str, object])


class ServiceProcess:
    """A process of a service; `admit` sends the go-ahead."""

    def __init__(
        self,
        service: Service,
        process: asyncio.subprocess.Process,
        gate: asyncio.StreamReader,
        admit: asyncio.StreamWriter,
        on_line: Callable[[str], None],
    ) -> None:
        self.service, self.pid = service, process.pid
        self.tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._process, self._gate, self._admit, self._on_line = process, gate, admit, on_line
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, service: Service, on_line: Callable[[str], None]) -> "ServiceProcess":
        """Start a process, which imports its code and waits for `go`."""
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-P", "-m", "tidewheel.control.supervise.child"]
        arguments = [str(os.getpid()), str(theirs.fileno()), service.role, *service.flags]
        with theirs:
            try:
                process = await asyncio.create_subprocess_exec(
                    *command,
                    *arguments,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.STDOUT,
                    pass_fds=(theirs.fileno(),),
                    env={**os.environ, **service.variables},
                    start_new_session=True,  # Ctrl-C goes to the supervisor alone, which stops the services in order
                )
            except BaseException:
                ours.close()
                raise
        gate, admit = await asyncio.open_unix_connection(sock=ours, limit=_REPORT_BYTES)
        return cls(service, process, gate, admit, on_line)

    async def report(self) -> Report:
        """Wait for its report; an empty one if it ends before."""
        with suppress(OSError, ValueError):
            found = as_object(json.loads(await self._gate.readline() or b"{}")) or {}
            error = found.get("error")
            return Report(
                error=None if error is None else str(error),
                files=frozenset(map(str, as_list(found.get("files")) or ())),
                handlers=tuple(map(str, as_list(found.get("handlers")) or ())),
                payloads=as_object(found.get("payloads")) or {},
            )
        return Report()

    def go(self) -> None:
        """Let it serve."""
        self._admit.write(GO)
        self._admit.close()

    def dismiss(self) -> None:
        """End it instead, as it waits."""
        self._admit.close()

    async def wait(self) -> int:
        """Wait for its end and the rest of its output; return its exit code, negative for a signal."""
        code = await self._process.wait()
        await asyncio.wait([self._reading], timeout=_REST_SECONDS)
        self._reading.cancel()
        self._admit.close()
        return code

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def stop(self) -> None:
        """Send SIGTERM and wait; SIGKILL after the service's time."""
        self.signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(asyncio.shield(self._process.wait()), self.service.stop_seconds)
        except TimeoutError:
            self._on_line(f"does not end within {self.service.stop_seconds:g} s of SIGTERM: it is killed")
            self.signal(signal.SIGKILL)
        await self.wait()

    async def _read(self) -> None:
        output = self._process.stdout
        assert output is not None  # noqa: S101 - it was started with a pipe
        rest = b""
        while chunk := await output.read(_READ_BYTES):
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > _LINE_BYTES:
                lines, rest = [*lines, rest], b""
            for line in lines:
                self._add(line)
        if rest:
            self._add(rest)

    def _add(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip("\r")
        self.tail.append(text)
        self._on_line(text)


def end_text(code: int) -> str:
    """Return how a process has ended.

    >>> end_text(1), end_text(-9)
    ('ended with exit code 1', 'ended by SIGKILL')
    """
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"ended by signal {-code}"
