"""The scripts of `compose/deployed` start a primary and its standby, and no second primary.

They run with the real servers. Only the image's own `docker-entrypoint.sh` has a short stand-in.
"""

import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.fixtures.services import until
from tests.strict_types import ROOT
from tidewheel.local.daemon import free_port
from tidewheel.local.postgres import find_programs, server_account

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

PASSWORD = secrets.token_hex(8)

# The order of the image's script: initdb, a server that no network reaches, the scripts of the folder, the server.
ENTRYPOINT = """#!/bin/bash
set -euo pipefail
if [[ ! -s $PGDATA/PG_VERSION ]]; then
    mkdir -p "$PGDATA"
    initdb -D "$PGDATA" --auth-host=scram-sha-256 --encoding=UTF8 --locale=C \\
        --username="$POSTGRES_USER" --pwfile="$POSTGRES_PASSWORD_FILE" >/dev/null
    echo 'host all all all scram-sha-256' >> "$PGDATA/pg_hba.conf"
    pg_ctl -D "$PGDATA" -o "${*:2} -c listen_addresses=''" -w start
    docker_process_sql() { psql -v ON_ERROR_STOP=1 -h "$SOCKETS" -U "$POSTGRES_USER" -d postgres; }
    . ./replication.sh
    pg_ctl -D "$PGDATA" -m fast -w stop
fi
exec "$@"
"""


