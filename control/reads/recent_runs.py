"""Read the latest runs of each job of a page, and the keys nearest to a text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements

_SQL = Statements("tidewheel.control")
_READ_RECENT_RUNS = _SQL["read_recent_runs"]
_FIND_KEYS_FROM = _SQL["find_keys_from"]


@dataclass(frozen=True, slots=True)
class RecentRun:
    """A run of the last seven days."""

    job_id: UUID
    run_id: UUID
    scheduled_at: datetime
    state: str
    started_at: datetime | None
    finished_at: datetime | None


def read_recent_runs(connection: Conn, job_ids: Sequence[UUID]) -> Mapping[UUID, Sequence[RecentRun]]:
    """Return the newest 20 runs of each job within seven days, the newest first."""
    found: dict[UUID, list[RecentRun]] = {each: [] for each in job_ids}
    with connection.cursor(row_factory=class_row(RecentRun), binary=True) as cursor:
        for run in cursor.execute(_READ_RECENT_RUNS, {"job_ids": list(job_ids)}):
            found[run.job_id].append(run)
    return found


def nearest_key(connection: Conn, tenant: str, text: str) -> str | None:
    """Return the key that has the longest common beginning with a text; None if none begins like it."""
    rows = connection.execute(_FIND_KEYS_FROM, {"tenant": tenant, "text": text, "limit": 1}, binary=True).fetchall()
    keys = [str(row[0]) for row in rows]
    best = max(keys, key=lambda key: _common(key, text), default=None)
    return best if best is not None and _common(best, text) else None


def _common(one: str, other: str) -> int:
    """Return the length of the common beginning of two texts.

    >>> _common("nightly", "nightshift"), _common("a", "b")
    (5, 0)
    """
    return next(
        (at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), min(len(one), len(other))
    )
