"""Merge figures of ended runs as they become old: those of 5 seconds into minutes, minutes into hours.

A statement merges a slice of time of some tenants. Figures that a process writes late become a row of their own, with
the next pass.
"""

from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple, cast

from tidewheel.activity import GRAINS
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.scheduler.pace import Pace

_SQL = Statements("tidewheel.scheduler")
_FIND_OLDEST_ACTIVITY = _SQL["find_oldest_activity"]
_FIND_TENANTS_OF_ACTIVITY = _SQL["find_tenants_of_activity"]
_MERGE_ACTIVITY = _SQL["merge_activity"]

_TENANTS = 200  # in one statement: some 50,000 rows if each has two classes

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class _Merge(NamedTuple):
    """Rows of a grain that become rows of the next one, from the age `after` on."""

    grain: int
    after: timedelta
    slice: timedelta


MERGES: Final = (
    _Merge(0, timedelta(hours=2), timedelta(minutes=10)),
    _Merge(1, timedelta(hours=48), timedelta(hours=6)),
)
"""Plots of an hour need half minutes, those of two days quarters of an hour."""


def merge_activity(connection: Conn, now: datetime, pace: Pace) -> None:
    """Merge the rows that are old enough, on a connection with autocommit."""
    for each in MERGES:
        into = GRAINS[each.grain + 1]
        before = now - each.after
        before -= (before - _EPOCH) % into
        while (first := _oldest(connection, each.grain)) is not None and first < before:
            end = min(first - (first - _EPOCH) % each.slice + each.slice, before)
            columns = {"grain": each.grain, "into": into, "first": first, "end": end}
            tenants = [tenant for (tenant,) in connection.execute(_FIND_TENANTS_OF_ACTIVITY, columns)]
            for at in range(0, len(tenants), _TENANTS):
                connection.execute(_MERGE_ACTIVITY, columns | {"tenants": tenants[at : at + _TENANTS]})
                if pace.rest():
                    return


def _oldest(connection: Conn, grain: int) -> datetime | None:
    row = connection.execute(_FIND_OLDEST_ACTIVITY, {"grain": grain}, binary=True).fetchone()
    return cast("tuple[datetime | None]", row)[0]