@dataclass
class Server:
    """One server of the pair, in a folder of its own."""

    folder: Path
    port: int
    peer: int
    peer_volume: Path | None
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def start(self) -> subprocess.Popen[bytes]:
        """Run the script, as the user that PostgreSQL needs."""
        account = server_account()
        variables = {
            "PATH": f"{self.folder}:{find_programs(account)}:{os.environ['PATH']}",
            "PGDATA": str(self.folder / "data" / "docker"),
            "PGPORT": str(self.port),
            "SOCKETS": str(self.folder),
            "PEER": f"host=127.0.0.1 port={self.peer}",
            "PEER_VOLUME": str(self.peer_volume or ""),
            "POSTGRES_USER": "tidewheel",
            "POSTGRES_PASSWORD_FILE": str(self.folder / "password"),
            "LC_ALL": "C",
        }
        command = ["bash", "postgres.sh", "postgres", "-k", str(self.folder), "-c", "wal_receiver_status_interval=1s"]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                user=account and account.uid,
                group=account and account.gid,
                extra_groups=None if account is None else [],
            )
        return self.process

    def value(self, statement: str) -> object:
        """Return a statement's value; None while the server does not answer."""
        address = make_conninfo(
            host="127.0.0.1", port=self.port, user="tidewheel", dbname="postgres", password=PASSWORD, connect_timeout=3
        )
        try:
            with psycopg.connect(address, autocommit=True) as connection:
                cursor = connection.execute(statement.encode())
                row = cursor.fetchone() if cursor.pgresult and cursor.pgresult.nfields else None
        except psycopg.OperationalError:
            return None
        return row and row[0]

    def has_standby(self) -> bool:
        """True while commits here wait for a standby."""
        return self.value("SELECT sync_state FROM pg_stat_replication") == "sync"

    def stop(self) -> None:
        """End it as a crash does; nothing is flushed."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGQUIT)
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:  # bash ignores it while the script waits
                self.process.kill()
                self.process.wait()


@pytest.fixture
def pair() -> Iterator[tuple[Server, Server]]:
    """Two servers that have not started yet, in folders that the user of PostgreSQL may enter."""
    account = server_account()
    ports = [free_port()]
    ports.append(free_port({ports[0]}))
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="tidewheel-pair-") as text:  # a short path, for sockets
        home = Path(text)
        home.chmod(0o755)
        servers: list[Server] = []
        for number in (0, 1):
            folder = home / f"server-{number}"
            folder.mkdir()
            for name in ("postgres.sh", "replication.sh"):
                shutil.copy(ROOT / "compose" / "deployed" / name, folder)
            (folder / "docker-entrypoint.sh").write_text(ENTRYPOINT)
            (folder / "docker-entrypoint.sh").chmod(0o755)
            (folder / "password").write_text(PASSWORD)
            for path in (folder, *folder.iterdir()):
                if account is not None:
                    os.chown(path, account.uid, account.gid)
            servers.append(Server(folder, ports[number], ports[1 - number], home / "server-1" if number == 0 else None))
        first, second = servers
        try:
            yield first, second
        finally:
            for server in servers:
                server.stop()


def fail_over(first: Server, second: Server) -> None:
    """Make the pair, write a row, crash the primary and promote the standby."""
    second.start()
    first.start()
    until(first.has_standby, "commits wait for the standby")
    first.value("CREATE TABLE kept AS SELECT 1 AS value")
    first.stop()
    until(lambda: second.value("SELECT pg_promote(true, 60)"), "the standby is promoted")
    assert second.value("SELECT value FROM kept") == 1


def test_pair_loses_no_commit_at_a_fail_over_and_has_one_primary(pair: tuple[Server, Server]) -> None:
    first, second = pair
    fail_over(first, second)
    refused = first.start()
    assert refused.wait(60) == 1
    assert "empty this server's volume" in first.log

    shutil.rmtree(first.folder / "data")
    first.start()
    until(lambda: second.value("SELECT count(*) FROM pg_stat_replication") == 1, "the old primary follows the new one")
    second.value("ALTER SYSTEM RESET synchronous_standby_names")
    second.value("ALTER SYSTEM SET synchronous_standby_names = '*'")
    second.value("SELECT pg_reload_conf()")
    until(second.has_standby, "commits wait for the old primary")
    second.value("INSERT INTO kept VALUES (2)")
    # A commit waits until the standby has written it, not until its readers see it.
    until(lambda: first.value("SELECT count(*) FROM kept") == 2, "the standby has both rows")
    assert first.value("SELECT pg_is_in_recovery()") is True


def test_former_primary_that_starts_first_waits_for_the_server_that_replaced_it(pair: tuple[Server, Server]) -> None:
    first, second = pair
    fail_over(first, second)
    second.stop()
    refused = first.start()
    until(lambda: "wait for" in first.log, "the former primary waits")
    assert first.value("SELECT 1") is None
    second.start()
    until(lambda: second.value("SELECT value FROM kept") == 1, "the new primary serves")
    assert refused.wait(60) == 1
    assert "empty this server's volume" in first.log


def test_newer_server_keeps_its_volume_beside_a_former_primary(pair: tuple[Server, Server]) -> None:
    """An operator has started the former primary without its standby."""
    first, second = pair
    fail_over(first, second)
    second.stop()
    with (first.folder / "data" / "docker" / "postgresql.auto.conf").open("a") as configuration:
        configuration.write("synchronous_standby_names = ''\n")
    first.start()
    until(lambda: first.value("SELECT 1") == 1, "the former primary serves")
    assert second.start().wait(60) == 1
    assert "empty its volume, never this one's" in second.log
    first.stop()
    second.start()
    until(lambda: second.value("SELECT value FROM kept") == 1, "the new primary serves, with its commits")


def test_primary_returns_beside_its_standby(pair: tuple[Server, Server]) -> None:
    first, second = pair
    second.start()
    first.start()
    until(first.has_standby, "commits wait for the standby")
    second.stop()
    first.stop()
    first.start()
    second.start()
    until(first.has_standby, "commits wait for the standby again")


def test_server_that_lost_its_volume_makes_no_data(pair: tuple[Server, Server]) -> None:
    first, second = pair
    second.start()
    first.start()
    until(first.has_standby, "commits wait for the standby")
    first.value("CREATE TABLE kept AS SELECT 1 AS value")
    first.stop()
    second.stop()
    shutil.rmtree(first.folder / "data")
    first.start()
    until(lambda: "wait for the primary" in first.log, "the server without data waits")
    second.start()
    until(lambda: second.value("SELECT pg_promote(true, 60)"), "the standby is promoted")
    until(lambda: first.value("SELECT value FROM kept") == 1, "the server without data has copied the new primary")
    assert first.value("SELECT pg_is_in_recovery()") is True
