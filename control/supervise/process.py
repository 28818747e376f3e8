"""Supervised processes: their gate, their output in one log, their end.

A thread writes the log, so that a reader that stops reading stops no service: above 10,000 waiting lines, further ones
are counted and dropped.
"""

import asyncio
import json
import os
import queue
import signal
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TextIO

from tidewheel.clock import SystemClock
from tidewheel.control.supervise.child import GO
from tidewheel.control.words import printable
from tidewheel.jobs.strict_json import as_list, as_object

_READ_BYTES = 64 * 1024
_LINE_BYTES = 256 * 1024  # a longer line of output is cut into several
_REPORT_BYTES = 16 * 1024 * 1024  # the paths of a large project
_REST_SECONDS = 1.0  # programs that a service has left behind may hold its output open
_TAIL_LINES = 20
_WAITING_LINES = 10_000
_FLUSH_SECONDS = 2.0
_COLOURS = {"intake": 36, "scheduler": 35, "relay": 34, "executor": 32, "api": 33}
_LEVELS = {"warning": 33, "error": 31, "critical": 31}
_SHOWN = ("time", "level", "logger", "message", "error", "service")
_WIDTH = max(map(len, _COLOURS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A service to keep running."""

    role: str  # its command, such as `intake`
    flags: Sequence[str] = ()
    variables: Mapping[str, str] = field(default_factory=dict[str, str])  # beside those of the supervisor
    stop_seconds: float = 30.0  # between SIGTERM and SIGKILL


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The report of a process that has imported its code."""

    error: str | None = None  # for which the handlers cannot be imported
    files: frozenset[str] = frozenset()  # of the user: imported, or named by the error
    handlers: tuple[str, ...] = ()


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
            self._on_line(f"did not end within {self.service.stop_seconds:g} s of SIGTERM; killing it")
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


class Log:
    """The log of a command that supervises services."""

    def __init__(self, name: str, stream: TextIO | None = None) -> None:
        self._name, self._stream = name, stream or sys.stderr
        self.is_terminal = self._stream.isatty()
        self._coloured = self.is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self._lines: queue.Queue[str | None] = queue.Queue(_WAITING_LINES)
        self._dropped = 0
        self._writer = threading.Thread(target=self._write, name="log", daemon=True)
        self._writer.start()

    def add(self, service: str, text: str) -> None:
        """Add a line of a service: a JSON object, or what its code printed."""
        record = _record(text)
        if record is None:
            record = {"time": _now(), "level": "info", "message": text}
        self._put(service, record)

    def report(self, message: str, *, level: str = "info", **facts: object) -> None:
        """Add a line of the command itself."""
        self._put(self._name, {"time": _now(), "level": level, "message": message, **facts})

    def banner(self, lines: Iterable[str], message: str, facts: Mapping[str, object]) -> None:
        """Add lines for a reader at the terminal; elsewhere one line with the same facts."""
        if self.is_terminal:
            self._queue("\n".join(["", *map(printable, lines), ""]))
        else:
            self._put(self._name, {"time": _now(), "level": "info", "message": message, **facts})

    def close(self) -> None:
        """Write what waits, for at most two seconds."""
        with suppress(queue.Full):
            if self._dropped:
                self._lines.put(self._omission(), timeout=_FLUSH_SECONDS)
            self._lines.put(None, timeout=_FLUSH_SECONDS)
            self._writer.join(_FLUSH_SECONDS)

    def _put(self, service: str, record: Mapping[str, object]) -> None:
        self._queue(self._line(service, record))

    def _line(self, service: str, record: Mapping[str, object]) -> str:
        if self.is_terminal:
            return self._readable(service, record)
        return json.dumps({**record, "service": service}, ensure_ascii=False, default=str)

    def _queue(self, line: str) -> None:
        try:
            if self._dropped:
                self._lines.put_nowait(self._omission())
                self._dropped = 0
            self._lines.put_nowait(line)
        except queue.Full:
            self._dropped += 1

    def _omission(self) -> str:
        message = f"dropped {self._dropped} lines, because this log is not read fast enough"
        return self._line(self._name, {"time": _now(), "level": "warning", "message": message})

    def _write(self) -> None:
        readable = True
        while (line := self._lines.get()) is not None:
            try:
                if readable:
                    self._stream.write(f"{line}\n")
                    self._stream.flush()
            except (OSError, ValueError):  # its reader has gone, which ends no service
                readable = False

    def _readable(self, service: str, record: Mapping[str, object]) -> str:
        level = str(record.get("level", "info"))
        others = {name: str(value) for name, value in record.items() if name not in _SHOWN and value is not None}
        rest = " ".join(f"{name}={value}" for name, value in others.items() if "\n" not in value)
        first, *more = str(record.get("message", "")).splitlines() or [""]
        for text in (str(record.get("error") or ""), *(value for value in others.values() if "\n" in value)):
            more += text.splitlines()
        head = f"{_time_of_day(record)} {self._in(_COLOURS.get(service, 1), f'{service:<{_WIDTH}}')}"
        words = first if level in ("info", "debug") else f"{level}: {first}"
        lines = [f"{head}  {self._in(_LEVELS.get(level), printable(words))}"]
        if rest:
            lines[0] += f"  {self._in(2, printable(rest))}"
        indent = " " * (len("00:00:00.000 ") + _WIDTH + 4)
        return "\n".join([*lines, *(indent + self._in(2, printable(line)) for line in more)])

    def _in(self, colour: int | None, text: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if self._coloured and colour is not None else text


def _record(text: str) -> Mapping[str, object] | None:
    """Return the log record that a line holds; None if it is another text."""
    if not text.startswith('{"time": "'):
        return None
    try:
        return as_object(json.loads(text))
    except (ValueError, RecursionError):
        return None


def _time_of_day(record: Mapping[str, object]) -> str:
    try:
        instant = datetime.fromisoformat(str(record.get("time")))
    except ValueError:
        instant = SystemClock().now()
    return instant.astimezone().strftime("%H:%M:%S.%f")[:-3]


def _now() -> str:
    return SystemClock().now().astimezone(UTC).isoformat(timespec="milliseconds")
