"""The overview: the present of a tenant, the state of the installation, and what a text names.

The present is what needs a person and why, what is due, what runs, and what ended.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Literal
from uuid import UUID

from pydantic import AfterValidator, Field

from tidewheel.activity import Stage, begin_of
from tidewheel.api_keys import Scope
from tidewheel.control.ask import Answer, ask
from tidewheel.control.reads.causes import Causes, Need
from tidewheel.control.reads.fleet import (
    ExecutorSummary,
    FleetStatus,
    ShardOwner,
    list_executors,
    list_shards,
    read_status,
)
from tidewheel.control.reads.waits import LEASE
from tidewheel.control.reads.workload import (
    ActivityFigures,
    Backlog,
    OpenRuns,
    SlowRun,
    UpcomingJobs,
    on_time,
    read_activity,
    read_open_runs,
    read_upcoming,
    slowest_runs,
)
from tidewheel.errors import refuse
from tidewheel.jobs.values import MAX_TEXT, Instant, Queue, one_line
from tidewheel.nouns.operation import Noun, Page, Rows, operation
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.runs import OWNED

_MAX_BINS = 1000
_COUNT_SLOTS = Statements("tidewheel.control")["count_slots"]

_HOUR, _MINUTE = timedelta(hours=1), timedelta(minutes=1)
_of_fleet = partial(operation, scope=Scope.READ, authorize=lambda _: Scope.READ)


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


@dataclass(frozen=True, slots=True)
class SlowestRuns:
    """The slowest runs, slowest first."""

    runs: tuple[SlowRun, ...]


class Overview(Noun):
    """The present of a tenant, and the whole installation for callers of all tenants."""

    @operation("GET /api/v1/now", "get_now", scope=Scope.READ, python_only=("sees_fleet",))
    def now(self, *, sees_fleet: bool = False) -> Now:
        """Return what needs attention, what is due, what is running, and what ended in the last hour.

        A caller with the scope admin for all tenants also gets the findings about the installation.
        """
        shards, fleet = self._call.installation.shards, self.status() if sees_fleet else None
        return self._read(read_now_of, shards, fleet, sees_slots=self._call.all_tenants)

    @operation("GET /api/v1/activity", "get_activity", scope=Scope.READ)
    def activity(
        self,
        *,
        since: Annotated[
            Instant | None, Field(description="The start of the first bin; an hour ago by default.")
        ] = None,
        until: Annotated[Instant | None, Field(description="The end of the last bin; now by default.")] = None,
        step: Annotated[
            int,
            Field(
                ge=5,
                le=86_400,
                description="The length of a bin in seconds. Figures older than 2 hours have minutes, those older than"
                " 2 days hours.",
            ),
        ] = 60,
        stages: Annotated[bool, Field(description="True adds the lateness by stage.")] = False,
        queue: Annotated[Queue | None, Field(description="Only runs of this queue.")] = None,
        lane: Annotated[
            Literal["critical", "standard", "batch"] | None, Field(description="Only runs of this lane.")
        ] = None,
    ) -> ActivityFigures:
        """Return ended runs by bin and state, with their lateness by stage."""
        with self._call.snapshot() as connection:
            end = until or read_now(connection)
            edges = _edges_of(since or end - _HOUR, end, timedelta(seconds=step))
            shown = tuple(Stage) if stages else ()
            return read_activity(connection, self._call.tenant, edges, shown, queue=queue, lane=lane)

    @operation("GET /api/v1/upcoming", "get_upcoming", scope=Scope.READ)
    def upcoming(
        self,
        *,
        until: Annotated[
            Instant | None, Field(description="The end of the last bin; an hour ahead by default.")
        ] = None,
        step: Annotated[int, Field(ge=1, le=86_400, description="The length of a bin in seconds.")] = 60,
    ) -> UpcomingJobs:
        """Return the jobs whose timers come due, by bin."""
        with self._call.snapshot() as connection:
            now = read_now(connection)
            edges = _edges_of(now, until or now + _HOUR, timedelta(seconds=step))
            return read_upcoming(connection, self._call.tenant, self._call.installation.shards, edges)

    @operation("GET /api/v1/backlog", "get_backlog", scope=Scope.READ)
    def backlog(self) -> list[Backlog]:
        """Return due runs that have not started, by queue and lane, and why the oldest of each waits."""
        return list(self._read(read_open_runs).backlogs)

    @operation("GET /api/v1/runs/slowest", "list_slowest_runs", scope=Scope.READ)
    def slowest(
        self,
        *,
        since: Annotated[
            Instant | None, Field(description="Only runs that ended at this instant or later; a day ago by default.")
        ] = None,
        until: Annotated[
            Instant | None, Field(description="Only runs that ended before this instant; now by default.")
        ] = None,
        limit: Rows = 50,
    ) -> SlowestRuns:
        """List the runs with the longest last attempts, slowest first.

        The list is a sample: the three slowest runs of every 5 seconds, after 2 hours of every minute, after 2 days of
        every hour.
        """
        with self._call.snapshot() as connection:
            now = read_now(connection)
            begin, end = since or now - 24 * _HOUR, until or now + _HOUR
            return SlowestRuns(slowest_runs(connection, self._call.tenant, begin, end, limit))

    @operation("GET /api/v1/ask", "ask", scope=Scope.READ)
    def ask(
        self,
        q: Annotated[
            str,
            AfterValidator(one_line(MAX_TEXT)),
            Field(
                description="A run id, also as `01a1f866…44d1`, a dead letter such as `#4711`, a key, or a part of one."
            ),
        ],
    ) -> Answer:
        """Find a run, a dead letter or a job by id or key, or by a part of one."""
        return self._read(ask, q)

    @_of_fleet("GET /api/v1/executors", "list_executors")
    def executors(self, *, after: UUID | None = None, limit: Rows = 50) -> Page[ExecutorSummary]:
        """List executors with their handlers; requires the rights of all tenants."""
        with self._call.snapshot(all_tenants=True) as connection:
            found = list_executors(connection, after=after, limit=limit + 1)
        return Page(found[:limit], found[limit - 1].executor_id if len(found) > limit else None)

    @_of_fleet("GET /api/v1/shards", "list_shards")
    def shards(self) -> list[ShardOwner]:
        """Return each shard with its scheduler; requires the rights of all tenants."""
        with self._call.snapshot(all_tenants=True) as connection:
            return list_shards(connection, self._call.installation.shards)

    @operation("GET /api/v1/status", "get_status", scope=Scope.ADMIN, authorize=lambda _: Scope.ADMIN)
    def status(self) -> FleetStatus:
        """Return services with their heartbeats, due work and problems."""
        with self._call.snapshot(all_tenants=True) as connection:
            return read_status(connection, self._call.installation.shards)


def _edges_of(since: datetime, until: datetime, step: timedelta) -> Sequence[datetime]:
    """Return the edges of bins; the last one may be longer than the span."""
    if until <= since:
        refuse("until", "is not after since", "choose a later time")
    count = -((since - until) // step)
    if count > _MAX_BINS:
        refuse("step", f"makes {count:,} bins", f"choose a longer step, for at most {_MAX_BINS:,} bins")
    return [since + step * place for place in range(count + 1)]
