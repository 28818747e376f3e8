"""Read the workload of a tenant: ended and open runs, jobs that come due, lanes that relays hold back.

The rows are those of `tidewheel.activity`: of 5 seconds, and of minutes and hours when they are older. A row counts in
the bin of its begin.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Annotated, Any, Literal, cast
from uuid import UUID

from psycopg.rows import class_row
from pydantic import Field

from tidewheel.activity import Stage, quantile, unpack_stages
from tidewheel.control.reads.findings import Finding, Severity
from tidewheel.control.reads.waits import Wait, read_waits
from tidewheel.jobs.values import format_second
from tidewheel.nouns.runs.model import RunSummary
from tidewheel.nouns.runs.reads import read_runs
from tidewheel.postgres.session import Conn, read_rows
from tidewheel.postgres.statements import Statements
from tidewheel.runs import FINAL, SCHEDULED, Move, RunState, sources

_SQL = Statements("tidewheel.control")

_LOOKED_AT = 100_000  # rows of one answer, the newest first: about 100 ms
_COUNTED = 10_000  # timers: more are shown as at least so many
_MOST_OPEN = 10_000  # runs that are counted, the oldest: more are shown as at least so many
_HOLDS = 5  # limits and orders whose waiting runs have a number of their own
_ON_TIME_BUCKET = 73  # of tidewheel/activity.py: its upper bound is 1.05 s
_LEAST_OF_SHARD = 20
_NOT_STARTED = frozenset({*sources(Move.CLAIM), RunState.BUFFERED})
_LONG = timedelta(seconds=10)  # a burst that is over by then needs no operator
_NAMED = 3  # tenants in a sentence


@dataclass(frozen=True, slots=True)
class StageLateness:
    """The lateness of runs at a stage, from the instant at which each was due, in seconds within 5 %."""

    runs: Annotated[int, Field(description="The number of runs.")]
    p50: Annotated[float | None, Field(description="Half of them are not later.")]
    p99: Annotated[float | None, Field(description="Ninety-nine hundredths of them are not later.")]


@dataclass(frozen=True, slots=True)
class ActivityBin:
    """The runs that ended in a span of time."""

    at: Annotated[datetime, Field(description="Its start.")]
    succeeded: Annotated[int, Field(description="The number of runs that succeeded.")] = 0
    failed: Annotated[int, Field(description="That failed.")] = 0
    timed_out: Annotated[int, Field(description="That timed out.")] = 0
    cancelled: Annotated[int, Field(description="That were cancelled.")] = 0
    skipped: Annotated[int, Field(description="That were skipped.")] = 0
    stages: Annotated[
        Mapping[str, StageLateness] | None,
        Field(
            description="The lateness by stage: `written` of runs by timer, `claimed`, and `ended`; null if it was"
            " not read."
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class ActivityFigures:
    """Bins, earliest first."""

    bins: Annotated[tuple[ActivityBin, ...], Field(description="One for each span, also without a run.")]
    at_least: Annotated[
        bool, Field(description="True if there are more figures than one answer reads: the earliest are left out.")
    ]
    stages: Annotated[
        Mapping[str, StageLateness] | None,
        Field(description="The lateness of all bins together; null if it was not read."),
    ] = None


@dataclass(frozen=True, slots=True)
class SlowRun:
    """A run among the slowest of its time."""

    took: Annotated[float, Field(description="The duration of its last attempt, in seconds.")]
    run: Annotated[RunSummary, Field(description="The run.")]


def read_activity(
    connection: Conn,
    tenant: str,
    edges: Sequence[datetime],
    stages: Collection[Stage] = (),
    *,
    queue: str | None = None,
    lane: str | None = None,
) -> ActivityFigures:
    """Return the runs of a tenant that ended between ascending edges, which begin and end the bins."""
    columns: dict[str, object] = {
        "tenant": tenant, "edges": list(edges), "look": _LOOKED_AT, "queue": queue, "lane": lane,
    }  # fmt: skip
    counts: list[dict[str, Any]] = [{} for _ in edges[1:]]  # by state, which names a field
    looked_at = 0
    rows = cast(
        "list[tuple[int, str, int, int]]", connection.execute(_SQL["read_activity"], columns, binary=True).fetchall()
    )
    for place, state, runs, of_rows in rows:
        if state in FINAL:  # a row of a later release may have another
            counts[place][state] = runs
        looked_at += of_rows
    bins = [ActivityBin(begin, **by_state) for begin, by_state in zip(edges[:-1], counts, strict=True)]
    if not stages:
        return ActivityFigures(tuple(bins), looked_at >= _LOOKED_AT)
    found = _buckets(connection, {**columns, "stages": sorted(stages)})
    bins = [replace(each, stages=_lateness(found.get(place, {}))) for place, each in enumerate(bins)]
    whole = {stage: sum((each.get(stage, Counter()) for each in found.values()), Counter[int]()) for stage in stages}
    return ActivityFigures(tuple(bins), looked_at >= _LOOKED_AT, _lateness(whole))


def on_time(connection: Conn, tenant: str, since: datetime, until: datetime) -> tuple[int, int]:
    """Return how many claimed runs began within a second of their time, and the number of all claimed."""
    columns: dict[str, object] = {
        "tenant": tenant, "edges": [since, until], "look": _LOOKED_AT, "stages": [Stage.CLAIMED],
        "queue": None, "lane": None,
    }  # fmt: skip
    counts = Counter[int]()
    for by_stage in _buckets(connection, columns).values():
        counts += by_stage[Stage.CLAIMED]
    return sum(runs for bucket, runs in counts.items() if bucket <= _ON_TIME_BUCKET), counts.total()


def slowest_runs(connection: Conn, tenant: str, since: datetime, until: datetime, limit: int) -> tuple[SlowRun, ...]:
    """Return the slowest runs that ended in a span of time, the slowest first.

    Each row of figures has three, so runs that many slower ones surround are not among them.
    """
    columns = {"tenant": tenant, "since": since, "until": until, "look": _LOOKED_AT, "limit": limit}
    found = cast(
        "list[tuple[UUID, float]]", connection.execute(_SQL["find_slowest_runs"], columns, binary=True).fetchall()
    )
    took = dict(found)
    return tuple(SlowRun(took[run.run_id], run) for run in read_runs(connection, list(took)))


@dataclass(frozen=True, slots=True)
class UpcomingBin:
    """The jobs whose timers come due in a span of time."""

    at: Annotated[datetime, Field(description="Its start.")]
    jobs: Annotated[int, Field(description="Their number. A job counts once, at its next time.")]


@dataclass(frozen=True, slots=True)
class UpcomingJobs:
    """Bins, earliest first."""

    bins: Annotated[tuple[UpcomingBin, ...], Field(description="One for each span.")]
    jobs: Annotated[int, Field(description="The number of all of them.")]
    at_least: Annotated[bool, Field(description="True if there are more timers than were counted.")]


def read_upcoming(connection: Conn, tenant: str, shards: int, edges: Sequence[datetime]) -> UpcomingJobs:
    """Return the jobs whose timers come due between ascending edges, which begin and end the bins."""
    per_shard = max(_COUNTED // shards, _LEAST_OF_SHARD)
    columns = {"tenant": tenant, "shards": list(range(shards)), "edges": list(edges), "look": per_shard}
    counts = [0] * (len(edges) - 1)
    cut = False
    rows = connection.execute(_SQL["count_upcoming"], columns, binary=True).fetchall()
    for place, jobs, is_cut in cast("list[tuple[int, int, bool]]", rows):
        counts[place] += jobs
        cut |= is_cut
    bins = tuple(UpcomingBin(begin, jobs) for (begin, _), jobs in zip(pairwise(edges), counts, strict=True))
    return UpcomingJobs(bins, sum(counts), cut)


def _lateness(by_stage: Mapping[Stage, Counter[int]]) -> dict[str, StageLateness]:
    return {
        stage.name.lower(): StageLateness(counts.total(), quantile(counts, 0.5), quantile(counts, 0.99))
        for stage, counts in by_stage.items()
        if counts
    }


def _buckets(connection: Conn, columns: Mapping[str, object]) -> dict[int, dict[Stage, Counter[int]]]:
    rows = cast("list[tuple[int, int, int]]", connection.execute(_SQL["read_stages"], columns, binary=True).fetchall())
    found: dict[int, list[tuple[int, int]]] = {}
    for place, key, runs in rows:
        found.setdefault(place, []).append((key, runs))
    return {place: unpack_stages(packed) for place, packed in found.items()}


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
class Waiting:
    """Due runs of one queue, lane, handler and hold: they wait for one reason.

    Args:
        is_mixed: True for the runs of several limits and orders, of which `why` is that of the oldest.
        late: Those that have been due for longer than a second.
    """

    queue: str
    lane: str
    handler: str
    is_mixed: bool
    count: int
    late: int
    at_least: bool
    oldest_at: datetime
    newest_at: datetime
    why: Wait


@dataclass(frozen=True, slots=True)
class OpenRuns:
    """The open runs of a tenant."""

    states: Annotated[
        Mapping[str, int], Field(description="Their number by state; `scheduled` are those before their time.")
    ]
    to_retry: Annotated[int, Field(description="Those that wait for a retry, except those whose cancel is accepted.")]
    at_least: Annotated[bool, Field(description="True if there may be more.")]
    backlogs: Annotated[tuple[Backlog, ...], Field(description="What is due, the oldest first.")]
    waiting: tuple[Waiting, ...]


@dataclass(frozen=True, slots=True)
class _Row:
    queue: str
    lane: str
    handler: str
    state: str
    is_held: bool
    hold: int | None
    ahead: bool
    is_cancelled: bool
    runs: int
    late: int
    oldest_at: datetime | None
    newest_at: datetime | None
    run_id: UUID


def read_open_runs(connection: Conn, tenant: str) -> OpenRuns:
    """Return the open runs of a tenant, the oldest 10,000 of them."""
    columns = {"tenant": tenant, "look": _MOST_OPEN, "holds": _HOLDS}
    rows = read_rows(connection, class_row(_Row), _SQL["group_open_runs"], columns)
    at_least = sum(row.runs for row in rows) >= _MOST_OPEN
    states = Counter[str]()
    for row in rows:
        states[SCHEDULED if row.ahead and row.state == RunState.QUEUED else row.state] += row.runs
    going_on = [row for row in rows if not row.is_cancelled]
    due = [row for row in going_on if row.state in _NOT_STARTED and not row.ahead and row.oldest_at is not None]
    waits = read_waits(connection, [row.run_id for row in due])
    return OpenRuns(
        states=dict(states),
        to_retry=sum(row.runs for row in going_on if row.state == RunState.RETRYING),
        at_least=at_least,
        backlogs=tuple(_backlogs(due, waits, at_least=at_least)),
        waiting=tuple(
            Waiting(
                row.queue, row.lane, row.handler, row.is_held and row.hold is None, row.runs, row.late, at_least,
                row.oldest_at, row.newest_at, waits[row.run_id],
            )
            for row in due if row.oldest_at and row.newest_at and row.run_id in waits
        ),
    )  # fmt: skip


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
        others = [f"and {self.tenants - len(named)} other tenants"] if self.tenants > len(named) else []
        least, runs = "at least " if self.at_least else "", "run" if self.runs == 1 else "runs"
        return f"{least}{self.runs:,} {runs} since {format_second(self.since)} ({', '.join([*named, *others])})"


def read_held_lanes(connection: Conn) -> tuple[HeldLane, ...]:
    """Return what live relays hold back, as of the last two seconds, by queue and lane."""
    return tuple(read_rows(connection, class_row(HeldLane), _SQL["read_held_lanes"], {}))


def long_held(held: Sequence[HeldLane], now: datetime) -> Iterator[HeldLane]:
    """Yield the queues and lanes that are held back for long."""
    yield from (each for each in held if now - each.since >= _LONG)


def held_findings(held: Sequence[HeldLane], now: datetime) -> Iterator[Finding]:
    """Yield a finding for each queue and lane that is held back for long."""
    for each in long_held(held, now):
        what = f"queue {each.queue}, lane {each.lane}: executors are falling behind, and relays hold runs back"
        remedy = "start more executors, or more slots"
        if each.tenants > 1:
            limit = f"`tidewheel admin tenant limits {each.by_size[0]} --in-flight N`"
            remedy += f"; {limit}, with N below the number of slots, leaves slots for other tenants"
        yield Finding("fairness", Severity.WARNING, what, each.words, remedy)


def _backlogs(rows: Sequence[_Row], waits: Mapping[UUID, Wait], *, at_least: bool) -> Iterator[Backlog]:
    groups: dict[tuple[str, str, bool], list[_Row]] = {}
    for row in rows:
        groups.setdefault((row.queue, row.lane, row.state == RunState.BUFFERED), []).append(row)
    found: list[Backlog] = []
    for (queue, lane, buffered), parts in groups.items():
        oldest_at, run_id = min((part.oldest_at, part.run_id) for part in parts if part.oldest_at is not None)
        count = sum(part.runs for part in parts)
        state: Literal["queued", "buffered"] = "buffered" if buffered else "queued"
        found.append(Backlog(queue, lane, state, count, at_least, oldest_at, run_id, waits.get(run_id)))
    yield from sorted(found, key=lambda each: each.oldest_at)
