"""Read the inputs of decisions about locked timers: calendars, and overrides of single occurrences.

Most timers need neither, and then nothing is read. Both change only under the timers' locks: a calendar changes in the
transaction that has locked the timers of all jobs that name it (`tidewheel.intake.calendars`). So the inputs stay the
same until the transaction that has locked a timer ends.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Protocol, cast
from uuid import UUID

from tidewheel.postgres.pg_binary import instants, uuids
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.schedules.decision import DaySet, Override
from tidewheel.schedules.timer_state import Timer
from tidewheel.weighed_cache import WeighedCache

_SQL = Statements("tidewheel.transitions")

_CALENDARS = 'calendars":["'  # in the canonical text of a policy that names one


class DecidedTimer(Timer, Protocol):
    """The columns of a timer that its inputs depend on."""

    @property
    def overridden(self) -> bool: ...  # noqa: D102 - the column of that name


@dataclass(frozen=True, slots=True)
class DecisionInputs:
    """The inputs of decisions beyond the timers' rows: calendars by tenant and name, overrides by job."""

    day_sets: Mapping[tuple[str, str], DaySet] = field(default_factory=dict[tuple[str, str], DaySet])
    overrides: Mapping[UUID, Sequence[Override]] = field(default_factory=dict[UUID, Sequence[Override]])

    def of(self, timer: DecidedTimer) -> Sequence[Override]:
        """Return the overrides of one timer."""
        return self.overrides.get(timer.job_id, ())


def read_decision_inputs(connection: Conn, timers: Sequence[DecidedTimer]) -> DecisionInputs:
    """Read the inputs for these timers, in the transaction that has locked them or only shows them."""
    names = {
        (timer.tenant, name)
        for timer in timers
        if _CALENDARS in timer.policy_json
        for name in _names(timer.policy_json)
    }
    overridden = [timer for timer in timers if timer.overridden]
    return DecisionInputs(
        read_day_sets(connection, names) if names else {},
        _read_overrides(connection, overridden) if overridden else {},
    )


def read_day_sets(connection: Conn, names: Collection[tuple[str, str]]) -> Mapping[tuple[str, str], DaySet]:
    """Return the calendars of these tenants and names; one that does not exist is left out."""
    if not names:
        return {}
    pairs = sorted(set(names))
    columns = {"tenants": [tenant for tenant, _ in pairs], "names": [name for _, name in pairs]}
    rows = connection.execute(_SQL["read_day_sets"], columns, binary=True)
    return {
        (str(tenant), str(name)): _DAY_SETS.of(
            DaySet(
                frozenset(cast("list[date]", days)),
                frozenset(cast("list[int]", weekdays)),
                cast("datetime | None", since),
            )
        )
        for tenant, name, days, weekdays, since in rows
    }


# Caches keyed by days compare identities, not ten thousand dates.
_DAY_SETS = WeighedCache[DaySet, DaySet](lambda days: days, lambda days: days.weight, 16 << 20)


def _names(policy: str) -> list[str]:
    try:
        document = cast("Mapping[str, list[str]]", json.loads(policy))
    except ValueError:
        return []  # the decision about this timer fails, and concerns no other
    return [*document.get("exclude_calendars", ()), *document.get("include_calendars", ())]


def _read_overrides(connection: Conn, timers: Sequence[DecidedTimer]) -> dict[UUID, list[Override]]:
    columns = {
        "job_ids": uuids(timer.job_id for timer in timers),
        "cursors": instants(timer.scheduled_at for timer in timers),
    }
    found: dict[UUID, list[Override]] = {}
    for job_id, at, moved_to, done in connection.execute(_SQL["read_overrides"], columns, binary=True):
        assert isinstance(job_id, UUID)  # noqa: S101 - the column's type
        found.setdefault(job_id, []).append(Override(at, moved_to, done))  # type: ignore[arg-type]  # the columns' types
    return found
