"""Publish changed rows for a standby site, one batch after another (docs/adr/0082-standby-site.md).

A batch is one transaction with one snapshot: it takes noted changes, reads each row once as it is now, and writes its
record to the outbox. The next batch begins when the records of the last one have left the outbox. So the topics hold
the last state of a row under its key, and a broker that is away fills no outbox. A batch that leaves no change behind
has a mark, which is written once its records are published: the topics then hold every row as of its snapshot.

Killed before COMMIT, a batch has changed nothing, and the changes are taken again.
"""

import json
import logging
import threading
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import LiteralString, NamedTuple, cast
from uuid import UUID

from psycopg import sql
from psycopg.rows import class_row

from tidewheel.migrations.runner import migrations
from tidewheel.outbox import OutboxLane, OutboxRow, append, pack, slice_lane_of, slice_of
from tidewheel.postgres.session import BY_KEY, Conn, Session
from tidewheel.postgres.statements import Statements
from tidewheel.process.failpoint import failpoint
from tidewheel.process.metrics import metrics
from tidewheel.process.service import Shutdown, run_loop
from tidewheel.schemas.codec import encode
from tidewheel.schemas.generated.records import StandbyRow
from tidewheel.standby import CARRIED, MARK, key_of, topic_of
from tidewheel.transitions.installation import Installation

_LOG = logging.getLogger("tidewheel.scheduler")

_SQL = Statements("tidewheel.scheduler")
_READ_STANDBY_AGE = _SQL["read_standby_age"]
_LOCK_STANDBY = _SQL["lock_standby"]
_FIND_UNPUBLISHED = _SQL["find_unpublished_records"]
_FIND_CHANGES = _SQL["find_standby_changes"]
_FORGET_CHANGES = _SQL["forget_standby_changes"]
_STORE_BATCH = _SQL["store_standby_batch"]
_STORE_MARK = _SQL["store_standby_mark"]
_STORE_REFUSAL = _SQL["store_standby_refusal"]

# In front of every other statement of its transaction, which then reads one snapshot.
_ONE_SNAPSHOT: LiteralString = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"
_READ_ROWS: LiteralString = """
SELECT k.key, convert_to({row}::text, 'UTF8')
  FROM unnest(%(keys)s::text[]) AS k (key)
 CROSS JOIN LATERAL jsonb_populate_record(NULL::{table}, k.key::jsonb) AS p
  LEFT JOIN {table} AS t ON {match}
"""
_ROW: LiteralString = "to_jsonb(t)"
# What a run has beyond its job's version goes with it: its partition is dropped without a change of its row.
_ROW_OF_RUN: LiteralString = """
(to_jsonb(t) || jsonb_build_object('run_inputs', (
    SELECT to_jsonb(i) FROM run_inputs AS i WHERE i.run_id = t.run_id ORDER BY i.created_at DESC LIMIT 1)))
"""

_MOST_CHANGES = 10_000  # in one batch: a second or two
_MOST_BYTES = 16 << 20  # of the records of one batch, which the process holds in memory
_READ_AT_ONCE = 100  # rows, of which each may have half a megabyte
_EVERY_SECONDS = 1.0  # between marks; runs that begin and end between two of them have no record
_SOON_SECONDS = 0.05  # until the relay has published a batch: at first, then twice as long each time
_OFF_SECONDS = 5.0
_COMPRESSED_FROM = 64 * 1024  # bytes as JSON has two digits for each
_COUNTED: Mapping[str | None, int] = {"INSERT": 1, "DELETE": -1}
_EVENTS = OutboxLane.EVENTS
_SHARD = 0  # of all records: rows of one slice leave in the order in which they were written


@dataclass(frozen=True, slots=True)
class _State:
    site: UUID
    listed: bool
    first_batch: int
    batch: int
    sent_at: datetime | None
    mark_due: bool
    complete_at: datetime | None
    now: datetime
    oldest: int
    shards: int
    age: float


class _Change(NamedTuple):
    """The columns of `find_standby_changes`."""

    place: str
    xact: int
    kind: str
    key: str
    op: str | None


