"""Raise an installation from the topics of another one that is lost (docs/adr/0082-standby-site.md).

All rows are written in one transaction, so a raise that is killed has changed nothing. Services start afterwards.
"""

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from typing import LiteralString, NamedTuple, cast
from uuid import UUID, uuid4

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Consumer, KafkaError, Message, TopicPartition
from psycopg import sql

from tidewheel.audit import ALL_TENANTS, Change, Door, process_actor, record_change
from tidewheel.clock import monotonic_seconds
from tidewheel.control.reads.fleet import age_text
from tidewheel.control.standby.state import read_recording
from tidewheel.errors import SettingsError, Unavailable, UndecodableMessage
from tidewheel.ids import read_uuid
from tidewheel.jobs.strict_json import as_object
from tidewheel.kafka.clients import poll_batch
from tidewheel.kafka.offsets import offsets_client, read_end_offsets, read_partitions
from tidewheel.kafka.topics import COMPACTION_LAG, Topics, TopicStatus, setting_deviations
from tidewheel.migrations.runner import migrations
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.partitions import ensure_days
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.process.failpoint import failpoint
from tidewheel.runs import OWNED
from tidewheel.schemas.codec import decode
from tidewheel.schemas.generated.records import StandbyRow
from tidewheel.standby import CARRIED, MARK, read_key

_POLL_SECONDS = 1.0
_SILENT_SECONDS = 30.0  # without a message before the end: no broker of the partition answers
_BATCH = 1000
_ROW_BYTES = 64 << 20  # of a row as JSON: one of 1 MiB and more as bytes has two digits for each

_SQL = Statements("tidewheel.control.standby")
_LOCK_RAISE = _SQL["lock_raise"]
_HAS_JOBS = _SQL["has_jobs"]
_FORGET_RECORDS = _SQL["forget_records"]
_COUNT_LEFT_OUT = _SQL["count_left_out"]
_TAKE_LATEST = _SQL["take_latest"]
_READ_SHARDS = _SQL["read_shards"]
_FIND_ROW_SHAPES = _SQL["find_row_shapes"]
_FIND_COLUMNS = _SQL["find_columns"]
_DROP_FIRST_TENANTS = _SQL["drop_first_tenants"]
_BEGIN_SETTLING_AGAIN = _SQL["begin_settling_again"]
_FIND_INPUT_DAYS = _SQL["find_input_days"]
_ADD_RUN_INPUTS = _SQL["add_run_inputs"]
_DOUBT_RUNS = _SQL["doubt_runs"]
_DOUBT_WAITING_RUNS = _SQL["doubt_waiting_runs"]
_PAUSE_DOUBTFUL_JOBS = _SQL["pause_doubtful_jobs"]
_ADD_LOST_EXECUTORS = _SQL["add_lost_executors"]
_STORE_RAISE = _SQL["store_raise"]
_RAISE_EPOCH = Statements("tidewheel.control.restore")["raise_epoch"]

_KEEPS_ROWS = frozenset({"cleanup.policy", "min.compaction.lag.ms"})

_COPY = "COPY standby_records (site, batch, kind, key, row, copied_at) FROM STDIN"
_INSERT: LiteralString = """
INSERT INTO {table} ({columns}) OVERRIDING SYSTEM VALUE
SELECT {values}
  FROM standby_rows AS r
 CROSS JOIN LATERAL jsonb_populate_record(NULL::{table}, r.row) AS p
 WHERE r.kind = {kind} AND ARRAY(SELECT k FROM jsonb_object_keys(r.row - 'run_inputs') AS k ORDER BY k) = {shape}
"""
_ADVANCE: LiteralString = """
SELECT setval(pg_get_serial_sequence({name}, {column}), greatest((SELECT max({identity}) FROM {table}), 1))
"""
_DOUBT = "an occurrence or a run since the last record of the lost site may have begun there"


class Record(NamedTuple):
    """A record of a row; `row` is None if the row was gone."""

    site: UUID
    batch: int
    kind: str
    key: str
    row: bytes | None
    copied_at: datetime | None  # None if the topic keeps the times of the first one


