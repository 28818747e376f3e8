"""Count the runs of each job that ended on a day, when the day is closed.

A slice of the job ids and the position behind it are one transaction: so a crash counts no run twice. A slice reads the
whole day in the order of its pages: in the order of the jobs each run would be a read at random.
"""

from datetime import UTC, date, datetime, timedelta
from typing import LiteralString, cast
from uuid import UUID

from tidewheel.postgres.partitions import start_of
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.process.failpoint import failpoint
from tidewheel.scheduler.pace import Pace

_SQL = Statements("tidewheel.scheduler")
_FIND_DAYS_TO_COUNT = _SQL["find_days_to_count"]
_COUNT_SLICE = _SQL["count_slice"]
_ADVANCE_COUNT = _SQL["advance_count"]
# A tenth of 100 million runs takes more than a minute. Nothing else writes the rows that the transaction locks. The
# limit of a begun transaction can be removed, and not extended. Source: PostgreSQL's assign_transaction_timeout.
_EXTEND_LIMITS: LiteralString = """
SELECT set_config(name, CASE name WHEN 'statement_timeout' THEN '10min' ELSE '0' END, true)
  FROM pg_settings WHERE name IN ('statement_timeout', 'transaction_timeout')
"""

_SLICE = 1_000_000  # runs of one transaction: some seconds
_MAX_SLICES = 10  # of a day: each reads all of it
_FIRST = UUID(int=0), datetime(1970, 1, 1, tzinfo=UTC)


def count_days(connection: Conn, pace: Pace) -> None:
    """Count the closed days that are not counted, on a connection with autocommit."""
    found = connection.execute(_FIND_DAYS_TO_COUNT, binary=True).fetchall()
    for day, runs, after_job, after_at in cast("list[tuple[date, int, UUID | None, datetime | None]]", found):
        after = _FIRST if after_job is None or after_at is None else (after_job, after_at)
        slices = min(max(runs, 0) // _SLICE + 1, _MAX_SLICES)
        ends = [UUID(int=(number << 128) // slices) for number in range(1, slices)]
        for end in [*(each for each in ends if each > after[0]), None]:
            _count_slice(connection, day, after, end)
            if pace.rest():
                return
            after = end or after[0], _FIRST[1]


def _count_slice(connection: Conn, day: date, after: tuple[UUID, datetime], end: UUID | None) -> None:
    """Count the runs behind a position, of the jobs before `end`; None for the rest."""
    first = start_of(day)
    columns: dict[str, object] = {
        "day": day, "first": first, "end": first + timedelta(days=1), "after_job": after[0], "after_at": after[1],
        "end_job": end,
    }  # fmt: skip
    behind = (None, None) if end is None else (end, _FIRST[1])
    with connection.transaction():
        connection.execute(_EXTEND_LIMITS)
        connection.execute(_COUNT_SLICE, columns)
        connection.execute(_ADVANCE_COUNT, {"day": day, "after_job": behind[0], "after_at": behind[1]})
        failpoint("counting.before_commit")
