"""What every writer of rows needs to know about this installation."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import cast

from tidewheel.errors import SettingsError
from tidewheel.kafka.topics import Topics
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.schemas.cloudevents import ContentType
from tidewheel.schemas.codec import encode, encode_json
from tidewheel.schemas.generated.records import DeadLetter, LifecycleEvent, RunCompleted
from tidewheel.settings import Connections

_SQL = Statements("tidewheel.transitions")
_READ_INSTALLATION = _SQL["read_installation"]
_RECORD_TOPIC_PREFIX = _SQL["record_topic_prefix"]

Event = RunCompleted | LifecycleEvent | DeadLetter


@dataclass(frozen=True, slots=True)
class Installation:
    """Facts that never change while a process lives.

    Args:
        shards: How many shards there are; written into the database by the first migration.
        topics: Topic names under the configured prefix.
        source: `ce_source` of every event.
        content_type: What `encode_event` writes, as a MIME type.
        encode_event: The encoding of completions, events and dead letters.
        misfire_after: How late an occurrence may be before it is missed.
        catch_up_rate: Runs that make up for something, a second, of the whole fleet.
        task_token_key: What task tokens are signed with.
    """

    shards: int
    topics: Topics
    source: str
    content_type: ContentType
    encode_event: Callable[[Event], bytes]
    misfire_after: timedelta
    catch_up_rate: float = 1000.0
    task_token_key: bytes = b""


def record_topic_prefix(connection: Conn, settings: Connections) -> None:
    """Record what the topics begin with, where nobody has yet; in the caller's transaction."""
    connection.execute(_RECORD_TOPIC_PREFIX, {"prefix": settings.topic_prefix})


def read_installation(connection: Conn, settings: Connections) -> Installation:
    """The installation behind a connection.

    Raises:
        SettingsError: The settings name other topics than this installation has.
    """
    facts = dict(cast("list[tuple[str, object]]", connection.execute(_READ_INSTALLATION).fetchall()))
    json_wanted = settings.events_encoding == "json"
    return Installation(
        shards=cast("int", facts["shards"]),
        topics=Topics(_prefix(facts.get("topic_prefix"), settings)),
        source=settings.source,
        content_type="application/json" if json_wanted else "application/avro",
        encode_event=encode_json if json_wanted else encode,
        misfire_after=settings.misfire_after,
        catch_up_rate=settings.catch_up_rate,
        task_token_key=bytes.fromhex(str(facts["task_token_key"])),
    )


def _prefix(recorded: object, settings: Connections) -> str:
    """What topics begin with: as recorded, where there is a record and no setting that says otherwise."""
    if recorded is None or recorded == settings.topic_prefix:
        return settings.topic_prefix
    if "topic_prefix" in settings.model_fields_set:
        message = (
            f"TIDEWHEEL_TOPIC_PREFIX is {settings.topic_prefix!r}, but the topics of this database's installation begin"
            f" with {recorded!r}; leave it unset, or name another database"
        )
        raise SettingsError(message)
    return str(recorded)
