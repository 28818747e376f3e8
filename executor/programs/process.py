"""Programs as the executor sees them: started by the keeper's process, read in bounded pieces, ended as a whole."""

import asyncio
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from typing import IO, cast

from tidewheel.executor.programs import supervisor as keeper
from tidewheel.executor.programs.supervisor import KILL, LENGTH, TERMINATE, Answer

_PR_SET_DUMPABLE = 4  # Source: prctl(2)
_BUSY_SECONDS = 0.01
_CLOSE_SECONDS = 5.0
_REST_AFTER_BYTES = 1 << 20
_REST_SECONDS = 0.01  # at most 100 MiB a second, of which lines of one letter take the loop a quarter of its time

Sink = Callable[[bytes], None]


def hide_from_programs() -> None:
    """Let no program of this user read this process's environment or memory; one of root's can all the same."""
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


class KeeperGone(Exception):
    """The process that starts programs cannot be reached: nothing was started."""


@dataclass(frozen=True, slots=True)
class Command:
    """What is to be run.

    Args:
        program: Path of the file.
        argv: Its arguments, its own name first.
        env: Its whole environment.
        cwd: Absolute path; None is a new folder, removed afterwards.
        limits: By their names in setrlimit(2).
    """

    program: str
    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str | None
    limits: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Ending:
    """How a program ended; nothing of it is left.

    Args:
        exit_code: Its exit code, where it ended by itself.
        signal_name: The signal that killed it, such as SIGKILL.
        errno: Why it was never started, as the system says it.
        message: The same in words.
    """

    exit_code: int | None = None
    signal_name: str | None = None
    errno: int | None = None
    message: str = ""