class StandbyBatches:
    """The thread of a scheduler that publishes changed rows; it starts once recording is enabled."""

    def __init__(self, url: str, installation: Installation, stop: Shutdown) -> None:
        self._installation, self._stop = installation, stop
        self._session = Session(url, "tidewheel-scheduler-standby", options=BY_KEY)
        self._thread: threading.Thread | None = None
        self._wait = _SOON_SECONDS
        # Changes of older transactions are taken. It holds for one connection: a server that is promoted counts anew.
        self._oldest = 0
        self._connection: Conn | None = None

    def start_if_enabled(self, session: Session) -> None:
        """Start the thread if recording is enabled; it stays until the shutdown."""
        if self._thread is None and self.is_enabled(session):
            self._thread = threading.Thread(target=self._run, name="standby", daemon=True)
            self._thread.start()

    @staticmethod
    def is_enabled(session: Session) -> bool:
        """Return True if `tidewheel admin standby enable` is in force."""
        with session.transaction() as connection:
            return connection.execute(_READ_STANDBY_AGE).fetchone() is not None

    def close(self) -> None:
        """Close the session, where no thread was started."""
        self._session.close()

    def _run(self) -> None:
        run_loop(self._stop, "scheduler: standby", self.step)
        self._session.close()

    def step(self) -> float:
        """Write a batch, or the mark of the last one; return the seconds until the next step.

        Raises:
            Unavailable: The database does not answer, or another scheduler has written a batch meanwhile.
        """
        with self._session.transaction() as connection:
            if connection is not self._connection:
                self._connection, self._oldest = connection, 0
            connection.execute(_ONE_SNAPSHOT)
            with connection.cursor(row_factory=class_row(_State), binary=True) as cursor:
                state = cursor.execute(_LOCK_STANDBY).fetchone()
            if state is None:
                found = connection.execute(_READ_STANDBY_AGE).fetchone()
                metrics.set("standby_age_seconds", cast("float", found[0]) if found is not None else 0.0)
                return _OFF_SECONDS
            metrics.set("standby_age_seconds", state.age)
            waits, refused = self._unpublished(connection, state)
            if waits:
                self._wait = min(2 * self._wait, _EVERY_SECONDS)
                return self._wait
            self._wait = _SOON_SECONDS
            if refused and state.listed:
                _LOG.error("Kafka refused records for the standby site; run `tidewheel doctor`")
                connection.execute(_STORE_REFUSAL)
                return 0.0
            if state.mark_due:
                as_of = cast("datetime", state.sent_at)
                append(connection, self._marks(state, state.batch, as_of), shards=state.shards)
                connection.execute(_STORE_MARK)
                return _EVERY_SECONDS
            pause, oldest = self._write_batch(connection, state)
        self._oldest = oldest
        return pause

    def _unpublished(self, connection: Conn, state: _State) -> tuple[bool, bool]:
        """Return whether records wait in the outbox, and whether Kafka has refused any."""
        topics = self._installation.topics
        columns = {
            "slice_lane": slice_lane_of(slice_of(_SHARD, state.shards), _EVENTS),
            "sent_at": state.sent_at,
            "topics": [topics.jobs, topics.run_states],
        }
        return cast("tuple[bool, bool]", connection.execute(_FIND_UNPUBLISHED, columns).fetchone())

    def _write_batch(self, connection: Conn, state: _State) -> tuple[float, int]:
        """Write the records of noted changes; return the pause, and the oldest transaction to read from next."""
        limits: dict[str, object] = {"oldest": str(self._oldest), "limit": _MOST_CHANGES}
        rows = connection.execute(_FIND_CHANGES, limits).fetchall()
        changes = [_Change._make(cast("tuple[str, int, str, str, str | None]", row)) for row in rows]
        takes_all = len(changes) < _MOST_CHANGES
        # The last batch has taken all: what these changes add up to is then what has become of a row since its mark.
        follows_mark = takes_all and state.complete_at is not None and state.complete_at == state.sent_at
        records, done = self._records(connection, state, changes, follows_mark=follows_mark)
        if done < len(changes):
            takes_all, changes = False, changes[:done]
        append(connection, records, shards=state.shards)
        connection.execute(_FORGET_CHANGES, {"places": [change.place for change in changes]})
        is_whole = takes_all and state.listed
        batch = state.batch + 1
        stored = {"batch": batch, "sent_at": state.now, "mark_due": is_whole}
        connection.execute(_STORE_BATCH, stored)
        if is_marked := is_whole and not records:
            append(connection, self._marks(state, batch, state.now), shards=state.shards)
            connection.execute(_STORE_MARK)
        failpoint("standby.before_commit")
        # A transaction that this snapshot finds under way may yet commit a change.
        oldest = state.oldest if takes_all else min(state.oldest, changes[-1].xact)
        return _EVERY_SECONDS if is_marked else _SOON_SECONDS if is_whole else 0.0, oldest

    def _records(
        self, connection: Conn, state: _State, changes: Sequence[_Change], *, follows_mark: bool
    ) -> tuple[list[OutboxRow], int]:
        """Return the records of a batch, and the number of the changes that they are of.

        A row that is gone has a tombstone. It has none if it came and went since the last mark: no record is of it.
        """
        net: dict[tuple[str, str], int] = defaultdict(int)
        came: set[tuple[str, str]] = set()
        for change in changes:
            net[change.kind, change.key] += _COUNTED.get(change.op, 0)
            if change.op == "INSERT":
                came.add((change.kind, change.key))
        batch, seen = state.batch + 1, set[tuple[str, str]]()
        headers = _headers(state, batch)
        records: list[OutboxRow] = []
        size = 0
        for first in range(0, len(changes), _READ_AT_ONCE):
            if size >= _MOST_BYTES:
                return records, first
            by_kind: dict[str, set[str]] = defaultdict(set)
            for change in changes[first : first + _READ_AT_ONCE]:
                if (change.kind, change.key) not in seen:
                    seen.add((change.kind, change.key))
                    by_kind[change.kind].add(change.key)
            for kind, keys in by_kind.items():
                for key, row in _read_rows(connection, kind, sorted(keys)):
                    if row is None and follows_mark and net[kind, key] == 0 and (kind, key) in came:
                        continue
                    value = None if row is None else _value(state, batch, state.now, kind, row)
                    size += len(value or b"")
                    topic = topic_of(self._installation.topics, kind)
                    records.append(OutboxRow(_SHARD, _EVENTS, topic, key_of(kind, key), value, state.now, headers))
        return records, len(changes)

    def _marks(self, state: _State, batch: int, as_of: datetime) -> list[OutboxRow]:
        facts = {"shards": state.shards, "first_batch": state.first_batch, "schema": migrations()[-1].name}
        value = _value(state, batch, as_of, MARK, json.dumps(facts).encode())
        topics, headers = self._installation.topics, _headers(state, batch)
        return [
            OutboxRow(_SHARD, _EVENTS, topic, key_of(MARK, ""), value, state.now, headers)
            for topic in (topics.jobs, topics.run_states)
        ]


def _headers(state: _State, batch: int) -> bytes:
    return pack([("site", str(state.site).encode()), ("batch", str(batch).encode())])


def _value(state: _State, batch: int, as_of: datetime, kind: str, row: bytes) -> bytes:
    is_compressed = len(row) >= _COMPRESSED_FROM
    content = zlib.compress(row, 1) if is_compressed else row
    return encode(
        StandbyRow(site=str(state.site), batch=batch, as_of=as_of, kind=kind, row=content, is_compressed=is_compressed)
    )


def _read_rows(connection: Conn, kind: str, keys: list[str]) -> list[tuple[str, bytes | None]]:
    """Return each row as JSON by its key; None for one that is gone."""
    statement = sql.SQL(_READ_ROWS).format(
        row=sql.SQL(_ROW_OF_RUN if kind == "job_runs" else _ROW),
        table=sql.Identifier(kind),
        match=sql.SQL(" AND ").join(
            sql.SQL("t.{0} = p.{0}").format(sql.Identifier(column)) for column in CARRIED[kind]
        ),
    )
    return cast("list[tuple[str, bytes | None]]", connection.execute(statement, {"keys": keys}).fetchall())
