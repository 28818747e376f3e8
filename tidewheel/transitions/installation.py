"""The facts about this installation that every writer of rows needs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import cast, get_args

from psycopg import sql
from psycopg.types.json import Jsonb

from tidewheel.errors import SettingsError
from tidewheel.jobs.allow_lists import AllowLists
from tidewheel.kafka.topics import Topics
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.schemas.codec import encode, encode_json
from tidewheel.schemas.generated.records import DeadLetter, LifecycleEvent, RunCompleted
from tidewheel.schemas.interop import ContentType
from tidewheel.schemas.registry import Recorded, framed, frames_of
from tidewheel.settings.connections import Connections
from tidewheel.task_tokens import TaskTokens
from tidewheel.transitions.tenant_rates import TenantRates

_SQL = Statements("tidewheel.transitions")

Event = RunCompleted | LifecycleEvent | DeadLetter


@dataclass(frozen=True, slots=True)
class Installation:
    """Facts that never change while a process runs.

    Args:
        source: `ce_source` of every event.
        content_type: The MIME type of the result of `encode_event`.
        frames: The first bytes of messages in a schema registry's wire format, by the record's name.
        as_registry: True if events have that format.
        misfire_after: The delay after which an occurrence counts as missed.
        catch_up_rate: Caught-up runs per second, of the whole fleet.
        tenant_role: The role as which sessions act for a tenant; None if they do so as the owner of the tables.
        schema: That of its tables, where it shares a database; None finds them by the search path.
        task_tokens: The task tokens: no fact either, for their keys are rotated. Empty until `task_token_keys.refresh`.
        rates: The rates of tenants: no fact but what the threads of the process share, for every writer of runs.
    """

    shards: int
    topics: Topics
    source: str
    content_type: ContentType
    encode_event: Callable[[Event], bytes]
    misfire_after: timedelta
    run_events: bool = False
    as_registry: bool = False
    frames: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    catch_up_rate: float = 1000.0
    allow_lists: AllowLists = field(default_factory=AllowLists)
    tenant_role: str | None = None
    schema: str | None = None
    task_tokens: TaskTokens = field(default_factory=TaskTokens, repr=False, compare=False)
    rates: TenantRates = field(default_factory=TenantRates, repr=False, compare=False)


def record_topic_prefix(connection: Conn, settings: Connections) -> None:
    """Record the prefix of the topics, unless it is recorded already; in the caller's transaction.

    Raises:
        SettingsError: An installation in another schema of this database has these topics.
    """
    recorded = connection.execute(_SQL["record_topic_prefix"], {"prefix": settings.topic_prefix}).rowcount
    neighbours = connection.execute(_SQL["find_neighbours"]).fetchall() if recorded else []
    for (schema,) in cast("list[tuple[str]]", neighbours):
        read = sql.SQL("SELECT value #>> '{{}}' FROM {}.settings WHERE name = 'topic_prefix'")
        if connection.execute(read.format(sql.Identifier(schema))).fetchone() == (settings.topic_prefix,):
            raise SettingsError(
                f"the installation in the schema {schema!r} of this database has the topics of "
                f"{settings.topic_prefix!r} too: set another TIDEWHEEL_TOPIC_PREFIX"
            )


def read_installation(connection: Conn, settings: Connections) -> Installation:
    """Read the installation of a database; SettingsError if the settings name another topic prefix."""
    facts = dict(cast("list[tuple[str, object]]", connection.execute(_SQL["read_installation"]).fetchall()))
    frames = frames_of(cast("Recorded", facts.get("schema_ids") or {}))
    topics = Topics(_prefix(facts.get("topic_prefix"), settings))
    return Installation(
        shards=cast("int", facts["shards"]),
        topics=topics,
        source=settings.source,
        content_type="application/json" if settings.events_encoding == "json" else "application/avro",
        encode_event=_encoder(settings, frames),
        frames=frames,
        as_registry=settings.events_encoding == "registry",
        misfire_after=settings.misfire_after,
        run_events=settings.events_runs == "all",
        catch_up_rate=settings.catch_up_rate,
        allow_lists=settings.allow_lists(topics.prefix),
        tenant_role=cast("str | None", facts.get("tenant_role")),
        schema=settings.database_schema,
    )


def _encoder(settings: Connections, frames: Mapping[str, bytes]) -> Callable[[Event], bytes]:
    if settings.events_encoding != "registry":
        return encode_json if settings.events_encoding == "json" else encode
    if missing := {each.__name__ for each in get_args(Event)} - frames.keys():
        raise SettingsError(
            f"TIDEWHEEL_EVENTS_ENCODING is registry, but no id of {', '.join(sorted(missing))} is recorded for this"
            " release; run `tidewheel admin schemas register`"
        )
    return lambda event: framed(frames, event)


def record_schema_ids(connection: Conn, recorded: Recorded) -> None:
    """Record the ids of this release's schemas in a schema registry, in the caller's transaction."""
    connection.execute(_SQL["record_schema_ids"], {"recorded": Jsonb(recorded)})


def _prefix(recorded: object, settings: Connections) -> str:
    """Return the recorded topic prefix, or the setting's if none is recorded; they must not differ."""
    if recorded is None or recorded == settings.topic_prefix:
        return settings.topic_prefix
    if "topic_prefix" in settings.model_fields_set:
        raise SettingsError(
            f"TIDEWHEEL_TOPIC_PREFIX is {settings.topic_prefix!r}, but the topics of this database's installation begin"
            f" with {recorded!r}; unset it, or use another database"
        )
    return str(recorded)