class Program:
    """One program that is kept."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[Ending] = loop.create_future()
        self._drained: list[asyncio.Future[None]] = []
        self._transports: list[asyncio.BaseTransport] = []
        self._control: asyncio.Transport | None = None

    def terminate(self) -> None:
        """SIGTERM to its group."""
        self._tell(TERMINATE)

    def kill(self) -> None:
        """SIGKILL to its group, and to what has left it."""
        self._tell(KILL)

    async def drained(self, seconds: float) -> None:
        """Wait until all that it has written is read; who holds its pipes for longer is not waited for."""
        if self._drained:
            await asyncio.wait(self._drained, timeout=seconds)

    def close(self) -> None:
        """Let go of it; one that still runs is killed."""
        for transport in self._transports:
            transport.close()

    async def connect(
        self, control: socket.socket, output: IO[bytes], errors: IO[bytes], sinks: Sequence[Sink]
    ) -> None:
        """Take over what leads to it."""
        loop = asyncio.get_running_loop()
        self._control, _ = await loop.create_unix_connection(lambda: _Control(self.ended), sock=control)
        self._transports.append(self._control)
        for pipe, sink in zip((output, errors), sinks, strict=True):
            drained: asyncio.Future[None] = loop.create_future()
            self._drained.append(drained)
            transport, _ = await loop.connect_read_pipe(_pipe(sink, drained), pipe)
            self._transports.append(transport)

    def request(self, command: Command) -> None:
        """Say what it is."""
        assert self._control is not None  # noqa: S101 - connected
        written = json.dumps(asdict(command)).encode()
        self._control.write(LENGTH.pack(len(written)) + written)

    def _tell(self, word: bytes) -> None:
        if self._control is not None and not self._control.is_closing():
            self._control.write(word)


class Keeper:
    """Starts programs; its process is started with the first, and again should it be gone."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._programs: set[Program] = set()

    async def start(self, command: Command, payload: bytes, sinks: Sequence[Sink]) -> Program:
        """Start a program.

        Args:
            command: The program.
            payload: Its standard input: a file, so that it may read it or not.
            sinks: Told what it writes to standard output, and what to standard error.

        Raises:
            KeeperGone: There is no process that could start it, now.
            OSError: This process has no descriptors left.
        """
        program = Program()
        with ExitStack() as theirs, ExitStack() as ours:
            control, far = socket.socketpair()
            theirs.callback(far.close)
            ours.callback(control.close)
            given = [far.fileno(), theirs.enter_context(_file(payload)).fileno()]
            pipes: list[IO[bytes]] = []
            for _ in sinks:
                reads, writes = os.pipe()
                theirs.callback(os.close, writes)
                pipes.append(ours.enter_context(os.fdopen(reads, "rb", 0)))
                given.append(writes)
            await self._send(given)
            theirs.close()
            try:
                await program.connect(control, pipes[0], pipes[1], sinks)
            except BaseException:
                program.close()
                raise
            ours.pop_all()
        self._programs.add(program)
        program.ended.add_done_callback(lambda _: self._programs.discard(program))
        program.request(command)
        return program

    async def close(self) -> None:
        """Kill what runs, and end the process."""
        for program in self._programs:
            program.kill()
        if self._programs:
            await asyncio.wait([program.ended for program in self._programs], timeout=_CLOSE_SECONDS)
        self._let_go()

    async def _send(self, descriptors: list[int]) -> None:
        again = True
        while True:
            executor = self._socket or self._begin()
            try:
                socket.send_fds(executor, [b"run"], descriptors)
            except BlockingIOError:
                await asyncio.sleep(_BUSY_SECONDS)
            except OSError as error:
                self._let_go()
                if not again:
                    message = f"the process that starts programs is gone: {error}"
                    raise KeeperGone(message) from error
                again = False
            else:
                return

    def _begin(self) -> socket.socket:
        """Start the process."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-I", "-S", "-X", "utf8", keeper.__file__, str(theirs.fileno())]
            # Its environment is for every program to read. A Python of shared libraries may be found by this alone.
            environment = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
            try:
                self._process = subprocess.Popen(  # noqa: S603 - our own file
                    command,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,  # a terminal's Ctrl-C is for the executor, which drains
                )
            except OSError as error:
                ours.close()
                message = f"the process that starts programs cannot be started: {error}"
                raise KeeperGone(message) from error
        ours.setblocking(False)  # noqa: FBT003 - the socket's own signature
        self._socket = ours
        return ours

    def _let_go(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_CLOSE_SECONDS)
            self._process = None


class _Control(asyncio.Protocol):
    """Hears how the program ended."""

    def __init__(self, ended: "asyncio.Future[Ending]") -> None:
        self._ended, self._read = ended, bytearray()

    def data_received(self, data: bytes) -> None:
        self._read += data
        line, newline, _ = self._read.partition(b"\n")
        if newline and not self._ended.done():
            self._ended.set_result(_ending(cast("Answer", json.loads(line))))

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        if not self._ended.done():
            self._ended.set_result(Ending(message="its keeper is gone"))


class _Pipe(asyncio.Protocol):
    """Passes on what arrives, with a rest after each mebibyte: who writes without end must not have the loop alone."""

    def __init__(self, sink: Sink, drained: "asyncio.Future[None]") -> None:
        self._sink, self._drained = sink, drained
        self._transport: asyncio.ReadTransport | None = None
        self._read = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.ReadTransport", transport)

    def data_received(self, data: bytes) -> None:
        self._sink(data)
        self._read += len(data)
        if self._read >= _REST_AFTER_BYTES and self._transport is not None:
            self._read = 0
            self._transport.pause_reading()
            asyncio.get_running_loop().call_later(_REST_SECONDS, self._go_on, self._transport)

    def _go_on(self, transport: asyncio.ReadTransport) -> None:
        if not transport.is_closing():
            transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        if not self._drained.done():
            self._drained.set_result(None)


def _pipe(sink: Sink, drained: "asyncio.Future[None]") -> Callable[[], _Pipe]:
    return lambda: _Pipe(sink, drained)


def _file(payload: bytes) -> IO[bytes]:
    """A file in memory that holds the payload, at its beginning."""
    file = os.fdopen(os.memfd_create("payload"), "wb", 0)
    written = 0
    while written < len(payload):
        written += file.write(payload[written:])
    file.seek(0)
    return file


def _ending(answer: Answer) -> Ending:
    if "exit" in answer:
        return Ending(exit_code=answer["exit"])
    if "signal" in answer:
        return Ending(signal_name=_signal_name(answer["signal"]))
    return Ending(errno=answer.get("errno"), message=answer.get("message", ""))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"  # a real-time signal
