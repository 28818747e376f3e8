"""Read the fleet: services, executors, owners of shards, what is due and not done, and findings.

The measurements are the statements of the scheduler's metrics, so that a page and a gauge show the same number.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, cast
from uuid import UUID

from psycopg.rows import class_row
from pydantic import Field

from tidewheel.control.reads.findings import Finding, Severity, lost_words
from tidewheel.control.reads.stored import rows_as
from tidewheel.control.reads.waits import LEASE, start_executor
from tidewheel.control.reads.workload import HeldLane, held_findings, read_held_lanes
from tidewheel.jobs.values import format_duration, format_second
from tidewheel.membership import rendezvous
from tidewheel.nouns.freezes.model import Freeze
from tidewheel.nouns.freezes.reads import all_freezes
from tidewheel.outbox import SLICES, OutboxLane, slice_lane_of
from tidewheel.postgres.pg_binary import integers, uuids
from tidewheel.postgres.session import Conn, read_rows
from tidewheel.postgres.statements import Statements
from tidewheel.presence import SILENT_SECONDS
from tidewheel.process.fallbacks import Share, Step
from tidewheel.runs import OWNED, Move, sources
from tidewheel.scheduler.backlog import find_unhandled

_SQL = Statements("tidewheel.control")
_SCHEDULER_SQL = Statements("tidewheel.scheduler")

LOOKED_AT = 20_000
"""Open runs that are looked at for those of an executor: some tens of milliseconds."""
COUNTED = 10_000
"""The due runs of a lane, and messages of a slice, that are counted: more are shown as at least so many."""
LETTERS = 1000
"""The newest dead letters of a tenant, which are looked at for those that were not redriven."""

_EXECUTORS = 1000  # that are looked at for free slots
_PARTS = 5_000  # tenants of a queue and lane whose runs are looked at
_FIRST = UUID(int=0)
_TIMEOUT = timedelta(seconds=10)  # the default of TIDEWHEEL_MEMBER_TIMEOUT
_LATE = timedelta(seconds=1)
_TIMERS = 1000  # of each shard that are counted

_ROLES: Mapping[str, tuple[Severity, str]] = {
    "scheduler": (Severity.ERROR, "nothing fires, and no deadline ends a run"),
    "relay": (Severity.ERROR, "no event is published, and only the sweep starts runs"),
    "executor": (Severity.ERROR, "no run starts"),
    "intake": (Severity.WARNING, "requests on Kafka wait"),
    "api": (Severity.WARNING, "HTTP requests get no answer"),
}
_OPTIONAL = "api"  # missed only if one has died


@dataclass(frozen=True, slots=True)
class ExecutorSummary:
    """An executor as lists show it."""

    executor_id: Annotated[UUID, Field(description="Its id.")]
    name: Annotated[str, Field(description="Its host and process.")]
    queues: Annotated[Sequence[str], Field(description="The queues that it serves.")]
    handlers: Annotated[Sequence[str], Field(description="The handlers that it has.")]
    slots: Annotated[int, Field(description="How many attempts it executes at once.")]
    stopping: Annotated[bool, Field(description="True while it shuts down.")]
    started_at: Annotated[datetime, Field(description="When it registered.")]
    last_heartbeat_at: Annotated[datetime, Field(description="When its last heartbeat came.")]
    is_silent: Annotated[bool, Field(description="True without a heartbeat for longer than its lease.")]
    lease_ends_at: Annotated[datetime, Field(description="When its lease ends, or has ended, without a heartbeat.")]


@dataclass(frozen=True, slots=True)
class SchedulerSummary:
    """A scheduler with a recent heartbeat."""

    member_id: UUID
    name: str
    last_heartbeat_at: datetime


@dataclass(frozen=True, slots=True)
class ShardOwner:
    """A shard with the scheduler that owns it; None while no scheduler is alive."""

    shard: int
    owner: SchedulerSummary | None


def list_executors(connection: Conn, *, after: UUID | None = None, limit: int = 50) -> list[ExecutorSummary]:
    """Return a page of the executors, in the order of their ids."""
    columns = {"after": after or _FIRST, "limit": limit, "lease": LEASE}
    return read_rows(connection, class_row(ExecutorSummary), _SQL["list_executors"], columns)


def count_wrong(connection: Conn, tenant: str) -> tuple[int, int]:
    """Return the number of a tenant's dead letters that were not redriven, and that of silent executors."""
    columns: dict[str, object] = {"tenant": tenant, "look": LETTERS, "lease": LEASE}
    [row] = connection.execute(_SQL["count_wrong"], columns, binary=True).fetchall()
    return cast("tuple[int, int]", row)


