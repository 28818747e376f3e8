"""Publish changed rows for a standby site, one batch after another (docs/adr/0082-standby-site.md).

A batch is one transaction with one snapshot: it takes noted changes, reads each row once as it is now, and writes its
record to the outbox. The next batch begins when the records of the last one have left the outbox. So the topics hold
the last state of a row under its key, and a broker that is away fills no outbox. A batch that leaves no change behind
ends with a mark: the topics then hold every row as of its snapshot.

Killed before COMMIT, a batch has changed nothing, and the changes are taken again.
"""

import json
import logging
import threading
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import LiteralString, cast
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
_IS_STANDBY_ENABLED = _SQL["is_standby_enabled"]
_LOCK_STANDBY = _SQL["lock_standby"]
_IS_BATCH_IN_OUTBOX = _SQL["is_batch_in_outbox"]
_TAKE_CHANGES = _SQL["take_standby_changes"]
_STORE_BATCH = _SQL["store_standby_batch"]

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

_MOST_CHANGES = 10_000  # in one batch: a second or two, and some megabytes
_EVERY_SECONDS = 1.0  # between marks; runs that begin and end between two of them have no record
_SOON_SECONDS = 0.05  # until the relay has published a batch
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
    now: datetime
    shards: int
    age: float | None


class StandbyBatches:
    """The thread of a scheduler that publishes changed rows; it starts once recording is enabled.

    Args:
        url: The database.
        installation: Topics and shards.
        stop: The scheduler's shutdown.
    """

    def __init__(self, url: str, installation: Installation, stop: Shutdown) -> None:
        self._installation, self._stop = installation, stop
        self._session = Session(url, "tidewheel-scheduler-standby", options=BY_KEY)
        self._thread: threading.Thread | None = None

    def start_if_enabled(self, session: Session) -> None:
        """Start the thread if recording is enabled; it stays until the shutdown.

        Raises:
            Unavailable: The database does not answer.
        """
        if self._thread is None and self.is_enabled(session):
            self._thread = threading.Thread(target=self._run, name="standby", daemon=True)
            self._thread.start()

    @staticmethod
    def is_enabled(session: Session) -> bool:
        """Return True if `tidewheel standby enable` is in force."""
        with session.transaction() as connection:
            return connection.execute(_IS_STANDBY_ENABLED).fetchone() is not None

    def close(self) -> None:
        """Close the session, where no thread was started."""
        self._session.close()

    def _run(self) -> None:
        run_loop(self._stop, "scheduler: standby", self.step)
        self._session.close()

    def step(self) -> float:
        """Write a batch; return the seconds until the next step.

        Raises:
            Unavailable: The database does not answer, or another scheduler has written a batch meanwhile.
        """
        with self._session.transaction() as connection:
            connection.execute(_ONE_SNAPSHOT)
            with connection.cursor(row_factory=class_row(_State), binary=True) as cursor:
                state = cursor.execute(_LOCK_STANDBY).fetchone()
            if state is None:
                return _OFF_SECONDS
            metrics.set("standby_age_seconds", state.age or 0.0)
            if self._is_in_outbox(connection, state):
                return _SOON_SECONDS
            changes = cast(
                "list[tuple[str, str, str | None]]",
                connection.execute(_TAKE_CHANGES, {"limit": _MOST_CHANGES}).fetchall(),
            )
            complete = state.listed and len(changes) < _MOST_CHANGES
            # A list: a query inside COPY would wait for it for ever.
            records = list(self._records(connection, state, changes, complete=complete))
            append(connection, records, shards=state.shards)
            connection.execute(_STORE_BATCH, {"batch": state.batch + 1, "sent_at": state.now, "complete": complete})
            failpoint("standby.before_commit")
        return _EVERY_SECONDS if complete else 0.0

    def _is_in_outbox(self, connection: Conn, state: _State) -> bool:
        topics = self._installation.topics
        columns = {
            "slice_lane": slice_lane_of(slice_of(_SHARD, state.shards), _EVENTS),
            "sent_at": state.sent_at,
            "topics": [topics.jobs, topics.run_states],
        }
        return connection.execute(_IS_BATCH_IN_OUTBOX, columns).fetchone() is not None

    def _records(
        self, connection: Conn, state: _State, changes: Iterable[tuple[str, str, str | None]], *, complete: bool
    ) -> Iterator[OutboxRow]:
        """Yield the records of a batch, the marks last.

        A row that is gone has a tombstone, unless it came in this batch too: then it has no record.
        """
        topics, batch = self._installation.topics, state.batch + 1
        headers = pack([("site", str(state.site).encode()), ("batch", str(batch).encode())])

        def record(topic: str, kind: str, key: str, row: bytes | None) -> OutboxRow:
            value = None
            if row is not None:
                is_compressed = len(row) >= _COMPRESSED_FROM
                content = zlib.compress(row, 1) if is_compressed else row
                value = encode(
                    StandbyRow(
                        site=str(state.site),
                        batch=batch,
                        as_of=state.now,
                        kind=kind,
                        row=content,
                        is_compressed=is_compressed,
                    )
                )
            return OutboxRow(_SHARD, _EVENTS, topic, key_of(kind, key), value, state.now, headers)

        by_kind: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        came: set[tuple[str, str]] = set()
        for kind, key, op in changes:
            by_kind[kind][key] += _COUNTED.get(op, 0)
            if op == "INSERT":
                came.add((kind, key))
        for kind, keys in by_kind.items():
            for key, row in _read_rows(connection, kind, sorted(keys)):
                if row is not None or keys[key] != 0 or (kind, key) not in came:
                    yield record(topic_of(topics, kind), kind, key, row)
        if complete:
            facts = {"shards": state.shards, "first_batch": state.first_batch, "schema": migrations()[-1].name}
            for topic in (topics.jobs, topics.run_states):
                yield record(topic, MARK, "", json.dumps(facts).encode())


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
