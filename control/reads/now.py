"""Read the present of a tenant: what needs a person and why, what is due, what runs, what ended."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated

from pydantic import Field

from tidewheel.activity import begin_of
from tidewheel.control.reads.causes import Causes, Need
from tidewheel.control.reads.fleet import FleetStatus
from tidewheel.control.reads.waits import LEASE
from tidewheel.control.reads.workload import (
    OpenRuns,
    on_time,
    read_activity,
    read_open_runs,
    read_upcoming,
)
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.runs import OWNED

_COUNT_SLOTS = Statements("tidewheel.control")["count_slots"]

_HOUR, _MINUTE = timedelta(hours=1), timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class DueNext:
    """The jobs whose timers come due."""

    jobs: Annotated[int, Field(description="Their number.")]
    at_least: Annotated[bool, Field(description="True if there are more.")]


@dataclass(frozen=True, slots=True)
class Slots:
    """The slots of live executors.

    Args:
        busy: Runs of the tenant that hold one.
        all: All slots; None for a reader of one tenant, whom the other tenants' executors do not concern.
    """

    busy: int
    all: int | None


@dataclass(frozen=True, slots=True)
class Now:
    """The present of a tenant."""

    as_of: Annotated[datetime, Field(description="The database's clock.")]
    findings: Annotated[
        tuple[Need, ...],
        Field(description="What needs a person, one for each cause: what stops work first, then the most harm."),
    ]
    due_next_minute: Annotated[DueNext, Field(description="The jobs that come due within a minute.")]
    running: Annotated[int, Field(description="The running runs, including those with a requested cancel.")]
    slots: Annotated[Slots, Field(description="The slots of live executors.")]
    open: Annotated[
        Mapping[str, int], Field(description="The open runs by state; `scheduled` are those before their time.")
    ]
    open_at_least: Annotated[bool, Field(description="True if there may be more open runs.")]
    ended_hour: Annotated[int, Field(description="The runs that ended within the last hour.")]
    ran_hour: Annotated[int, Field(description="Those of them that succeeded, failed or timed out.")]
    failed_hour: Annotated[int, Field(description="Those of these that failed or timed out.")]
    on_time_rate: Annotated[
        float | None,
        Field(
            description="The share of runs claimed within a second of their time, of those claimed within the hour and"
            " those that wait for longer than a second; null without runs."
        ),
    ]
    claimed_hour: Annotated[int, Field(description="The runs that were claimed within the hour.")]


def read_now_of(
    connection: Conn,
    tenant: str,
    shards: int,
    fleet: FleetStatus | None,
    *,
    sees_slots: bool,
    as_of: datetime | None = None,
    open_runs: OpenRuns | None = None,
) -> Now:
    """Return the present of a tenant.

    Args:
        fleet: The fleet, for a reader who sees all tenants.
        sees_slots: True for a reader of all tenants.
        as_of: The database's clock, if the caller has read it.
        open_runs: The tenant's open runs, if the caller has read them.
    """
    now = as_of or read_now(connection)
    since = begin_of(now - _HOUR)  # figures are of 5 seconds: failures of the same time then have the same number
    found = open_runs or read_open_runs(connection, tenant)
    ended = read_activity(connection, tenant, [since, begin_of(now - _MINUTE), now + _HOUR]).bins
    failed = sum(each.failed + each.timed_out for each in ended)
    ran = failed + sum(each.succeeded for each in ended)
    ran_minute = ended[-1].succeeded + ended[-1].failed + ended[-1].timed_out
    running = sum(found.states.get(state, 0) for state in OWNED)
    upcoming = read_upcoming(connection, tenant, shards, [now, now + _MINUTE])
    prompt, claimed = on_time(connection, tenant, since, now + _HOUR)
    due = claimed + sum(each.late for each in found.waiting)
    causes = Causes(connection, tenant, shards, now, since, failed, ran_minute, found.waiting, fleet)
    return Now(
        as_of=now,
        findings=causes.find(),
        due_next_minute=DueNext(upcoming.jobs, upcoming.at_least),
        running=running,
        slots=Slots(running, _slots(connection, fleet) if sees_slots else None),
        open=found.states,
        open_at_least=found.at_least,
        ended_hour=ran + sum(each.cancelled + each.skipped for each in ended),
        ran_hour=ran,
        failed_hour=failed,
        on_time_rate=prompt / due if due else None,
        claimed_hour=claimed,
    )


def _slots(connection: Conn, fleet: FleetStatus | None) -> int:
    if fleet is not None:
        return sum(each.slots or 0 for each in fleet.services if not (each.is_silent or each.is_stopping))
    row = connection.execute(_COUNT_SLOTS, {"lease": LEASE}, binary=True).fetchone()
    return row[0] if row is not None and isinstance(row[0], int) else 0