@dataclass(frozen=True, slots=True)
class RunOfExecutor:
    """A run whose attempt an executor has."""

    run_id: UUID
    key: str
    job_id: UUID
    tenant: str
    state: str
    attempt: int
    started_at: datetime | None


def count_runs(connection: Conn) -> dict[UUID, int]:
    """Return the number of runs of each executor that has some, among the first open runs of all queues."""
    columns: dict[str, object] = {"look": LOOKED_AT, "parts": _PARTS, "states": OWNED}
    rows = connection.execute(_SQL["count_runs_of_executors"], columns, binary=True).fetchall()
    return dict(cast("list[tuple[UUID, int]]", rows))


@dataclass(frozen=True, slots=True)
class AbleExecutors:
    """The live executors that can run a handler of a queue.

    Args:
        idle: Those without a run.
        busy: The slots in use of the others.
        slots: The slots of the others.
    """

    executors: Sequence[ExecutorSummary]
    busy: int
    slots: int
    idle: Sequence[ExecutorSummary]

    @property
    def words(self) -> str:
        """The names of idle executors, and the number of free slots of the others."""
        free, other = self.slots - self.busy, "other " if self.idle else ""
        parts = [f"executor {self.idle[0].name} is idle"] if len(self.idle) == 1 else []
        parts += [f"{len(self.idle):,} of {len(self.executors):,} executors are idle"] if len(self.idle) > 1 else []
        used = f"all {self.slots:,} {other}slots are in use" if self.slots > 1 else f"the only {other}slot is in use"
        slots = f"{free:,} of {self.slots:,} {other}slots {'is' if free == 1 else 'are'} free" if free else used
        return "; ".join([*parts, slots] if self.slots else parts)


def able_executors(connection: Conn, queue: str, handler: str) -> AbleExecutors:
    """Return the live executors that can run a handler of a queue, with their slots."""
    [found] = able_of_each(connection, [(queue, handler)])
    return found


def able_of_each(connection: Conn, handlers: Iterable[tuple[str, str]]) -> list[AbleExecutors]:
    """Return the live executors that can run each of these handlers, behind its queue."""
    live = [each for each in list_executors(connection, limit=_EXECUTORS) if not (each.is_silent or each.stopping)]
    runs = count_runs(connection)
    return [
        use_of([each for each in live if queue in each.queues and handler in each.handlers], runs)
        for queue, handler in handlers
    ]


def use_of(able: Sequence[ExecutorSummary], runs: Mapping[UUID, int]) -> AbleExecutors:
    """Return executors with the use of their slots, from the number of runs of each that has some."""
    taking = [each for each in able if runs.get(each.executor_id)]
    idle = [each for each in able if not runs.get(each.executor_id)]
    busy = sum(min(runs[each.executor_id], each.slots) for each in taking)
    return AbleExecutors(able, busy, sum(each.slots for each in taking), idle)


def list_runs_of(connection: Conn, executor: ExecutorSummary, *, limit: int = 50) -> list[RunOfExecutor]:
    """Return the runs that an executor has, among the first open runs of its queues."""
    columns: dict[str, object] = {
        "queues": list(executor.queues), "executor_id": executor.executor_id, "states": OWNED, "look": LOOKED_AT,
        "parts": _PARTS, "limit": limit,
    }  # fmt: skip
    return read_rows(connection, class_row(RunOfExecutor), _SQL["list_runs_of_executor"], columns)