@dataclass(frozen=True, slots=True)
class Mark:
    """The end of a complete batch, with the first valid batch and the last migration of the site."""

    site: UUID
    batch: int
    first_batch: int
    as_of: datetime
    shards: int
    schema: str
    offset: int
    copied_at: datetime | None


def read_topic(config: Mapping[str, str], topic: str, marks: list[Mark]) -> Iterator[Record]:
    """Yield the records of a topic up to its present end; add its marks to `marks`."""
    reading = {**config, "auto.offset.reset": "earliest", "enable.partition.eof": "true"}
    with offsets_client(reading, "tidewheel.standby") as client:
        places = read_partitions(client, topic).get(topic, [])
        if len(places) != 1:
            message = (
                f"{topic} has {len(places)} partitions at {config.get('bootstrap.servers')}; one is needed: mirror the "
                "topic of the other site with its partition, and give the beginning of its name as --prefix"
            )
            raise SettingsError(message)
        first, end = read_end_offsets(client, places)[places[0]]
        client.assign([TopicPartition(topic, 0, first)])
        for found in _messages(client, topic, end):
            record = _record(found)
            if isinstance(record, Mark):
                marks.append(record)
            else:
                yield record


def _messages(reader: Consumer, topic: str, end: int) -> Iterator[Message]:
    """Yield the messages before an offset; compaction may have removed the last one."""
    heard_at = monotonic_seconds()
    while True:
        for message in poll_batch(reader, _BATCH, _POLL_SECONDS):
            heard_at = monotonic_seconds()
            if (error := message.error()) is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    return
                text = f"{topic} cannot be read: {error.str()}"
                raise Unavailable(text)
            if cast("int", message.offset()) >= end:
                return
            yield message
        if monotonic_seconds() - heard_at > _SILENT_SECONDS:
            text = f"{topic} cannot be read: no broker has answered for {_SILENT_SECONDS:g} s"
            raise Unavailable(text)


def _record(message: Message) -> Record | Mark:
    offset = cast("int", message.offset())
    kind_of_time, milliseconds = message.timestamp()
    copied_at = datetime.fromtimestamp(milliseconds / 1000, UTC) if kind_of_time == TIMESTAMP_LOG_APPEND_TIME else None
    try:
        kind, key = read_key(message.key() or b"")  # pyright: ignore[reportArgumentType] - bytes without a deserializer
        headers = dict(cast("Sequence[tuple[str, bytes]]", message.headers() or ()))
        site, batch = read_uuid(headers["site"].decode()), int(headers["batch"])
        value = message.value()
        row = None if value is None else decode(value, StandbyRow)
        content = row and (_unpacked(row.row) if row.is_compressed else row.row)
        if kind != MARK or row is None:
            return Record(site, batch, kind, key, content or None, copied_at)
        facts = as_object(json.loads(content or b"{}")) or {}
        first_batch, shards = cast("int", facts["first_batch"]), cast("int", facts["shards"])
        return Mark(site, batch, first_batch, row.as_of, shards, str(facts["schema"]), offset, copied_at)
    except (KeyError, ValueError, zlib.error, UndecodableMessage) as error:
        text = f"{message.topic()}[0]@{offset} is not a record of a standby site: {error}"
        raise UndecodableMessage(text) from error


def _unpacked(packed: bytes) -> bytes:
    """Return what was packed; a message of 1 MiB could unpack to a gigabyte."""
    unpacking = zlib.decompressobj()
    content = unpacking.decompress(packed, _ROW_BYTES)
    if not unpacking.eof:
        text = f"it is cut off, or unpacks to more than {_ROW_BYTES} bytes"
        raise zlib.error(text)
    return content


@dataclass(frozen=True, slots=True)
class Raised:
    """The result of a raise."""

    site: UUID
    batch: int
    as_of: datetime  # the loss window begins here
    until: datetime  # the time of the raise, by this database's clock: the loss window ends here at the latest
    repeated: bool = False  # an earlier call has raised this installation; the counts are those of no row
    rows: Mapping[str, int] = field(default_factory=dict[str, int])
    doubtful_runs: Sequence[UUID] = ()  # of at-most-once jobs: `failed`, those that waited `cancelled`
    paused_jobs: Sequence[str] = ()  # at-most-once, as tenant/key: they wait for `tidewheel job resume`
    left_out: int = 0  # records behind the last complete batch
    gaps: Sequence[str] = ()  # reasons why rows may be missing, which the caller has accepted
    unchecked: bool = False  # the copies do not keep the times of copying: a mirror that was behind is not noticed

    @property
    def window(self) -> timedelta:
        """The loss window: what the lost site did in it is unknown here."""
        return max(self.until - self.as_of, timedelta())


