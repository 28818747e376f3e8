"""A PostgreSQL that a test backs up and loses, and the services on a database of it."""

import os
import shutil
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import psutil
import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tests.fixtures.database import Database
from tests.fixtures.roles import role_passwords
from tests.fixtures.services import Fleet, make_fleet, until
from tidewheel.local.daemon import free_port, run_program
from tidewheel.local.postgres import Postgres, find_programs, server_account
from tidewheel.local.stack import StackInfo
from tidewheel.migrations.runner import migrate
from tidewheel.postgres.session import connect
from tidewheel.settings.connections import Connections
from tidewheel.settings.sources import client_variables
from tidewheel.transitions.installation import read_installation

_PASSWORD = uuid4().hex


class Server:
    """A server that is backed up, lost, and restored at the same address."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._backup = folder / "server", folder / "backup"
        self._port = free_port()
        self.postgres = Postgres(self._folder, log=folder / "server.log", port=self._port, password=_PASSWORD)

    def back_up(self) -> None:
        """Take a base backup."""
        account = server_account()
        self._backup.mkdir(mode=0o700)
        if account is not None:
            os.chown(self._backup, account.uid, account.gid)
        here = str(self._backup) if account is None else "/proc/self/cwd"
        address = f"host=127.0.0.1 port={self._port} user=tidewheel"
        command = [str(find_programs(account) / "pg_basebackup"), "-D", here, "-d", address, "--checkpoint=fast"]
        done = run_program(command, cwd=self._backup, account=account, variables={"PGPASSWORD": _PASSWORD})
        assert done.returncode == 0, done.stdout

    def lose(self) -> None:
        """Kill the server with all of its processes, and remove its data."""
        pid = self.postgres.pid
        assert pid is not None
        postmaster = psutil.Process(pid)
        for process in (postmaster, *postmaster.children()):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        until(lambda: self.postgres.pid is None, "the server is gone")
        shutil.rmtree(self._folder / "data")

    def bring_back(self) -> None:
        """Start the server with the data of the backup."""
        self._backup.rename(self._folder / "data")
        self.postgres.start()


@contextmanager
def backed_up_server(folder: Path) -> Generator[Server]:
    """A server of one test's own."""
    made = Server(folder)
    try:
        made.postgres.start()
        yield made
    finally:
        made.postgres.stop("immediate")


@contextmanager
def services_on(server: Server, info: StackInfo, folder: Path) -> Generator[Fleet]:
    """Services on a database of that server."""
    name = f"test_{uuid4().hex[:16]}"
    with psycopg.connect(server.postgres.url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    url = make_conninfo(server.postgres.url, dbname=name)
    migrate(url, roles=role_passwords(url))
    with connect(url, "test") as connection:
        database = Database(url, read_installation(connection, Connections.load()))
    made = make_fleet(database, info.kafka, folder)
    try:
        yield made
    finally:
        database.close()
        made.close()


def restore(fleet: Fleet, *arguments: str, failpoint: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run `tidewheel admin restore`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TIDEWHEEL_", "PG"))}
    own = {"TIDEWHEEL_DATABASE_URL": fleet.database.url, "TIDEWHEEL_TOPIC_PREFIX": fleet.topics.prefix}
    if failpoint is not None:
        point, _, count = failpoint.partition(":")
        own["TIDEWHEEL_FAILPOINT"] = f"restoring.{point}:{count or 'exit'}"
    command = [sys.executable, "-m", "tidewheel.control.cli", "admin", "restore", *arguments]
    environment = {**kept, **client_variables(fleet.kafka), **own}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
