"""A Docker engine of its own: all that it writes is in one folder, and its pid ends it.

It has no default bridge, reads no configuration of this machine, and publishes what a Compose file publishes.
"""

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from shutil import which
from types import TracebackType
from typing import IO, Self

import psutil

from tidewheel.errors import StackError
from tidewheel.local.daemon import is_free, log_tail
from tools.containers.progress import wait_for

PACKAGES = {"dockerd": "docker.io", "docker": "docker.io", "mmdebstrap": "mmdebstrap", "git": "git"}
_START_SECONDS = 60.0
_STOP_SECONDS = 60.0
_COMMAND_SECONDS = 1800.0  # the longest compiles Docker Compose: 3 minutes of CPU


def check_machine(command: str, packages: Mapping[str, str], ports: Sequence[int]) -> None:
    """Raise StackError with the remedy if this machine cannot run `command`.

    Args:
        packages: The Debian package of each program.
    """
    for fault in _faults(command, packages, ports):
        raise StackError(fault)


def _faults(command: str, packages: Mapping[str, str], ports: Sequence[int]) -> Iterator[str]:
    if os.geteuid() != 0:
        yield f"a Docker engine needs root: run `sudo {command}`"
    for program, package in packages.items():
        if which(program) is None:
            yield f"the program {program} is missing: run `apt-get install {package}`"
    if which("go") is None:
        remedy = f"run `sudo env PATH=$PATH {command}`, or install golang-go of Debian 13 or newer"
        yield f"the program go is not in PATH, which sudo replaces: {remedy}"
    for process in psutil.process_iter(["name"]):
        if process.info["name"] == "dockerd":
            there = f"another Docker engine runs (pid {process.pid}), whose network rules this one would replace"
            yield f"{there}: end it with its containers (`kill {process.pid}`), or use another machine"
    if busy := [str(port) for port in ports if not is_free(port)]:
        yield f"ports of 127.0.0.1 are in use: {', '.join(busy)}; end the programs there, which `ss -ltnp` lists"


def run(
    command: Sequence[str | Path],
    *,
    folder: Path | None = None,
    variables: dict[str, str] | None = None,
    stdin: IO[bytes] | None = None,
) -> str:
    """Run a command, and return its standard output; raise StackError with its last lines if it fails.

    What the command has started ends with it, also where this process is interrupted.
    """
    shown = f"`{' '.join(map(str, command))}`"
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, **(variables or {})},
        stdin=stdin or subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        printed, errors = process.communicate(timeout=_COMMAND_SECONDS)
    except BaseException as error:
        _end_group(process)
        if isinstance(error, subprocess.TimeoutExpired):
            message = f"{shown} did not end within {_COMMAND_SECONDS / 60:.0f} minutes"
            raise StackError(message) from error
        raise
    if process.returncode != 0:
        message = f"{shown} ended with {process.returncode}: {log_tail(printed + errors)}"
        raise StackError(message)
    return printed


def _end_group(process: subprocess.Popen[str]) -> None:
    """End a command with the programs that it has started; they may remove their files first."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=_STOP_SECONDS)
            return


class Engine:
    """The engine and its commands; a context manager that ends the engine with all its containers."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._folder, self._options = folder, options
        self._log = folder / "dockerd.log"
        self._socket = f"unix://{folder / 'docker.sock'}"
        self.variables = {"DOCKER_HOST": self._socket, "DOCKER_CONFIG": str(folder), "DOCKER_BUILDKIT": "0"}

    def __enter__(self) -> Self:
        configuration = self._folder / "daemon.json"
        configuration.write_text("{}")
        where = {"config-file": configuration, "data-root": self._folder / "data", "exec-root": self._folder / "exec"}
        where |= {"pidfile": self._folder / "dockerd.pid"}
        options = [f"--{name}={path}" for name, path in where.items()]
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                ["dockerd", *options, *self._options, f"--host={self._socket}", "--bridge=none"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C goes to this program alone, which then ends the engine
            )
        try:
            wait_for(self._answers, "the Docker engine answers", _START_SECONDS)
        except StackError as error:
            self._stop()
            message = f"{error}; its log ends with: {log_tail(self.log())}"
            raise StackError(message) from error
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def docker(self, *arguments: str | Path, stdin: IO[bytes] | None = None) -> str:
        """Run a command of Docker to its end; return what it prints."""
        return run(["docker", *arguments], variables=self.variables, stdin=stdin)

    def log(self) -> str:
        """Return what the engine has logged."""
        return self._log.read_text(errors="replace")

    def _answers(self) -> bool:
        if self._process.poll() is not None:
            message = "the Docker engine ended while starting"
            raise StackError(message)
        asked = ["docker", "version"]
        return (
            subprocess.run(asked, env={**os.environ, **self.variables}, capture_output=True, check=False).returncode
            == 0
        )

    def _stop(self) -> None:
        """End the engine, which ends its containers first, and unmount what it left."""
        started = psutil.Process(self._process.pid).children(recursive=True) if self._process.poll() is None else []
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for process in psutil.wait_procs(started, timeout=5)[1]:
            process.kill()
        left = [part.mountpoint for part in psutil.disk_partitions(all=True)]
        for place in left:
            if Path(place).is_relative_to(self._folder):
                run(["umount", "--lazy", place])
