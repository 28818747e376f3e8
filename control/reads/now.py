"""Read the present of a tenant: what needs a person, what is due, what runs, what ended."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated

from pydantic import Field

from tidewheel.control.reads.activity import UpcomingJobs, on_time_rate, read_activity, read_upcoming
from tidewheel.control.reads.backlog import OpenRuns, read_open_runs
from tidewheel.control.reads.needs import Need, find_needs
from tidewheel.control.reads.status import FleetStatus
from tidewheel.control.reads.waits import LEASE
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
    findings: Annotated[tuple[Need, ...], Field(description="What needs a person, the worst first.")]
    due_next_minute: Annotated[DueNext, Field(description="The jobs that come due within a minute.")]
    running: Annotated[int, Field(description="The runs under way, also those whose cancel is requested.")]
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
        Field(description="The share of those that were claimed within a second of their time; null without one."),
    ]


def read_now_of(
    connection: Conn,
    tenant: str,
    shards: int,
    fleet: FleetStatus | None,
    *,
    sees_slots: bool,
    open_runs: OpenRuns | None = None,
) -> Now:
    """Return the present of a tenant.

    Args:
        fleet: The fleet, for a reader who sees all tenants.
        sees_slots: True for a reader of all tenants.
        open_runs: The tenant's open runs, if the caller has read them.
    """
    now = read_now(connection)
    found = open_runs or read_open_runs(connection, tenant)
    hour = read_activity(connection, tenant, [now - _HOUR, now + _HOUR])
    ended = hour.bins[0]
    failed = ended.failed + ended.timed_out
    running = sum(found.states.get(state, 0) for state in OWNED)
    upcoming = read_upcoming(connection, tenant, shards, [now, now + _MINUTE])
    return Now(
        as_of=now,
        findings=tuple(find_needs(connection, tenant, now, found, fleet=fleet, hour=ended)),
        due_next_minute=_due(upcoming),
        running=running,
        slots=Slots(running, _slots(connection) if sees_slots else None),
        open=found.states,
        open_at_least=found.at_least,
        ended_hour=ended.succeeded + failed + ended.cancelled + ended.skipped,
        ran_hour=ended.succeeded + failed,
        failed_hour=failed,
        on_time_rate=on_time_rate(connection, tenant, now - _HOUR, now + _HOUR),
    )


def _due(upcoming: UpcomingJobs) -> DueNext:
    return DueNext(upcoming.jobs, upcoming.at_least)


def _slots(connection: Conn) -> int:
    row = connection.execute(_COUNT_SLOTS, {"lease": LEASE}, binary=True).fetchone()
    return row[0] if row is not None and isinstance(row[0], int) else 0
