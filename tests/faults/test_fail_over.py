"""The primary is killed under load and its synchronous standby promoted.

Services follow to the standby. Nothing is lost or doubled.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import psutil
import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.faults.workload import ATTEMPTS, DOOMED, Workload, now
from tests.fixtures.database import Database
from tests.fixtures.oracle import Oracle
from tests.fixtures.roles import role_passwords
from tests.fixtures.services import LONG_LEASE, Fleet, make_fleet
from tidewheel.local.ports import free_port
from tidewheel.local.postgres import Postgres
from tidewheel.local.stack import StackInfo
from tidewheel.migrations.runner import migrate
from tidewheel.postgres.session import connect
from tidewheel.settings.connections import Connections
from tidewheel.transitions.installation import read_installation

pytestmark = [pytest.mark.postgres, pytest.mark.kafka, pytest.mark.slow]

_PASSWORD = uuid4().hex


@dataclass
class Pair:
    """A primary with its standby."""

    primary: Postgres
    standby: Postgres

    def address(self, name: str) -> str:
        """The address of a database, on whichever server accepts writes."""
        ports = f"{port_of(self.primary)},{port_of(self.standby)}"
        return make_conninfo(self.primary.url, host="127.0.0.1,127.0.0.1", port=ports, dbname=name)

    def fail_over(self) -> None:
        """Kill the primary with all of its processes, and promote the standby."""
        pid = self.primary.pid
        assert pid is not None
        postmaster = psutil.Process(pid)
        for process in (postmaster, *postmaster.children()):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        with psycopg.connect(self.standby.url, autocommit=True) as connection:
            assert connection.execute("SELECT pg_promote(true, 60)").fetchone() == (True,)


def port_of(server: Postgres) -> str:
    """The port of a server."""
    return str(conninfo_to_dict(server.url)["port"])


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """A primary whose commits wait for a standby."""
    port = free_port()
    primary = Postgres(tmp_path / "primary", log=tmp_path / "primary.log", port=port, password=_PASSWORD)
    standby = Postgres(
        tmp_path / "standby",
        log=tmp_path / "standby.log",
        port=free_port({port}),
        password=_PASSWORD,
        primary=primary,
    )
    try:
        primary.start()
        standby.start()
        with psycopg.connect(primary.url, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            connection.execute("SELECT pg_reload_conf()")
        yield Pair(primary, standby)
    finally:
        primary.stop("immediate")
        standby.stop("immediate")


@pytest.fixture
def fleet(pair: Pair, info: StackInfo, tmp_path: Path) -> Iterator[Fleet]:
    """Services on a database of that pair."""
    name = f"test_{uuid4().hex[:16]}"
    with psycopg.connect(pair.primary.url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    url = pair.address(name)
    migrate(url, roles=role_passwords(url))
    with connect(url, "test") as connection:
        database = Database(url, read_installation(connection, Connections.load()))
    made = make_fleet(database, info.kafka, tmp_path)
    try:
        yield made
    finally:
        database.close()
        made.close()


def test_services_follow_a_promoted_standby(pair: Pair, fleet: Fleet, oracle: Oracle) -> None:
    work = Workload(fleet, oracle)
    work.submit()
    held = work.hold()
    fleet.start_all(LEASE=LONG_LEASE)
    held.wait_begun(1)
    work.wait_recovered_but([held], now())
    work.trigger("errand", 20)
    killed = now()
    pair.fail_over()
    promoted = now()
    work.wait_recovered_but([held], promoted)
    fired = "SELECT EXISTS (SELECT FROM runs WHERE cause = 'timer' AND created_at > %s)"
    fleet.until(lambda: fleet.database.value(fired, [promoted]), f"a timer fires; killed {killed}, promoted {promoted}")
    held.let_go()
    work.finish()
    fleet.stop()
    oracle.check(failures=DOOMED, attempts=ATTEMPTS)
