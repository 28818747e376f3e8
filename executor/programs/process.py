"""Programs of shell targets, from the executor's side: start, bounded reads, and end.

A program and all processes that it has started end together.
"""

import asyncio
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import IO, cast

from tidewheel.executor.programs import supervisor
from tidewheel.executor.programs.supervisor import KILL, LENGTH, TERMINATE, Command, ProgramExit

_PR_SET_DUMPABLE = 4  # Source: prctl(2)
_BUSY_SECONDS = 0.01
_CLOSE_SECONDS = 5.0
_REST_AFTER_BYTES = 1 << 20
_REST_SECONDS = 0.01  # at most 100 MiB/s; reading that as lines of one letter takes a quarter of the loop's time

Sink = Callable[[bytes], None]


def hide_from_programs() -> None:
    """Forbid programs of this user to read this process's environment and memory; root still can."""
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


class SupervisorGone(Exception):
    """The process that starts programs is gone: no program was started."""


@dataclass(frozen=True, slots=True)
class ProgramEnd:
    """The end of a program, with all its processes; `errno` is set if it was never started."""

    exit_code: int | None = None
    signal_name: str | None = None
    errno: int | None = None
    message: str = ""


class Program:
    """One program."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[ProgramEnd] = loop.create_future()
        self._drained: list[asyncio.Future[None]] = []
        self._transports: list[asyncio.BaseTransport] = []
        self._control: asyncio.Transport | None = None

    def terminate(self) -> None:
        """Send SIGTERM to its group."""
        self._send_command(TERMINATE)

    def kill(self) -> None:
        """Send SIGKILL to its group, and to processes that have left the group."""
        self._send_command(KILL)

    async def drained(self, seconds: float) -> None:
        """Wait until all its output is read, up to this time: another process may keep its pipes open."""
        if self._drained:
            await asyncio.wait(self._drained, timeout=seconds)

    def close(self) -> None:
        """Close its pipes; a program that still runs is killed."""
        for transport in self._transports:
            transport.close()

    async def connect(
        self, control: socket.socket, output: IO[bytes], errors: IO[bytes], sinks: Sequence[Sink]
    ) -> None:
        """Take over its socket and pipes."""
        loop = asyncio.get_running_loop()
        self._control, _ = await loop.create_unix_connection(lambda: _Control(self.ended), sock=control)
        self._transports.append(self._control)
        for pipe, sink in zip((output, errors), sinks, strict=True):
            drained: asyncio.Future[None] = loop.create_future()
            self._drained.append(drained)
            transport, _ = await loop.connect_read_pipe(partial(_Pipe, sink, drained), pipe)
            self._transports.append(transport)

    def request(self, command: Command) -> None:
        """Send the program to its supervisor."""
        assert self._control is not None  # noqa: S101 - connected
        written = json.dumps(command).encode()
        self._control.write(LENGTH.pack(len(written)) + written)

    def _send_command(self, command: bytes) -> None:
        if self._control is not None and not self._control.is_closing():
            self._control.write(command)


class ProgramStarter:
    """Starts programs; starts its process with the first one, and again if it is gone."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._programs: set[Program] = set()

    async def start(self, command: Command, payload: bytes, sinks: Sequence[Sink]) -> Program:
        """Start a program; the sinks get its standard output, and its standard error.

        The payload is its standard input: a file, so that it may read it or not.

        Raises:
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
        """Kill running programs and end the process."""
        for program in self._programs:
            program.kill()
        if self._programs:
            await asyncio.wait([program.ended for program in self._programs], timeout=_CLOSE_SECONDS)
        self._end_process()

    async def _send(self, descriptors: list[int]) -> None:
        again = True
        while True:
            executor = self._socket or self._start_process()
            try:
                socket.send_fds(executor, [b"run"], descriptors)
            except BlockingIOError:
                await asyncio.sleep(_BUSY_SECONDS)
            except OSError as error:
                self._end_process()
                if not again:
                    raise SupervisorGone(f"the process that starts programs is gone: {error}") from error
                again = False
            else:
                return

    def _start_process(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-I", "-S", "-X", "utf8", supervisor.__file__, str(theirs.fileno())]
            # Every program can read its environment. Some Pythons find their shared library by this variable alone.
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
                raise SupervisorGone(f"the process that starts programs cannot be started: {error}") from error
        ours.setblocking(False)  # noqa: FBT003 - the socket's own signature
        self._socket = ours
        return ours

    def _end_process(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_CLOSE_SECONDS)
            self._process = None


class _Control(asyncio.Protocol):
    def __init__(self, ended: "asyncio.Future[ProgramEnd]") -> None:
        self._ended, self._read = ended, bytearray()

    def data_received(self, data: bytes) -> None:
        self._read += data
        line, newline, _ = self._read.partition(b"\n")
        if newline and not self._ended.done():
            self._ended.set_result(_program_end(cast("ProgramExit", json.loads(line))))

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        if not self._ended.done():
            self._ended.set_result(ProgramEnd(message="its supervisor is gone"))


class _Pipe(asyncio.Protocol):
    """Passes output on, with a pause after each mebibyte: endless output must not occupy the loop."""

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
            asyncio.get_running_loop().call_later(_REST_SECONDS, self._resume, self._transport)

    def _resume(self, transport: asyncio.ReadTransport) -> None:
        if not transport.is_closing():
            transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        if not self._drained.done():
            self._drained.set_result(None)


def _file(payload: bytes) -> IO[bytes]:
    file = os.fdopen(os.memfd_create("payload"), "wb", 0)
    written = 0
    while written < len(payload):
        written += file.write(payload[written:])
    file.seek(0)
    return file


def _program_end(answer: ProgramExit) -> ProgramEnd:
    if "exit" in answer:
        return ProgramEnd(exit_code=answer["exit"])
    if "signal" in answer:
        return ProgramEnd(signal_name=_signal_name(answer["signal"]))
    return ProgramEnd(errno=answer.get("errno"), message=answer.get("message", ""))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"  # a real-time signal
