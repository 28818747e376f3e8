"""Report what a relay holds back, in its row of `members`.

The sweep of executors, `tidewheel status` and `doctor` read it.

What is held back for less than half a second is not reported. So a short burst costs no write.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from psycopg.types.json import Jsonb

from tidewheel.clock import monotonic_seconds
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.session import Session
from tidewheel.postgres.statements import Statements

_REPORT_HELD = Statements("tidewheel.relay")["report_held"]

_EVERY_SECONDS = 2.0
_BRIEF_SECONDS = 0.5
_LARGEST = 5  # tenants of a queue and lane that are named


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