def raise_site(connection: Conn, config: Mapping[str, str], topics: Topics, *, accept_gaps: bool = False) -> Raised:
    """Insert the rows of the last complete batch into an empty installation, as the owner of its tables.

    Raises:
        SettingsError: The installation has jobs of its own, the topics hold no complete batch, another release or
            another number of shards wrote them, or rows may be missing.
    """
    with connection.transaction():
        connection.execute(_LOCK_RAISE)
        before = read_recording(connection)
        if before is not None and before.raised_at is not None:
            site = cast("UUID", before.raised_site)
            as_of = cast("datetime", before.raised_as_of)
            return Raised(site, cast("int", before.raised_batch), as_of, before.raised_at, repeated=True)
        if connection.execute(_HAS_JOBS).fetchone() == (True,):
            message = "this database already has jobs; name a new database, on which only `tidewheel migrate` has run"
            raise SettingsError(message)
        connection.execute(_FORGET_RECORDS)
        by_topic = {topic: _load(connection, config, topic) for topic in (topics.jobs, topics.run_states)}
        mark = _last_complete(by_topic)
        _check(connection, mark)
        columns = {"site": mark.site, "first_batch": mark.first_batch, "batch": mark.batch}
        found = connection.execute(_COUNT_LEFT_OUT, columns).fetchone()
        left_out, left_for = cast("tuple[int, timedelta | None]", found)
        gaps = [*_wrong_settings(config, topics), *_late_copies(mark, left_out, left_for)]
        if gaps and not accept_gaps:
            message = f"rows may be missing: {'; '.join(gaps)}; mirror the topics again, or give --accept-gaps"
            raise SettingsError(message)
        connection.execute(_TAKE_LATEST, columns)
        raised = replace(_insert(connection, mark, left_out), gaps=gaps, unchecked=mark.copied_at is None)
        connection.execute(_FORGET_RECORDS)
        failpoint("standby.before_raised")
        return raised


def _load(connection: Conn, config: Mapping[str, str], topic: str) -> list[Mark]:
    """Copy the records of a topic into the table; return its marks."""
    marks: list[Mark] = []
    with connection.cursor() as cursor, cursor.copy(_COPY) as copy:
        for record in read_topic(config, topic, marks):
            row = None if record.row is None else record.row.decode()
            copy.write_row((record.site, record.batch, record.kind, record.key, row, record.copied_at))
    return marks


def _last_complete(by_topic: Mapping[str, Sequence[Mark]]) -> Mark:
    """Return the last mark that both topics have reached, of the site that wrote last."""
    missing = [topic for topic, marks in by_topic.items() if not marks]
    if missing:
        message = (
            f"{' and '.join(missing)} hold no complete state; wait until `tidewheel admin standby status` of the other"
            " site shows one and the topics are mirrored, or give the beginning of their names as --prefix"
        )
        raise SettingsError(message)
    last = [max(marks, key=lambda mark: mark.offset) for marks in by_topic.values()]
    if len({(mark.site, mark.first_batch) for mark in last}) > 1:
        message = (
            f"{' and '.join(by_topic)} are of different sites, or of different calls of `standby enable`; mirror both"
        )
        raise SettingsError(message)
    return min(last, key=lambda mark: mark.batch)


def _check(connection: Conn, mark: Mark) -> None:
    [(shards,)] = cast("list[tuple[int]]", connection.execute(_READ_SHARDS).fetchall())
    if mark.shards != shards:
        message = (
            f"the other site has {mark.shards} shards, but this database has {shards}; run ids depend on this number"
        )
        raise SettingsError(message)
    if mark.schema > (known := migrations()[-1].name):
        message = f"the other site has the schema {mark.schema}, but this release has {known}; install its release here"
        raise SettingsError(message)


