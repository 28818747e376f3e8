"""Where the demo takes place: a stack of its own in a temporary folder, or the one that runs already.

Nothing of the user's is touched. Where a stack runs, or a database or brokers are named, the demo makes a database and
topics of its own there and removes them at its end, so that its figures are of this run alone and no service that
serves the user's jobs sees any of it.

The database's clock as seen from here: what decides what is due, and so what lateness is measured by.
"""

import shutil
import uuid
from collections.abc import Generator
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
from tidewheel.postgres.session import connect
from tidewheel.postgres.statements import Statements
from tidewheel.settings import Connections

_DELETE_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What the demo's processes are told.

    Args:
        database_url: The demo's own database.
        bootstrap: The brokers.
        kafka: What each of the demo's own clients is made with.
        topics: The names of the demo's own topics.
        logs: Where the services' logs go.
        said: Which stack it is, in words.
        kept: The stack's home if it stays up after the demo, with the demo's data.
        is_guest: The stack is somebody else's, and runs on.
    """

    database_url: str = field(repr=False)
    bootstrap: str
    kafka: dict[str, str] = field(repr=False)
    topics: Topics
    logs: Path
    said: str
    kept: Path | None
    is_guest: bool


@contextmanager
def make_place(*, keep: bool, progress: Progress) -> Generator[Place]:
    """Bring up what is needed; take down at the end what was brought up.

    Args:
        keep: Leave the stack up if the demo came to its end and the stack is all its own.
        progress: Told of each step.

    Raises:
        StackError: The stack cannot be started, or the demo may not make a database of its own.
        Unavailable: A database or broker that was named does not answer.
    """
    settings = Connections.load()
    with ExitStack() as undo:
        home = Path(mkdtemp(prefix="tidewheel-demo-"))
        undo.callback(shutil.rmtree, home, ignore_errors=True)
        found = _found(settings) or _brought_up(home, settings, progress, undo)
        database_url, topics, said = found.database_url, Topics(), found.said
        if not found.is_ours:
            name = f"tidewheel_demo_{uuid.uuid4().hex[:8]}"
            topics = Topics(name.replace("_", "-"))
            database_url = undo.enter_context(_own_database(database_url, name))
            undo.callback(_delete_topics, found.bootstrap, topics, progress)
            said = f"{said}, with a database {name} and topics {topics.prefix}.* apart"
        place = Place(
            database_url=database_url,
            bootstrap=found.bootstrap,
            kafka=Connections.load(kafka_bootstrap=found.bootstrap).kafka_config(),
            topics=topics,
            logs=home / "demo-logs",
            said=said,
            kept=home if keep and found.is_ours else None,
            is_guest=not found.is_ours,
        )
        _furnish(place, progress)
        yield place
        if place.kept:
            undo.pop_all()


@dataclass(frozen=True, slots=True)
class _Found:
    """A stack: where it is reached, what it is, and whether all of it is the demo's own."""

    database_url: str
    bootstrap: str
    said: str
    is_ours: bool


def _found(settings: Connections) -> _Found | None:
    """What is there already; None where a part is missing."""
    named, local = _named_database(settings), running_stack()
    database = named or (local.database_url if local else None)
    brokers = settings.kafka_bootstrap or (local.bootstrap if local else None)
    if database is None or brokers is None:
        return None
    if local is None or named or settings.kafka_bootstrap:
        return _Found(database, brokers, "what the settings name", is_ours=False)
    return _Found(database, brokers, f"the one that runs already in {local.data_dir}", is_ours=False)


def _brought_up(home: Path, settings: Connections, progress: Progress, undo: ExitStack) -> _Found:
    """A stack of the demo's own; what the settings name takes the place of its own part."""
    named = _named_database(settings)
    stack = LocalStack(home, brokers=1, database_url=named, bootstrap=settings.kafka_bootstrap)
    undo.callback(stack.down, erase=True, progress=progress)
    info = stack.up(progress)
    is_ours = named is None and settings.kafka_bootstrap is None
    return _Found(info.database_url, info.bootstrap, f"a PostgreSQL and a Kafka of its own in {home}", is_ours)


def _named_database(settings: Connections) -> str | None:
    return settings.database_url.get_secret_value() if settings.database_url else None


def _furnish(place: Place, progress: Progress) -> None:
    progress(Step("making the schema and the topics"))
    migrate(place.database_url)
    apply_topics(place.kafka, place.topics, replication=Connections.load().replication)
    place.logs.mkdir()


@contextmanager
def _own_database(url: str, name: str) -> Generator[str]:
    """A new database beside the one that is named; it goes at the end, whoever is still connected."""
    try:
        _execute(url, sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    except psycopg.errors.InsufficientPrivilege as error:
        message = (
            "the demo makes a database of its own, which this role may not: unset TIDEWHEEL_DATABASE_URL to let the "
            "demo bring its own PostgreSQL, or grant CREATEDB"
        )
        raise StackError(message) from error
    try:
        yield make_conninfo(url, dbname=name)
    finally:
        _execute(url, sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def _execute(url: str, statement: sql.Composed) -> None:
    with connect(url, "tidewheel-demo", autocommit=True) as connection:
        connection.execute(statement)


def _delete_topics(bootstrap: str, topics: Topics, progress: Progress) -> None:
    progress(Step("removing the demo's topics"))
    config = Connections.load(kafka_bootstrap=bootstrap).kafka_config()
    admin = AdminClient({**config, "client.id": "tidewheel-demo", "log_level": 2})
    names = [topic.name for topic in topics.plan()]
    gone = admin.delete_topics(names, operation_timeout=_DELETE_SECONDS)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - its stub leaves a Future bare
    for future in cast("dict[str, Future[None]]", gone).values():
        future.exception()  # one that was never made is gone too


_READ_NOW = Statements("tidewheel.control.demo")["read_now"]


class DatabaseClock:
    """This machine's clock, corrected by its distance from the database's; nought when both are one machine.

    Args:
        ahead: How far the database's clock is ahead of this machine's.
    """

    def __init__(self, ahead: timedelta = timedelta(0)) -> None:
        self._ahead = ahead
        self._clock = SystemClock()

    def now(self) -> datetime:
        """The present instant by the database's clock, in UTC."""
        return self._clock.now() + self._ahead


def database_clock(database_url: str) -> DatabaseClock:
    """Read the database's clock once, half-way through the question's round trip.

    Raises:
        Unavailable: The database does not answer.
    """
    with connect(database_url, "tidewheel-demo", autocommit=True) as connection:
        asked = monotonic_seconds()
        row = connection.execute(_READ_NOW, binary=True).fetchone()
        took = timedelta(seconds=monotonic_seconds() - asked)
        here = SystemClock().now() - took / 2
    assert row is not None  # noqa: S101 - a SELECT without FROM
    assert isinstance(row[0], datetime)  # noqa: S101 - the function's type
    return DatabaseClock(row[0] - here)
