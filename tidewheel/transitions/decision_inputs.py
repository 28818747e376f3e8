"""What decisions about locked timers need beside their rows: calendars, and what people said about coming occurrences.

Most timers need neither, and then nothing is read. Both are changed under the timers' locks alone, so what is read
after locking holds until the transaction ends.

Reads calendars as sets of days.

A calendar is changed in the transaction that holds the timers of all jobs that name it (`tidewheel.intake.calendars`):
whoever has locked a timer reads days that hold until the transaction ends.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from functools import lru_cache
from typing import cast
from uuid import UUID

from tidewheel.postgres.pg_arrays import instants, uuids
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.schedules.decision import DaySet, Override
from tidewheel.transitions.timers import LockedTimer

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


_READ_OVERRIDES = Statements("tidewheel.transitions")["read_overrides"]

_NAMED = 'calendars":["'  # in the canonical text of a policy that names one


@dataclass(frozen=True, slots=True)
class DecisionInputs:
    """What is known beside the rows.

    Args:
        day_sets: The calendars that the timers' policies name, by tenant and name.
        overrides: What was said about single occurrences, by job.
    """

    day_sets: Mapping[tuple[str, str], DaySet] = field(default_factory=dict[tuple[str, str], DaySet])
    overrides: Mapping[UUID, Sequence[Override]] = field(default_factory=dict[UUID, Sequence[Override]])

    def of(self, timer: LockedTimer) -> Sequence[Override]:
        """The overrides of one timer."""
        return self.overrides.get(timer.job_id, ())


def read_decision_inputs(connection: Conn, timers: Sequence[LockedTimer]) -> DecisionInputs:
    """Read what these timers need, in the transaction that has locked them."""
    wanted = {(timer.tenant, name) for timer in timers if _NAMED in timer.policy for name in _names(timer.policy)}
    overridden = [timer for timer in timers if timer.overridden]
    return DecisionInputs(
        read_day_sets(connection, wanted) if wanted else {},
        _read_overrides(connection, overridden) if overridden else {},
    )


def _names(policy: str) -> list[str]:
    document = cast("Mapping[str, list[str]]", json.loads(policy))
    return [*document.get("exclude_calendars", ()), *document.get("include_calendars", ())]


def _read_overrides(connection: Conn, timers: Sequence[LockedTimer]) -> dict[UUID, list[Override]]:
    columns = {
        "job_ids": uuids(timer.job_id for timer in timers),
        "cursors": instants(timer.scheduled_at for timer in timers),
    }
    found: dict[UUID, list[Override]] = {}
    for job_id, at, moved_to, done in connection.execute(_READ_OVERRIDES, columns, binary=True):
        assert isinstance(job_id, UUID)  # noqa: S101 - the column's type
        found.setdefault(job_id, []).append(Override(at, moved_to, done))  # type: ignore[arg-type]  # the columns' types
    return found
