"""Read the open runs of a tenant by state, what is due by lane, and the lanes that relays hold back."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Annotated, Literal
from uuid import UUID

from psycopg.rows import class_row
from pydantic import Field

from tidewheel.control.reads.findings import Finding, Severity
from tidewheel.control.reads.waits import Wait, read_waits
from tidewheel.jobs.values import format_second
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.runs import SCHEDULED, Move, RunState, sources

_GROUP_OPEN_RUNS = Statements("tidewheel.control")["group_open_runs"]
COUNTED = 10_000
"""The open runs that are counted, the oldest: more are shown as at least so many."""
_NOT_STARTED = frozenset({*sources(Move.CLAIM), RunState.BUFFERED})
_READ_HELD_LANES = Statements("tidewheel.control")["read_held_lanes"]
_LONG = timedelta(seconds=10)  # a burst that is over by then needs no operator
_NAMED = 3  # tenants in a sentence


@dataclass(frozen=True, slots=True)
class Backlog:
    """Runs of one queue and lane that are due, have not started, and have no cancel."""

    queue: Annotated[str, Field(description="The queue.")]
    lane: Annotated[str, Field(description="The lane.")]
    state: Annotated[
        Literal["queued", "buffered"],
        Field(description="`buffered` where a limit, an order or another run of the job holds them; else `queued`."),
    ]
    count: Annotated[int, Field(description="Their number.")]
    at_least: Annotated[bool, Field(description="True if there may be more.")]
    oldest_at: Annotated[datetime, Field(description="The time from which the oldest might start.")]
    oldest_run_id: Annotated[UUID, Field(description="The oldest.")]
    why: Annotated[Wait | None, Field(description="The reason for which the oldest waits.")]


@dataclass(frozen=True, slots=True)
class OpenRuns:
    """The open runs of a tenant."""

    states: Annotated[
        Mapping[str, int], Field(description="Their number by state; `scheduled` are those before their time.")
    ]
    to_retry: Annotated[int, Field(description="Those that wait for a retry, except those whose cancel is accepted.")]
    at_least: Annotated[bool, Field(description="True if there may be more.")]
    backlogs: Annotated[tuple[Backlog, ...], Field(description="What is due, the oldest first.")]
    waiting: Annotated[
        tuple[Backlog, ...], Field(description="The same by handler and by hold too: these wait for different reasons.")
    ]


@dataclass(frozen=True, slots=True)
class _Row:
    queue: str
    lane: str
    handler: str
    state: str
    is_held: bool
    ahead: bool
    is_cancelled: bool
    runs: int
    oldest_at: datetime | None
    run_id: UUID


def read_open_runs(connection: Conn, tenant: str) -> OpenRuns:
    """Return the open runs of a tenant, the oldest `COUNTED` of them."""
    columns = {"tenant": tenant, "look": COUNTED}
    with connection.cursor(row_factory=class_row(_Row), binary=True) as cursor:
        rows = cursor.execute(_GROUP_OPEN_RUNS, columns).fetchall()
    at_least = sum(row.runs for row in rows) >= COUNTED
    states = Counter[str]()
    for row in rows:
        states[SCHEDULED if row.ahead and row.state == RunState.QUEUED else row.state] += row.runs
    going_on = [row for row in rows if not row.is_cancelled]
    due = [row for row in going_on if row.state in _NOT_STARTED and not row.ahead and row.oldest_at is not None]
    waiting = list(_groups(due, by_reason=True, at_least=at_least))
    waits = read_waits(connection, [each.oldest_run_id for each in waiting])
    backlogs = _groups(due, by_reason=False, at_least=at_least)
    return OpenRuns(
        states=dict(states),
        to_retry=sum(row.runs for row in going_on if row.state == RunState.RETRYING),
        at_least=at_least,
        backlogs=tuple(replace(each, why=waits.get(each.oldest_run_id)) for each in backlogs),
        waiting=tuple(replace(each, why=waits.get(each.oldest_run_id)) for each in waiting),
    )


@dataclass(frozen=True, slots=True)
class HeldLane:
    """A queue and lane whose runs wait in the outbox."""

    queue: Annotated[str, Field(description="The queue.")]
    lane: Annotated[str, Field(description="The lane.")]
    since: Annotated[datetime, Field(description="When they were first held back.")]
    runs: Annotated[int, Field(description="The number of runs that wait.")]
    at_least: Annotated[bool, Field(description="True if there may be more.")]
    tenants: Annotated[int, Field(description="The number of their tenants.")]
    largest: Annotated[Mapping[str, int], Field(description="The runs of the tenants that have the most.")]

    @property
    def by_size(self) -> list[str]:
        """The tenants in `largest`, the one with the most runs first."""
        return sorted(self.largest, key=lambda tenant: (-self.largest[tenant], tenant))

    @property
    def words(self) -> str:
        """The runs with their tenants, in one line."""
        named = [f"{tenant} {self.largest[tenant]:,}" for tenant in self.by_size[:_NAMED]]
        others = [f"and of {self.tenants - len(named)} others"] if self.tenants > len(named) else []
        least, wait = "at least " if self.at_least else "", "run waits" if self.runs == 1 else "runs wait"
        return f"{least}{self.runs:,} {wait} since {format_second(self.since)}: {', '.join([*named, *others])}"


def read_held_lanes(connection: Conn) -> tuple[HeldLane, ...]:
    """Return what live relays hold back, as of the last two seconds, by queue and lane."""
    with connection.cursor(row_factory=class_row(HeldLane), binary=True) as cursor:
        return tuple(cursor.execute(_READ_HELD_LANES))


def held_findings(held: Sequence[HeldLane], now: datetime) -> Iterator[Finding]:
    """Yield a finding for each queue and lane that is held back for long."""
    for each in held:
        if now - each.since < _LONG:
            continue
        what = f"queue {each.queue!r}, lane {each.lane}: executors take runs more slowly than they become due"
        remedy = "start more executors, or more slots"
        if each.tenants > 1:
            limit = f"tidewheel admin tenant limits {each.by_size[0]} --in-flight N"
            remedy += f"; {limit}, below the number of slots, leaves some to other tenants"
        yield Finding("fairness", Severity.WARNING, what, each.words, remedy)


def _groups(rows: Sequence[_Row], *, by_reason: bool, at_least: bool) -> Iterator[Backlog]:
    groups: dict[tuple[str, str, bool, tuple[str, bool] | None], list[_Row]] = {}
    for row in rows:
        reason = (row.handler, row.is_held) if by_reason else None
        groups.setdefault((row.queue, row.lane, row.state == RunState.BUFFERED, reason), []).append(row)
    found: list[Backlog] = []
    for (queue, lane, buffered, _), parts in groups.items():
        oldest_at, run_id = min((part.oldest_at, part.run_id) for part in parts if part.oldest_at is not None)
        count = sum(part.runs for part in parts)
        state: Literal["queued", "buffered"] = "buffered" if buffered else "queued"
        found.append(Backlog(queue, lane, state, count, at_least, oldest_at, run_id, None))
    yield from sorted(found, key=lambda each: each.oldest_at)
