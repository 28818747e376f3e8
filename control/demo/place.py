"""Where the demo takes place: a stack of its own in a temporary folder, or the one that runs already.

Nothing of the user's is touched. Where a stack runs, or a database or brokers are named, the demo makes a database and
topics of its own there and removes them at its end, so that its figures are of this run alone and no service that
serves the user's jobs sees any of it.
"""

import shutil
import uuid
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

import psycopg
from confluent_kafka.admin import AdminClient
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tidewheel.db import connect
from tidewheel.errors import StackError
from tidewheel.local.progress import Progress, Step
from tidewheel.local.stack import LocalStack, running_stack
from tidewheel.migrations.runner import migrate
from tidewheel.settings import Connections
from tidewheel.topics import Topics, apply_topics

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
        kept: The stack's home if it stays up after the demo.
    """

    database_url: str
    bootstrap: str
    kafka: dict[str, str]
    topics: Topics
    logs: Path
    said: str
    kept: Path | None


@contextmanager
def make_place(*, keep: bool, progress: Progress) -> Generator[Place]:
    """Bring up what is needed; take down at the end what was brought up.

    Args:
        keep: Leave the stack up, with the demo's data in it.
        progress: Told of each step.

    Raises:
        StackError: The stack cannot be started, or the demo may not make a database of its own.
        Unavailable: A database or broker that was named does not answer.
    """
    with ExitStack() as undo:
        home = Path(mkdtemp(prefix="tidewheel-demo-"))
        undo.callback(_remove, home, keep=keep)
        settings = Connections.load()
        found = _found(settings)
        if found is None:
            place = _fresh(home, settings, undo, progress, keep=keep)
        else:
            place = _guest(home, *found, keep=keep, undo=undo, progress=progress)
        yield place


def _found(settings: Connections) -> tuple[str, str, str] | None:
    """Database, brokers and the stack's name, of what is there already; None where a part is missing."""
    named = settings.database_url.get_secret_value() if settings.database_url else None
    local = running_stack()
    database = named or (local.database_url if local else None)
    brokers = settings.kafka_bootstrap or (local.bootstrap if local else None)
    if database is None or brokers is None:
        return None
    who = "what the settings name" if named or settings.kafka_bootstrap or local is None else f"in {local.data_dir}"
    return database, brokers, who


def _fresh(home: Path, settings: Connections, undo: ExitStack, progress: Progress, *, keep: bool) -> Place:
    """A stack of the demo's own; a part that is named takes the place of its own."""
    named = settings.database_url.get_secret_value() if settings.database_url else None
    stack = LocalStack(home, brokers=1, database_url=named, bootstrap=settings.kafka_bootstrap)
    if not keep:
        undo.callback(stack.down, erase=True, progress=progress)
    info = stack.up(progress)
    said = f"a PostgreSQL and a Kafka of its own in {home}"
    if named is None and settings.kafka_bootstrap is None:
        return _furnished(info.database_url, info.bootstrap, Topics(), home, said, progress, kept=home if keep else None)
    return _guest(home, info.database_url, info.bootstrap, said, keep=keep, undo=undo, progress=progress)


def _guest(
    home: Path, database_url: str, bootstrap: str, who: str, *, keep: bool, undo: ExitStack, progress: Progress
) -> Place:
    """A database and topics of the demo's own on a stack that is not."""
    name = f"tidewheel_demo_{uuid.uuid4().hex[:8]}"
    topics = Topics(name.replace("_", "-"))
    _create_database(database_url, name)
    if not keep:
        undo.callback(_drop_database, database_url, name)
        undo.callback(_delete_topics, bootstrap, topics)
    said = f"the stack that runs already ({who}), with database {name} and topics {topics.prefix}.* of its own"
    return _furnished(make_conninfo(database_url, dbname=name), bootstrap, topics, home, said, progress, kept=None)


def _furnished(
    database_url: str, bootstrap: str, topics: Topics, home: Path, said: str, progress: Progress, *, kept: Path | None
) -> Place:
    settings = Connections.load(database_url=database_url, kafka_bootstrap=bootstrap)
    kafka = settings.kafka_config()
    progress(Step("making the schema and the topics"))
    migrate(database_url)
    apply_topics(kafka, topics, replication=settings.replication)
    logs = home / "demo-logs"
    logs.mkdir()
    return Place(
        database_url=database_url, bootstrap=bootstrap, kafka=kafka, topics=topics, logs=logs, said=said, kept=kept
    )


def _create_database(url: str, name: str) -> None:
    try:
        with connect(url, "tidewheel-demo", autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    except psycopg.errors.InsufficientPrivilege as error:
        message = (
            "the demo makes a database of its own, which this role may not: unset TIDEWHEEL_DATABASE_URL to let the "
            "demo bring its own PostgreSQL, or grant CREATEDB"
        )
        raise StackError(message) from error


def _drop_database(url: str, name: str) -> None:
    with connect(url, "tidewheel-demo", autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


def _delete_topics(bootstrap: str, topics: Topics) -> None:
    admin = AdminClient(Connections.load(kafka_bootstrap=bootstrap).kafka_config() | {"client.id": "tidewheel-demo"})
    names: Sequence[str] = [topic.name for topic in topics.plan()]
    for gone in admin.delete_topics(list(names), operation_timeout=_DELETE_SECONDS).values():
        gone.exception()


def _remove(home: Path, *, keep: bool) -> None:
    if not keep or not (home / "stack.json").exists():
        shutil.rmtree(home, ignore_errors=True)
