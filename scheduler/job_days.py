"""Count the runs of each job that ended on a day, when the day is closed.

A page of runs, in the order of their jobs, and the position behind it are one transaction: so a crash counts no run
twice.
"""

from datetime import UTC, date, datetime, timedelta
from typing import cast
from uuid import UUID

from tidewheel.postgres.partitions import start_of
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.process.failpoint import failpoint
from tidewheel.scheduler.pace import Pace

_SQL = Statements("tidewheel.scheduler")
_FIND_DAYS_TO_COUNT = _SQL["find_days_to_count"]
_FIND_PAGE_TO_COUNT = _SQL["find_page_to_count"]
_COUNT_PAGE = _SQL["count_page"]
_ADVANCE_COUNT = _SQL["advance_count"]

_PAGE = 20_000  # runs of one transaction: some tenths of a second
_FIRST, _LAST = (
    (UUID(int=0), datetime(1970, 1, 1, tzinfo=UTC)),
    (UUID(int=(1 << 128) - 1), datetime(9999, 1, 1, tzinfo=UTC)),
)


def count_days(connection: Conn, pace: Pace) -> None:
    """Count the closed days that are not counted.

    Args:
        connection: With autocommit.
        pace: Pauses between pages.
    """
    found = connection.execute(_FIND_DAYS_TO_COUNT, binary=True).fetchall()
    for day, after_job, after_at in cast("list[tuple[date, UUID | None, datetime | None]]", found):
        after = _FIRST if after_job is None or after_at is None else (after_job, after_at)
        while (position := _count_page(connection, day, after)) is not None:
            after = position
            if pace.rest():
                return


def _count_page(connection: Conn, day: date, after: tuple[UUID, datetime]) -> tuple[UUID, datetime] | None:
    """Count the next runs of a day; return the position behind them, None if they were the last."""
    first = start_of(day)
    columns: dict[str, object] = {
        "day": day, "first": first, "end": first + timedelta(days=1), "after_job": after[0], "after_at": after[1],
        "runs": _PAGE - 1,
    }  # fmt: skip
    with connection.transaction():
        row = connection.execute(_FIND_PAGE_TO_COUNT, columns, binary=True).fetchone()
        position = cast("tuple[UUID, datetime] | None", row)
        to = position or _LAST
        connection.execute(_COUNT_PAGE, {**columns, "to_job": to[0], "to_at": to[1]})
        behind = position or (None, None)
        connection.execute(_ADVANCE_COUNT, {"day": day, "after_job": behind[0], "after_at": behind[1]})
        failpoint("counting.before_commit")
    return position
