"""What every writer of rows needs to know about this installation."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import cast

from tidewheel.db import Conn
from tidewheel.schemas.cloudevents import ContentType
from tidewheel.schemas.codec import encode, encode_json
from tidewheel.schemas.records import DeadLetter, LifecycleEvent, RunCompleted
from tidewheel.settings import Connections
from tidewheel.sql import Statements
from tidewheel.topics import Topics

_READ_INSTALLATION = Statements("tidewheel.transitions")["read_installation"]

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


def read_installation(connection: Conn, settings: Connections) -> Installation:
    """The installation behind a connection."""
    facts = dict(cast("list[tuple[str, object]]", connection.execute(_READ_INSTALLATION).fetchall()))
    json_wanted = settings.events_encoding == "json"
    return Installation(
        shards=cast("int", facts["shards"]),
        topics=Topics(settings.topic_prefix),
        source=settings.source,
        content_type="application/json" if json_wanted else "application/avro",
        encode_event=encode_json if json_wanted else encode,
        misfire_after=settings.misfire_after,
        catch_up_rate=settings.catch_up_rate,
        task_token_key=bytes.fromhex(str(facts["task_token_key"])),
    )