def list_shards(connection: Conn, shards: int) -> list[ShardOwner]:
    """Return each shard with the scheduler that owns it by the latest heartbeats."""
    found = read_rows(connection, class_row(SchedulerSummary), _SQL["list_schedulers"], {"timeout": _TIMEOUT})
    alive = {each.member_id: each for each in found}
    owned = {shard: alive[member] for member in alive for shard in rendezvous(shards, list(alive), member)}
    return [ShardOwner(shard, owned.get(shard)) for shard in range(shards)]


def is_scheduler_alive(connection: Conn) -> bool:
    """Return True if a scheduler has a recent heartbeat; for a session of all tenants."""
    return connection.execute(_SQL["list_schedulers"], {"timeout": _TIMEOUT}).fetchone() is not None


@dataclass(frozen=True, slots=True)
class Service:
    """A process of a service, or an executor in another language."""

    role: Annotated[str, Field(description="Its role.")]
    process_id: Annotated[UUID, Field(description="Its id; of an executor its executor_id.")]
    host: Annotated[str, Field(description="Its host.")]
    pid: Annotated[int | None, Field(description="Its process id there; null for an executor in another language.")]
    version: Annotated[str | None, Field(description="Its release; null for an executor in another language.")]
    started_at: Annotated[datetime, Field(description="When it started.")]
    last_heartbeat_at: Annotated[datetime, Field(description="Its last heartbeat.")]
    is_silent: Annotated[
        bool, Field(description="True without a heartbeat for longer than its lease, or four heartbeats.")
    ]
    is_stuck: Annotated[
        bool, Field(description="True if the process sends heartbeats, but its executor does not renew its lease.")
    ]
    is_stopping: Annotated[bool, Field(description="True while an executor drains.")]
    queues: Annotated[Sequence[str] | None, Field(description="The queues of an executor.")]
    handlers: Annotated[Sequence[str] | None, Field(description="The handlers and capabilities of an executor.")]
    slots: Annotated[int | None, Field(description="The slots of an executor.")]
    settings: Annotated[Mapping[str, str] | None, Field(description="The settings that all processes must share.")]
    skew_seconds: Annotated[float | None, Field(description="Its clock minus the database's at its last heartbeat.")]

    @property
    def name(self) -> str:
        """Its role, host and process id."""
        return f"{self.role} {self.host}" + (f" pid {self.pid}" if self.pid else "")


@dataclass(frozen=True, slots=True)
class DueRuns:
    """Runs of one queue and lane that are due and have not started."""

    queue: Annotated[str, Field(description="The queue.")]
    lane: Annotated[str, Field(description="The lane.")]
    due: Annotated[int, Field(description="Their number, `COUNTED` at most. Frozen ones are left out.")]
    oldest: Annotated[timedelta, Field(description="The time for which the oldest is due.")]
    orphaned: Annotated[int, Field(description="Attempts whose executor is silent.")]


@dataclass(frozen=True, slots=True)
class DueMessages:
    """Messages of one lane of the outbox that no broker has acknowledged."""

    lane: Annotated[str, Field(description="The lane.")]
    due: Annotated[int, Field(description="Their number, `COUNTED` at most for each slice.")]
    oldest: Annotated[timedelta, Field(description="The time for which the oldest is due.")]


@dataclass(frozen=True, slots=True)
class FleetStatus:
    """The state of the fleet."""

    now: Annotated[datetime, Field(description="The database's clock.")]
    services: Annotated[
        tuple[Service, ...],
        Field(description="The processes, by role: those that live, and the dead ones that no other has replaced."),
    ]
    due: Annotated[tuple[DueRuns, ...], Field(description="The due runs of each queue and lane that has some.")]
    outbox: Annotated[
        tuple[DueMessages, ...], Field(description="The messages of each lane of the outbox that has some.")
    ]
    overdue_timers: Annotated[int, Field(description="The number of timers that are overdue.")]
    overdue_by: Annotated[timedelta, Field(description="The time for which the oldest timer is overdue.")]
    held: Annotated[tuple[HeldLane, ...], Field(description="The queues and lanes whose runs relays hold back.")]
    freezes: Annotated[tuple[Freeze, ...], Field(description="The standing freezes of all tenants.")]
    problems: Annotated[tuple[Finding, ...], Field(description="The findings.")]


