"""Supervise the programs of shell targets: a process of its own, started by the executor.

No process that a program starts outlives its attempt. For each program this process forks a supervisor. That starts the
program in a session of its own and adopts the daemons it leaves behind. It kills all of them once the program has
ended, once the executor requests it, or once the executor is gone: its end of a socket closes, however it dies.

This runs as a file, not as a module. It imports nothing of Tidewheel and has one thread, so a fork is cheap and may run
Python before it becomes the program. Its environment is empty, since programs can read it.
"""

import contextlib
import ctypes
import errno
import json
import os
import resource
import select
import shutil
import signal
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict, cast

TERMINATE, KILL = b"t", b"k"  # commands to the supervisor of one program
LENGTH = struct.Struct("!I")  # goes before a command
LEASE_OVER = errno.ETIME  # the error of a start that came too late; execve(2) has no such error
DESCRIPTORS = 4  # control, standard input, output, error

_PR_SET_PDEATHSIG = 1  # Source: prctl(2)
_PR_SET_CHILD_SUBREAPER = 36
_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # as in tidewheel.clock
_SHUTDOWN_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # for the executor; this process ends with it
_RESET = (*_SHUTDOWN_SIGNALS, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD)  # ignored here or by Python
_AFTER_XCPU_SECONDS = 5  # between SIGXCPU, which names the limit, and SIGKILL
_POLL_SECONDS = 0.01
_MAX_POLLS = 500  # then a process that survives SIGKILL is left: it hangs in the kernel


class Command(TypedDict):
    """A program to run."""

    argv: list[str] | tuple[str, ...]  # absolute path of the file, and its arguments
    env: Mapping[str, str]
    cwd: str | None  # absolute path without links; None is a new folder that is removed afterwards
    limits: Mapping[str, int]  # by their names in setrlimit(2)
    not_after: float  # end of the executor's lease, in seconds of the clock that goes on while processes are stopped


class ProgramExit(TypedDict, total=False):
    """The end of a program: an exit code, a signal's number, or the error of its start."""

    exit: int
    signal: int
    errno: int
    message: str


def main() -> None:
    """Fork a supervisor for each set of descriptors that arrives, until the executor is gone."""
    for number in _SHUTDOWN_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # supervisors leave no zombies
    libc = ctypes.CDLL(None)
    executor = socket.socket(fileno=int(sys.argv[1]))
    while True:
        message, descriptors, _, _ = socket.recv_fds(executor, 16, DESCRIPTORS)
        if not message:
            return
        # If the fork fails, the descriptors close and the executor sees that the supervisor is gone.
        with contextlib.suppress(OSError):
            if len(descriptors) == DESCRIPTORS and os.fork() == 0:
                try:
                    executor.close()
                    _supervise(libc, *descriptors)
                finally:
                    os._exit(0)
        for descriptor in descriptors:
            os.close(descriptor)


def _supervise(libc: ctypes.CDLL, control_fd: int, *streams: int) -> None:
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    for descriptor in (control_fd, *streams):
        os.set_inheritable(descriptor, False)  # noqa: FBT003 - the system's own signature
    control = socket.socket(fileno=control_fd)
    woken = _wake_on_children()
    command = _read(control)
    folder = None
    try:
        folder = tempfile.mkdtemp(prefix="tidewheel-") if command["cwd"] is None else None
        program = _start(libc, command, folder or command["cwd"] or "/", streams)
    except OSError as error:
        _send_exit(control, {"errno": error.errno or errno.EINVAL, "message": str(error.strerror or error)})
    else:
        for descriptor in streams:
            os.close(descriptor)
        _wait(control, woken, program)
        _send_exit(control, _clear(program))
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def _wake_on_children() -> int:
    woken, wakes = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wakes, False)
    signal.signal(signal.SIGCHLD, _wake)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    return woken


def _wake(number: int, frame: object) -> None:
    """Do nothing: the wakeup descriptor has received the signal."""


def _read(control: socket.socket) -> Command:
    with control.makefile("rb", buffering=0) as stream:
        (length,) = LENGTH.unpack(_exactly(stream.fileno(), LENGTH.size))
        return cast("Command", json.loads(_exactly(stream.fileno(), length)))


def _exactly(descriptor: int, length: int) -> bytes:
    read = b""
    while len(read) < length:
        piece = os.read(descriptor, length - len(read))
        if not piece:
            os._exit(0)  # the executor is gone, and nothing has begun
        read += piece
    return read


