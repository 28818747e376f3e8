"""Create the demo's environment: its own stack, or its own database and topics on a running one.

The user's data is not touched. On a running stack, or on servers that the settings name, the demo creates its own
database and topics and removes them at its end. So its figures are of this run alone, and no service of the user
sees its jobs. `DatabaseClock` is the clock that decides due instants and measures lateness.
"""

import shutil
import uuid
from collections.abc import Generator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import mkdtemp
from typing import cast

import psycopg
from confluent_kafka.admin import AdminClient
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tidewheel.clock import SystemClock, monotonic_seconds
from tidewheel.errors import StackError
from tidewheel.kafka.topics import Topics, apply_topics
from tidewheel.local.progress import Progress, Step
from tidewheel.local.stack import LocalStack, running_stack
from tidewheel.migrations.runner import migrate
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.session import connect
from tidewheel.settings.connections import Connections

_DELETE_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The servers and names that the demo's processes use.

    Args:
        database_url: The demo's own database.
        kafka: The settings of Kafka clients, `bootstrap.servers` included.
        topics: The names of the demo's own topics.
        logs: The folder of the services' logs.
        description: The stack in words.
        kept: The stack's home if it stays up with the demo's data.
        is_guest: True if the stack is the user's, and keeps running.
    """

    database_url: str = field(repr=False)
    kafka: dict[str, str] = field(repr=False)
    topics: Topics
    logs: Path
    description: str
    kept: Path | None
    is_guest: bool


@contextmanager
def open_environment(*, keep: bool, progress: Progress) -> Generator[Environment]:
    """Start the missing servers, and remove at the end all that the demo created.

    Args:
        keep: Leave the stack up if the demo reached its end and the whole stack is its own.
        progress: Receives each step.

    Raises:
        StackError: The stack cannot be started, or the demo may not create a database.
        Unavailable: A database or broker that the settings name does not answer.
    """
    settings = Connections.load()
    with ExitStack() as undo:
        home = Path(mkdtemp(prefix="tidewheel-demo-"))
        undo.callback(shutil.rmtree, home, ignore_errors=True)
        found = _existing_stack(settings) or _start_stack(home, settings, progress, undo)
        database_url, topics, description = found.database_url, Topics(), found.description
        if not found.is_ours:
            name = f"tidewheel_demo_{uuid.uuid4().hex[:8]}"
            topics = Topics(name.replace("_", "-"))
            database_url = undo.enter_context(_own_database(database_url, name))
            undo.callback(_delete_topics, found.kafka, topics, progress)
            description = f"{description}, with its own database {name} and topics {topics.prefix}.*"
        environment = Environment(
            database_url=database_url,
            kafka=found.kafka,
            topics=topics,
            logs=home / "demo-logs",
            description=description,
            kept=home if keep and found.is_ours else None,
            is_guest=not found.is_ours,
        )
        _prepare(environment, progress)
        yield environment
        if environment.kept:
            undo.pop_all()


@dataclass(frozen=True, slots=True)
class _Stack:
    """The addresses of a stack, its description, and True if all of it is the demo's own."""

    database_url: str
    kafka: dict[str, str]
    description: str
    is_ours: bool


def _existing_stack(settings: Connections) -> _Stack | None:
    """Return the running stack, None if a part is missing."""
    named, local = _named_database(settings), running_stack()
    database = named or (local.database_url if local else None)
    if database is None or (local is None and settings.named_brokers() is None):
        return None
    kafka = settings.kafka_config()
    if local is None or named or settings.named_brokers():
        return _Stack(database, kafka, "the servers that the settings name", is_ours=False)
    return _Stack(database, kafka, f"the one that runs already in {local.data_dir}", is_ours=False)


def _start_stack(home: Path, settings: Connections, progress: Progress, undo: ExitStack) -> _Stack:
    """Start a stack of the demo's own, except for the servers that the settings name."""
    named = _named_database(settings)
    brokers = settings.named_brokers()
    stack = LocalStack(home, brokers=1, database_url=named, bootstrap=brokers, client=settings.kafka_client())
    undo.callback(stack.down, erase=True, progress=progress)
    info = stack.up(progress)
    is_ours = named is None and brokers is None
    return _Stack(info.database_url, dict(info.kafka), f"a PostgreSQL and a Kafka of its own in {home}", is_ours)


def _named_database(settings: Connections) -> str | None:
    return settings.database_url.get_secret_value() if settings.database_url else None


def _prepare(environment: Environment, progress: Progress) -> None:
    progress(Step("creating the schema and the topics"))
    migrate(environment.database_url)
    apply_topics(environment.kafka, environment.topics, replication=Connections.load().replication)
    environment.logs.mkdir()


@contextmanager
def _own_database(url: str, name: str) -> Generator[str]:
    """Create a database on the server, and drop it at the end with its connections."""
    try:
        _execute(url, sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    except psycopg.errors.InsufficientPrivilege as error:
        message = (
            "the demo creates a database, which this role may not: unset TIDEWHEEL_DATABASE_URL to let the "
            "demo start its own PostgreSQL, or grant CREATEDB"
        )
        raise StackError(message) from error
    try:
        yield make_conninfo(url, dbname=name)
    finally:
        _execute(url, sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def _execute(url: str, statement: sql.Composed) -> None:
    with connect(url, "tidewheel-demo", autocommit=True) as connection:
        connection.execute(statement)


def _delete_topics(kafka: Mapping[str, str], topics: Topics, progress: Progress) -> None:
    progress(Step("removing the demo's topics"))
    admin = AdminClient({**kafka, "client.id": "tidewheel-demo", "log_level": 2})
    names = [topic.name for topic in topics.plan()]
    gone = admin.delete_topics(names, operation_timeout=_DELETE_SECONDS)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - its stub leaves a Future bare
    for future in cast("dict[str, Future[None]]", gone).values():
        future.exception()  # a topic that was never created needs no deletion


class DatabaseClock:
    """This machine's clock with the offset of the database's clock.

    Args:
        ahead: The offset of the database's clock; 0 on the same machine.
    """

    def __init__(self, ahead: timedelta = timedelta(0)) -> None:
        self._ahead = ahead
        self._clock = SystemClock()

    def now(self) -> datetime:
        """Return the current instant of the database's clock, in UTC."""
        return self._clock.now() + self._ahead


def database_clock(database_url: str) -> DatabaseClock:
    """Read the database's clock once, at the middle of the query's round trip.

    Raises:
        Unavailable: The database does not answer.
    """
    with connect(database_url, "tidewheel-demo", autocommit=True) as connection:
        started = monotonic_seconds()
        now = read_now(connection)
        took = timedelta(seconds=monotonic_seconds() - started)
        here = SystemClock().now() - took / 2
    return DatabaseClock(now - here)