def read_status(connection: Conn, shards: int) -> FleetStatus:
    """Return the state of the fleet, by a fixed number of statements that read heads of indexes."""
    now, has_jobs = cast("tuple[datetime, bool]", connection.execute(_SQL["read_fleet_facts"], binary=True).fetchone())
    services, freezes = read_services(connection), all_freezes(connection)
    overdue, overdue_by = read_overdue(connection, shards)
    due, held = read_due_runs(connection), read_held_lanes(connection)
    problems = (
        *_missing_roles(services, has_jobs=has_jobs),
        *_silent_executors(connection, services),
        *find_unhandled_runs(connection),
        *held_findings(held, now),
        *find_fallbacks(connection),
        *(Finding("freezes", Severity.WARNING, freeze_text(each), each.words, each.thaw_command) for each in freezes),
    )
    return FleetStatus(
        now=now, services=unreplaced(services), due=tuple(each for each in due if each.due or each.orphaned),
        outbox=tuple(read_outbox(connection)), overdue_timers=overdue, overdue_by=overdue_by, held=held,
        freezes=freezes, problems=problems,
    )  # fmt: skip


def executor_names(connection: Conn, executor_ids: Sequence[UUID]) -> Mapping[UUID, str]:
    """Return the names of the executors that have a row."""
    found = connection.execute(_SQL["name_executors"], {"executor_ids": uuids(executor_ids)}, binary=True)
    return dict(cast("list[tuple[UUID, str]]", found.fetchall()))


def read_services(connection: Conn) -> tuple[Service, ...]:
    """Return the processes of all services; one that died is among them for a day."""
    columns = {"lease": LEASE, "silent_after": timedelta(seconds=SILENT_SECONDS)}
    return tuple(read_rows(connection, rows_as(Service), _SQL["read_services"], columns))


def unreplaced(services: Sequence[Service]) -> tuple[Service, ...]:
    """Return the processes without dead ones that another has replaced.

    A process replaces one of its role that was dead before it started, on its own host if there is one.
    """
    dead: list[Service] = []
    replaced: set[UUID] = set()
    for each in sorted(services, key=lambda service: service.started_at):
        earlier = [one for one in dead if one.role == each.role and one.last_heartbeat_at <= each.started_at]
        if earlier:
            taken = min(earlier, key=lambda one: (one.host != each.host, one.last_heartbeat_at))
            dead.remove(taken)
            replaced.add(taken.process_id)
        if each.is_silent:
            dead.append(each)
    return tuple(each for each in services if each.process_id not in replaced)


def read_due_runs(connection: Conn) -> list[DueRuns]:
    """Return what is due of each queue and lane with open runs."""
    columns = {"sources": sources(Move.CLAIM), "owned": OWNED, "lease": LEASE, "limit": COUNTED}
    rows = connection.execute(_SCHEDULER_SQL["measure_runs"], columns, binary=True).fetchall()
    return [DueRuns(*cast("tuple[str, str, int, timedelta, int]", row)) for row in rows]


def read_outbox(connection: Conn) -> list[DueMessages]:
    """Return what is due of each lane of the outbox that has some."""
    lanes = {slice_lane_of(part, lane): lane for lane in OutboxLane for part in range(SLICES)}
    found: dict[OutboxLane, tuple[int, timedelta]] = {}
    columns = {"slice_lanes": integers(lanes), "limit": COUNTED}
    for slice_lane, due, age in connection.execute(_SCHEDULER_SQL["measure_outbox"], columns, binary=True):
        lane = lanes[cast("int", slice_lane)]
        before, oldest = found.get(lane, (0, timedelta(0)))
        found[lane] = before + cast("int", due), max(oldest, cast("timedelta", age))
    return [DueMessages(lane, *figures) for lane, figures in found.items()]


