"""Reads calendars as sets of days.

A calendar is changed in the transaction that holds the timers of all jobs that name it (`tidewheel.intake.calendars`):
whoever has locked a timer reads days that hold until the transaction ends.
"""

from collections.abc import Collection, Mapping
from datetime import date, datetime
from functools import lru_cache
from typing import cast

from tidewheel.db import Conn
from tidewheel.occurrences import DaySet
from tidewheel.sql import Statements

_READ_DAY_SETS = Statements("tidewheel.transitions")["read_day_sets"]


def read_day_sets(connection: Conn, wanted: Collection[tuple[str, str]]) -> Mapping[tuple[str, str], DaySet]:
    """The calendars of these tenants and names; one that does not exist is left out."""
    if not wanted:
        return {}
    pairs = sorted(set(wanted))
    columns = {"tenants": [tenant for tenant, _ in pairs], "names": [name for _, name in pairs]}
    rows = connection.execute(_READ_DAY_SETS, columns, binary=True)
    return {
        (str(tenant), str(name)): _shared(
            DaySet(
                frozenset(cast("list[date]", days)),
                frozenset(cast("list[int]", weekdays)),
                cast("datetime | None", since),
            )
        )
        for tenant, name, days, weekdays, since in rows
    }


@lru_cache(maxsize=1024)  # what is remembered by days is found by identity then, not by comparing ten thousand dates
def _shared(days: DaySet) -> DaySet:
    return days
