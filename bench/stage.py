"""A stack of its own for a measurement, and the services as processes."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from psycopg import Connection

from tidewheel.db import connect
from tidewheel.local.stack import LocalStack
from tidewheel.migrations.runner import migrate
from tidewheel.settings import Connections
from tidewheel.topics import Topics, apply_topics
from tidewheel.transitions.installation import Installation, read_installation

BUFFERS_MEGABYTES = 1024  # as the peers were measured, so that figures stand side by side
WAL_MEGABYTES = 8192


@dataclass(frozen=True, slots=True)
class Stage:
    """A running stack, migrated, with its topics."""

    url: str
    bootstrap: str
    installation: Installation
    environment: dict[str, str]
    home: Path

    def connect(self) -> Connection[tuple[object, ...]]:
        """One connection."""
        return connect(self.url, "tidewheel-bench")

    @contextmanager
    def services(self, *commands: Sequence[str]) -> Generator[list[psutil.Process]]:
        """Service processes, stopped at the end."""
        running = [self._start(command) for command in commands]
        try:
            yield [psutil.Process(process.pid) for process in running]
        finally:
            for process in running:
                process.terminate()
            for process in running:
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()

    def _start(self, command: Sequence[str]) -> "subprocess.Popen[bytes]":
        log = (self.home / f"{command[0]}.log").open("ab")
        program = [sys.executable, "-m", "tidewheel.control.cli", *command, "--log-level", "warning"]
        return subprocess.Popen(program, env=self.environment, stdout=log, stderr=log)


@contextmanager
def stage() -> Generator[Stage]:
    """A fresh stack in a temporary folder, removed at the end."""
    with tempfile.TemporaryDirectory(prefix="tidewheel-bench-") as folder:
        stack = LocalStack(
            Path(folder) / "stack",
            shared_buffers_megabytes=BUFFERS_MEGABYTES,
            max_wal_size_megabytes=WAL_MEGABYTES,
        )
        try:
            info = stack.up()
            migrate(info.database_url)
            apply_topics({"bootstrap.servers": info.bootstrap}, Topics())
            settings = Connections.load(database_url=info.database_url, kafka_bootstrap=info.bootstrap)
            with connect(info.database_url, "tidewheel-bench") as connection:
                installation = read_installation(connection, settings)
            environment = os.environ | {
                "TIDEWHEEL_DATABASE_URL": info.database_url,
                "TIDEWHEEL_KAFKA_BOOTSTRAP": info.bootstrap,
            }
            yield Stage(info.database_url, info.bootstrap, installation, dict(environment), Path(folder))
        finally:
            stack.down(erase=True)