def _wrong_settings(config: Mapping[str, str], topics: Topics) -> Iterator[str]:
    """Yield the settings of the copies by which they lose the last record of a row."""
    statuses = [TopicStatus(topic, 1, 1) for topic in topics.standby_plan()]
    for each in setting_deviations(config, statuses, replication=1):
        if each.setting in _KEEPS_ROWS:
            yield f"{each.setting} of {each.topic} is {each.value} instead of {each.wanted}"


def _late_copies(mark: Mark, left_out: int, left_for: timedelta | None) -> Iterator[str]:
    """Yield why compaction may have removed a record whose successor is behind the mark.

    It waits for a time, at the lost site before the copy and in the copies before the raise.
    """
    if mark.copied_at is not None and mark.copied_at - mark.as_of > COMPACTION_LAG:
        behind = mark.copied_at - mark.as_of
        yield f"the mirror was {age_text(behind)} behind, and the lost site compacts after an hour"
    if left_for is not None and left_for > COMPACTION_LAG:
        yield (
            f"{left_out} records behind the last complete state were copied {age_text(left_for)} ago, and may have"
            " replaced others since"
        )


def _insert(connection: Conn, mark: Mark, left_out: int) -> Raised:
    connection.execute(_DROP_FIRST_TENANTS)
    rows = {kind: _insert_table(connection, kind) for kind in CARRIED}
    connection.execute(_BEGIN_SETTLING_AGAIN)
    days = cast("list[tuple[date]]", connection.execute(_FIND_INPUT_DAYS).fetchall())
    ensure_days(connection, [day for (day,) in days])
    connection.execute(_ADD_RUN_INPUTS)
    until = read_now(connection)
    lost = {"executor_id": uuid4(), "reason": _DOUBT, "as_of": mark.as_of, "states": list(OWNED)}
    doubtful = (
        connection.execute(_DOUBT_RUNS, lost).fetchall() + connection.execute(_DOUBT_WAITING_RUNS, lost).fetchall()
    )
    paused = cast("list[tuple[str, str]]", connection.execute(_PAUSE_DOUBTFUL_JOBS, lost).fetchall())
    connection.execute(_ADD_LOST_EXECUTORS, lost)
    connection.execute(_RAISE_EPOCH)  # a service that was started too early ends
    connection.execute(_STORE_RAISE, {"site": mark.site, "batch": mark.batch, "as_of": mark.as_of})
    record_change(connection, process_actor(Door.CLI), Change(ALL_TENANTS, "standby.raise", f"site/{mark.site}"))
    return Raised(
        mark.site,
        mark.batch,
        mark.as_of,
        until,
        rows={kind: number for kind, number in rows.items() if number},
        doubtful_runs=[cast("UUID", row[0]) for row in doubtful],
        paused_jobs=sorted(f"{tenant}/{key}" for tenant, key in paused),
        left_out=left_out,
    )


def _insert_table(connection: Conn, kind: str) -> int:
    """Insert the rows of a table; return their number.

    Rows of an older release lack columns, which take their defaults: rows of one shape are one statement.
    """
    found = cast("list[tuple[str, bool]]", connection.execute(_FIND_COLUMNS, {"kind": kind}).fetchall())
    takes = [name for name, _ in found]
    table, inserted = sql.Identifier(kind), 0
    shapes = cast("list[tuple[list[str], int]]", connection.execute(_FIND_ROW_SHAPES, {"kind": kind}).fetchall())
    for shape, _ in shapes:
        names = [name for name in shape if name in takes]
        statement = sql.SQL(_INSERT).format(
            table=table,
            columns=sql.SQL(", ").join(map(sql.Identifier, names)),
            values=sql.SQL(", ").join(sql.Identifier("p", name) for name in names),
            kind=sql.Literal(kind),
            shape=sql.Literal(shape),
        )
        inserted += connection.execute(statement).rowcount
    for name, is_identity in found:
        if is_identity and inserted:
            advance = sql.SQL(_ADVANCE).format(
                name=sql.Literal(kind), column=sql.Literal(name), identity=sql.Identifier(name), table=table
            )
            connection.execute(advance)
    return inserted
