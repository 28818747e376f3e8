"""Report what a relay holds back, and walk over all rows of those topics in the background.

The sweep of executors, `tidewheel status` and `doctor` read it.

What is held back for less than half a second is not reported. So a short burst costs no write.

A row may be committed minutes after its time. Reads pass over such topics, and scans look 15 s behind the marks. So a
row that is later still would wait until its topic is held back no longer. The walk goes over what lies before the
marks, some thousand rows at a time. Each pause is twenty times as long. `HoldBack` stages those rows that are neither
staged nor in flight. The walk also finds staged rows that a rewrite of the table has moved.

The walk has a thread and a session of its own: behind an old transaction it meets all deleted rows.
"""

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import cast
from uuid import UUID

import psycopg
from psycopg.types.json import Jsonb

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import Unavailable
from tidewheel.postgres.background import BackgroundQuery
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.low_water import FullScanPacer
from tidewheel.postgres.session import Session
from tidewheel.postgres.statements import Statements
from tidewheel.relay.due_rows import SESSION_OPTIONS, OutboxPosition, Pair, ids_of, position_columns

_REPORT_HELD = Statements("tidewheel.relay")["report_held"]
_EVERY_SECONDS = 2.0
_BRIEF_SECONDS = 0.5
_LARGEST = 5  # tenants of a queue and lane that are named
_LOG = logging.getLogger("tidewheel.relay")
_STAGE_OUTBOX = Statements("tidewheel.relay")["stage_outbox"]
_PART_ROWS = 20_000  # about 50 ms, on a thread of its own; a million rows take a minute


@dataclass(frozen=True, slots=True)
class HeldLane:
    """The runs of a queue and lane that are held back.

    Args:
        began: The monotonic time at which they were held back.
        complete: False if there may be more.
    """

    queue: str
    lane: str
    began: float
    counts: Mapping[str, int]
    complete: bool


class HeldReport:
    """The reports of one relay."""

    def __init__(self, session: Session, member_id: UUID) -> None:
        self._session, self._member_id = session, member_id
        self._reported = False
        self._next = 0.0

    def is_due(self, began: Iterable[float]) -> bool:
        """Return True if a report is to be written; `began` are the times at which topics were held back."""
        now = monotonic_seconds()
        return now >= self._next if any(_is_long(at, now) for at in began) else self._reported

    def write(self, lanes: list[HeldLane]) -> None:
        """Write what is held back."""
        began = monotonic_seconds()
        lanes = [lane for lane in lanes if _is_long(lane.began, began)]
        with self._session.transaction() as connection:
            now = read_now(connection)
            held = [_row(lane, now - timedelta(seconds=began - lane.began)) for lane in lanes]
            columns = {"held": Jsonb(held) if held else None, "member_id": self._member_id}
            connection.execute(_REPORT_HELD, columns)
        self._reported, self._next = bool(held), began + _EVERY_SECONDS


@dataclass(frozen=True, slots=True)
class WalkedPart:
    """Due rows of a topic by slice and lane; one with fewer rows than the limit has no further ones."""

    topic: str
    rows: Mapping[Pair, list[tuple[str, int, bytes]]]
    limit: int
    seconds: float


class HeldWalk:
    """At most one part of a walk at a time."""

    def __init__(self, url: str) -> None:
        self._session = Session(url, "tidewheel-relay-walk", options=SESSION_OPTIONS, autocommit=True)
        self._background = BackgroundQuery[WalkedPart](self._session, "relay-walk")
        self._pacer = FullScanPacer(at_once=False)

    def is_due(self) -> bool:
        """Return True if the next part is to be started."""
        return not self._background.busy and self._pacer.start()

    def start(self, topic: str, after: Mapping[Pair, OutboxPosition]) -> None:
        """Start a part: rows of a topic after these positions."""
        self._background.start(partial(self._find, topic, dict(after)))

    def take(self) -> WalkedPart | None:
        """Return a part that has ended, once."""
        part = self._background.take()
        if part is not None:
            self._pacer.record(part.seconds)
        return part

    def close(self) -> None:
        """Cancel the part under way, and close the connection."""
        self._background.close()

    def _find(self, topic: str, after: Mapping[Pair, OutboxPosition]) -> WalkedPart:
        pairs = [*after]
        limit = max(_PART_ROWS // len(pairs), 1)
        columns = {**position_columns(pairs, after), "topic": topic, "row_limit": limit, "known": ids_of(())}
        began = monotonic_seconds()
        rows: defaultdict[Pair, list[tuple[str, int, bytes]]] = defaultdict(list)
        try:
            with self._session.transaction() as connection:
                found = connection.execute(_STAGE_OUTBOX, columns, binary=True, prepare=False).fetchall()
            for position, tenant, priority, entry in cast("list[tuple[int, str, int, bytes]]", found):
                rows[pairs[position - 1]].append((tenant, priority, entry))
        except (Unavailable, psycopg.Error) as error:
            if not self._background.closing:
                _LOG.warning("topic %s: the walk for late rows failed and is repeated later: %s", topic, error)
        return WalkedPart(topic, rows, limit, monotonic_seconds() - began)


def _is_long(began: float, now: float) -> bool:
    """Return True if a topic is held back for so long that it is reported."""
    return now - began >= _BRIEF_SECONDS


def _row(lane: HeldLane, since: datetime) -> dict[str, object]:
    largest = sorted(lane.counts, key=lambda tenant: (-lane.counts[tenant], tenant))[:_LARGEST]
    return {
        "queue": lane.queue,
        "lane": lane.lane,
        "since": since.isoformat(),
        "runs": sum(lane.counts.values()),
        "complete": lane.complete,
        "tenants": len(lane.counts),
        "largest": {tenant: lane.counts[tenant] for tenant in largest},
    }
