"""Servers of some tests' own, to be stopped and restarted: all other tests share theirs.

A `tidewheel dev` of another test would start a shared broker that is down, and stop the stack at its end.
"""

import threading
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import psycopg
from confluent_kafka import KafkaException
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tests.fixtures.database import Database
from tests.fixtures.roles import role_passwords
from tests.fixtures.services import Fleet, make_fleet
from tidewheel.local.stack import LocalStack, StackInfo
from tidewheel.migrations.runner import migrate
from tidewheel.postgres.session import connect
from tidewheel.settings.connections import Connections
from tidewheel.transitions.installation import read_installation


@contextmanager
def own_server(info: StackInfo, folder: Path, *, standby: bool = False) -> Generator[LocalStack]:
    """A server beside the broker that all tests share, with a synchronous standby or without."""
    local = LocalStack(folder, bootstrap=info.bootstrap, client=info.kafka, standby=standby)
    local.up()
    yield local
    local.down(erase=True)


@contextmanager
def own_stack(folder: Path) -> Generator[LocalStack]:
    """A server and a broker that no other test uses."""
    local = LocalStack(folder, lasting=False)
    local.up()
    yield local
    local.down(erase=True)


@contextmanager
def fleet_on(server: LocalStack, folder: Path) -> Generator[Fleet]:
    """Services on a database of that server."""
    at = server.up()
    name = f"test_{uuid4().hex[:16]}"
    brokers = len(at.bootstrap.split(","))
    with psycopg.connect(at.database_url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    url = make_conninfo(at.database_url, dbname=name)
    migrate(url, roles=role_passwords(url))
    with connect(url, "test") as connection:
        database = Database(url, read_installation(connection, Connections.load()))
    made = make_fleet(database, at.kafka, folder, copies=brokers)
    try:
        yield made
    finally:
        database.close()  # first, for a lock that a test still holds would keep the services from ending
        made.close()


def restart(server: LocalStack, away: timedelta = timedelta(0)) -> None:
    """Crash: no client is notified, nothing is flushed, and the server is down for a while."""
    server.postgres.stop("immediate")
    threading.Event().wait(away.total_seconds())
    server.postgres.start()


def serves(fleet: Fleet) -> bool:
    """Return True if the broker has its partitions again."""
    try:
        topics = fleet.admin().list_topics(timeout=1).topics
    except KafkaException:
        return False
    return fleet.topics.completions in topics
