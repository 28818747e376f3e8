"""Read the fleet: executors, and the owner of each shard."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, cast
from uuid import UUID

from psycopg.rows import class_row
from pydantic import Field

from tidewheel.control.reads.waits import LEASE
from tidewheel.membership import rendezvous
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.runs import OWNED

_SQL = Statements("tidewheel.control")
_LIST_EXECUTORS = _SQL["list_executors"]
_LIST_SCHEDULERS = _SQL["list_schedulers"]

_COUNT_RUNS_OF_EXECUTORS = _SQL["count_runs_of_executors"]
_LIST_RUNS_OF_EXECUTOR = _SQL["list_runs_of_executor"]

LOOKED_AT = 20_000
"""Open runs that are looked at for those of an executor: some tens of milliseconds."""

_EXECUTORS = 1000  # that are looked at for free slots
_PARTS = 5_000  # tenants of a queue and lane whose runs are looked at

_FIRST = UUID(int=0)
_TIMEOUT = timedelta(seconds=10)  # the default of TIDEWHEEL_MEMBER_TIMEOUT


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
    with connection.cursor(row_factory=class_row(ExecutorSummary), binary=True) as cursor:
        return cursor.execute(_LIST_EXECUTORS, {"after": after or _FIRST, "limit": limit, "lease": LEASE}).fetchall()


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
    rows = connection.execute(_COUNT_RUNS_OF_EXECUTORS, columns, binary=True).fetchall()
    return dict(cast("list[tuple[UUID, int]]", rows))


@dataclass(frozen=True, slots=True)
class AbleExecutors:
    """The live executors that can run a handler of a queue."""

    executors: Sequence[ExecutorSummary]
    busy: int
    slots: int


def able_executors(connection: Conn, queue: str, handler: str) -> AbleExecutors:
    """Return the live executors that can run a handler of a queue, with their slots."""
    live = [each for each in list_executors(connection, limit=_EXECUTORS) if not (each.is_silent or each.stopping)]
    able = [each for each in live if queue in each.queues and handler in each.handlers]
    runs = count_runs(connection)
    busy = sum(min(runs.get(each.executor_id, 0), each.slots) for each in able)
    return AbleExecutors(able, busy, sum(each.slots for each in able))


def list_runs_of(connection: Conn, executor: ExecutorSummary, *, limit: int = 50) -> list[RunOfExecutor]:
    """Return the runs that an executor has, among the first open runs of its queues."""
    columns: dict[str, object] = {
        "queues": list(executor.queues), "executor_id": executor.executor_id, "states": OWNED, "look": LOOKED_AT,
        "parts": _PARTS, "limit": limit,
    }  # fmt: skip
    with connection.cursor(row_factory=class_row(RunOfExecutor), binary=True) as cursor:
        return cursor.execute(_LIST_RUNS_OF_EXECUTOR, columns).fetchall()


def list_shards(connection: Conn, shards: int) -> list[ShardOwner]:
    """Return each shard with the scheduler that owns it by the latest heartbeats."""
    with connection.cursor(row_factory=class_row(SchedulerSummary), binary=True) as cursor:
        alive = {each.member_id: each for each in cursor.execute(_LIST_SCHEDULERS, {"timeout": _TIMEOUT})}
    owned = {shard: alive[member] for member in alive for shard in rendezvous(shards, list(alive), member)}
    return [ShardOwner(shard, owned.get(shard)) for shard in range(shards)]


def is_scheduler_alive(connection: Conn) -> bool:
    """Return True if a scheduler has a recent heartbeat; for a session of all tenants."""
    return connection.execute(_LIST_SCHEDULERS, {"timeout": _TIMEOUT}).fetchone() is not None