def read_overdue(connection: Conn, shards: int) -> tuple[int, timedelta]:
    """Return the number of overdue timers, and the time for which the oldest is due."""
    columns = {"shards": integers(range(shards)), "late": _LATE, "limit": _TIMERS}
    row = connection.execute(_SCHEDULER_SQL["measure_timers"], columns, binary=True).fetchone()
    overdue, age, _ = cast("tuple[int, timedelta, datetime]", row)
    return overdue, age


def read_intake_offsets(connection: Conn) -> dict[tuple[str, int], int]:
    """Return the offset from which intake reads next, by topic and partition."""
    rows = connection.execute(_SQL["read_intake_offsets"], binary=True).fetchall()
    return {(str(topic), cast("int", partition)): cast("int", offset) for topic, partition, offset in rows}


def find_unhandled_runs(connection: Conn) -> Iterator[Finding]:
    """Yield a finding for each handler that due runs need and no live executor of their queue has."""
    for each in find_unhandled(connection):
        runs = "run" if each.runs == 1 else "runs"
        evidence = f"{each.runs:,} {runs} waiting in tenant {each.tenant}"
        remedy = start_executor(each.queue, each.handler)
        yield Finding("handlers", Severity.ERROR, each.reason, evidence, remedy, each.runs, each.tenant, each.run_id)


def find_fallbacks(connection: Conn) -> Iterator[Finding]:
    """Yield a finding for each fall-back that does much of the work: all is well, and a fault is hidden."""
    columns = {"silent_after": timedelta(seconds=SILENT_SECONDS), "steps": list(Step)}
    for step, queue, usual, fallback in connection.execute(_SQL["read_fallbacks"], columns, binary=True):
        share = Share(Step(str(step)), str(queue), cast("int", usual), cast("int", fallback))
        if share.is_fault:
            yield Finding("fallbacks", Severity.WARNING, share.text, share.counts, share.remedy)


def _missing_roles(services: Sequence[Service], *, has_jobs: bool) -> Iterator[Finding]:
    if not has_jobs and not services:
        return  # an installation that nothing uses yet
    for role, (severity, effect) in _ROLES.items():
        known = [each for each in services if each.role == role]
        if any(not each.is_silent for each in known) or (role == _OPTIONAL and not known):
            continue
        latest = max(known, key=lambda each: each.last_heartbeat_at, default=None)
        what = f"no {role} is running: {effect}"
        evidence = f"no {role} has a row in processes"
        if latest is not None:
            only = "the only one" if len(known) == 1 else f"the last of {len(known)}"
            since = format_second(latest.last_heartbeat_at)
            evidence = f"{only}, {latest.name}, is dead: last heartbeat at {since}"
        yield Finding("services", severity, what, evidence, f"tidewheel service {role}")


def _silent_executors(connection: Conn, services: Sequence[Service]) -> Iterator[Finding]:
    """Yield one finding for all silent executors beside live ones, with the number of their runs."""
    leases = [each for each in services if each.role == "executor" and each.queues is not None]
    silent = [each for each in leases if each.is_silent]
    if not silent or len(silent) == len(leases):
        return  # none is silent, or no executor lives, which is a finding of its own
    latest, counts = max(silent, key=lambda each: each.last_heartbeat_at), count_runs(connection)
    one, runs = len(silent) == 1, sum(counts.get(each.process_id, 0) for each in silent)
    who = f"{latest.name} is" if one else f"{len(silent):,} executors are"
    evidence = f"no heartbeat since {format_second(latest.last_heartbeat_at)}; {lost_words(runs)}"
    remedy = f"read the output of {'its process on that host' if one else 'their processes'}"
    yield Finding("executors", Severity.WARNING, f"{who} silent", evidence, remedy, runs)


def freeze_text(freeze: Freeze) -> str:
    """Return what a freeze stops."""
    return f"a freeze is in force: runs of {freeze.scope} do not start"


def age_text(age: timedelta) -> str:
    """Return an age in whole seconds."""
    return format_duration(timedelta(seconds=max(round(age.total_seconds()), 0)))