def _send_exit(control: socket.socket, answer: ProgramExit) -> None:
    with contextlib.suppress(OSError):  # the executor is gone
        control.sendall(json.dumps(answer).encode() + b"\n")


def _start(libc: ctypes.CDLL, command: Command, cwd: str, streams: tuple[int, ...]) -> int:
    failure_reads, failure_writes = os.pipe()
    supervisor = os.getpid()
    program = os.fork()
    if program == 0:
        step = cwd
        try:
            os.setsid()
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != supervisor:
                os._exit(1)
            _prepare(streams, cwd)
            if command["cwd"] is not None and os.getcwd() != cwd:  # noqa: PTH109 - a string, as compared
                raise OSError(errno.ELOOP, "it was replaced by a link")  # noqa: TRY301 - reported below
            step = command["argv"][0]
            _limit(command["limits"])
            _check_lease(command["not_after"])
            os.execve(command["argv"][0], command["argv"], command["env"])  # noqa: S606 - no shell, on purpose
        except OSError as error:
            os.write(failure_writes, f"{error.errno}:{step}: {error.strerror}".encode(errors="replace"))
        except ValueError as error:  # text that no program can receive, such as half a surrogate pair
            os.write(failure_writes, f"{errno.EINVAL}:{step!a}: {error}".encode(errors="replace"))
        finally:
            os._exit(127)
    os.close(failure_writes)
    with os.fdopen(failure_reads, "rb") as failure:  # ends when the program begins
        number, _, message = failure.read().decode().partition(":")
    if message:
        os.waitpid(program, 0)
        raise OSError(int(number), message)
    return program


def _prepare(streams: tuple[int, ...], cwd: str) -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in _RESET:
        signal.signal(number, signal.SIG_DFL)
    for target, descriptor in enumerate(streams):
        os.dup2(descriptor, target)
    os.chdir(cwd)


def _check_lease(not_after: float) -> None:
    if time.clock_gettime(_BOOT_CLOCK) > not_after:
        raise OSError(LEASE_OVER, os.strerror(LEASE_OVER))


def _limit(limits: Mapping[str, int]) -> None:
    for name, limit in limits.items():
        kind = getattr(resource, name)
        _, hard = resource.getrlimit(kind)
        hard_limit = limit + _AFTER_XCPU_SECONDS if name == "RLIMIT_CPU" else limit
        hard_limit = hard_limit if hard == resource.RLIM_INFINITY else min(hard_limit, hard)
        resource.setrlimit(kind, (min(limit, hard_limit), hard_limit))


def _wait(control: socket.socket, woken: int, program: int) -> None:
    """Wait until the program has ended, and carry out the executor's commands."""
    watched: list[int] = [control.fileno(), woken]
    while not _ended(program):
        ready, _, _ = select.select(watched, [], [])
        if woken in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(woken, 4096)
        if control.fileno() in ready:
            command = _read_command(control)
            if command and KILL not in command:
                os.killpg(program, signal.SIGTERM)
                os.killpg(program, signal.SIGCONT)  # a stopped process would not act on SIGTERM
            else:
                os.killpg(program, signal.SIGKILL)
                watched = [woken]


def _read_command(control: socket.socket) -> bytes:
    try:
        return control.recv(64)
    except OSError:
        return b""


def _ended(program: int) -> bool:
    """Return True if the program has ended; reap adopted processes that have ended."""
    while (seen := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
        if seen.si_pid == program:
            return True
        os.waitpid(seen.si_pid, 0)
    return False


def _clear(program: int) -> ProgramExit:
    """Kill the processes that an ended program leaves behind; return its end."""
    os.killpg(program, signal.SIGKILL)  # its number is not reused before it is reaped
    _, status = os.waitpid(program, 0)
    _kill_adopted()
    code = os.waitstatus_to_exitcode(status)
    return {"exit": code} if code >= 0 else {"signal": -code}


def _kill_adopted() -> None:
    """Kill adopted daemons, and the processes that these leave behind."""
    for _ in range(_MAX_POLLS):
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        for child in _children():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGKILL)
        select.select([], [], [], _POLL_SECONDS)


def _children() -> list[int]:
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The name may contain blanks and brackets, the fields after the last bracket none. Source: proc_pid_stat(5)
            _, parent = entry.read_text(errors="replace").rpartition(")")[2].split()[:2]
            if int(parent) == os.getpid():
                found.append(int(entry.parent.name))
    return found


if __name__ == "__main__":
    main()
