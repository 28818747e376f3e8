"""Read the figures of ended runs by state and stage, the slowest runs, and the jobs that come due.

The rows are those of `tidewheel.activity`: of 5 seconds, and of minutes and hours when they are older. A row counts in
the bin of its begin.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from typing import Annotated, cast
from uuid import UUID

from pydantic import Field

from tidewheel.activity import Stage, quantile, unpack_stages
from tidewheel.nouns.runs.model import RunSummary
from tidewheel.nouns.runs.reads import read_runs
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.runs import RunState

_SQL = Statements("tidewheel.control")
_READ_ACTIVITY = _SQL["read_activity"]
_READ_STAGES = _SQL["read_stages"]
_FIND_SLOWEST_RUNS = _SQL["find_slowest_runs"]
LOOKED_AT = 100_000
"""The rows of one answer, the newest first: about 100 ms."""
_ON_TIME_BUCKET = 73  # of tidewheel/activity.py: its upper bound is 1.05 s
_COUNT_UPCOMING = Statements("tidewheel.control")["count_upcoming"]
COUNTED = 10_000
"""The timers that are counted: more are shown as at least so many."""
_LEAST_OF_SHARD = 20


@dataclass(frozen=True, slots=True)
class StageLateness:
    """The lateness of runs at a stage, from the instant at which each was due, in seconds within 5 %."""

    runs: Annotated[int, Field(description="The number of runs.")]
    p50: Annotated[float | None, Field(description="The half of them is not later.")]
    p99: Annotated[float | None, Field(description="Ninety-nine hundredths of them are not later.")]


@dataclass(frozen=True, slots=True)
class ActivityBin:
    """The runs that ended in a span of time."""

    at: Annotated[datetime, Field(description="Its begin.")]
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
    """Bins, the earliest first."""

    bins: Annotated[tuple[ActivityBin, ...], Field(description="One for each span, also without a run.")]
    at_least: Annotated[
        bool, Field(description="True if there are more figures than one answer reads: the earliest are left out.")
    ]
    stages: Annotated[
        Mapping[str, StageLateness] | None,
        Field(description="The lateness of all bins together, as theirs; null if it was not read."),
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
        "tenant": tenant, "edges": list(edges), "look": LOOKED_AT, "queue": queue, "lane": lane,
    }  # fmt: skip
    counts: list[dict[str, int]] = [{} for _ in edges[1:]]
    looked_at = 0
    rows = cast("list[tuple[int, str, int, int]]", connection.execute(_READ_ACTIVITY, columns, binary=True).fetchall())
    for place, state, runs, of_rows in rows:
        counts[place][state] = runs
        looked_at += of_rows
    bins = [_bin(begin, by_state) for begin, by_state in zip(edges[:-1], counts, strict=True)]
    if not stages:
        return ActivityFigures(tuple(bins), looked_at >= LOOKED_AT)
    found = _buckets(connection, {**columns, "stages": sorted(stages)})
    bins = [replace(each, stages=_lateness(found.get(place, {}))) for place, each in enumerate(bins)]
    whole = {stage: sum((each.get(stage, Counter()) for each in found.values()), Counter[int]()) for stage in stages}
    return ActivityFigures(tuple(bins), looked_at >= LOOKED_AT, _lateness(whole))


def on_time_rate(connection: Conn, tenant: str, since: datetime, until: datetime) -> float | None:
    """Return the share of runs that were claimed within a second of their time; None without one."""
    columns: dict[str, object] = {
        "tenant": tenant, "edges": [since, until], "look": LOOKED_AT, "stages": [Stage.CLAIMED],
        "queue": None, "lane": None,
    }  # fmt: skip
    counts = Counter[int]()
    for by_stage in _buckets(connection, columns).values():
        counts += by_stage[Stage.CLAIMED]
    if not counts:
        return None
    return sum(count for bucket, count in counts.items() if bucket <= _ON_TIME_BUCKET) / counts.total()


def slowest_runs(connection: Conn, tenant: str, since: datetime, until: datetime, limit: int) -> tuple[SlowRun, ...]:
    """Return the slowest runs that ended in a span of time, the slowest first.

    Each row of figures has three, so runs that many slower ones surround are not among them.
    """
    columns = {"tenant": tenant, "since": since, "until": until, "look": LOOKED_AT, "limit": limit}
    found = cast("list[tuple[UUID, float]]", connection.execute(_FIND_SLOWEST_RUNS, columns, binary=True).fetchall())
    took = dict(found)
    return tuple(SlowRun(took[run.run_id], run) for run in read_runs(connection, list(took)))


@dataclass(frozen=True, slots=True)
class UpcomingBin:
    """The jobs whose timers come due in a span of time."""

    at: Annotated[datetime, Field(description="Its begin.")]
    jobs: Annotated[int, Field(description="Their number. A job counts once, at its next time.")]


@dataclass(frozen=True, slots=True)
class UpcomingJobs:
    """Bins, the earliest first."""

    bins: Annotated[tuple[UpcomingBin, ...], Field(description="One for each span.")]
    jobs: Annotated[int, Field(description="The number of all of them.")]
    at_least: Annotated[bool, Field(description="True if there are more timers than are counted.")]


def read_upcoming(connection: Conn, tenant: str, shards: int, edges: Sequence[datetime]) -> UpcomingJobs:
    """Return the jobs whose timers come due between ascending edges, which begin and end the bins."""
    per_shard = max(COUNTED // shards, _LEAST_OF_SHARD)
    columns = {"tenant": tenant, "shards": list(range(shards)), "edges": list(edges), "look": per_shard}
    counts = [0] * (len(edges) - 1)
    cut = False
    rows = connection.execute(_COUNT_UPCOMING, columns, binary=True).fetchall()
    for place, jobs, is_cut in cast("list[tuple[int, int, bool]]", rows):
        counts[place] += jobs
        cut |= is_cut
    bins = tuple(UpcomingBin(begin, jobs) for (begin, _), jobs in zip(pairwise(edges), counts, strict=True))
    return UpcomingJobs(bins, sum(counts), cut)


def _bin(at: datetime, runs: Mapping[str, int]) -> ActivityBin:
    succeeded, failed, timed_out, cancelled, skipped = (
        runs.get(state, 0)
        for state in (
            RunState.SUCCEEDED, RunState.FAILED, RunState.TIMED_OUT, RunState.CANCELLED, RunState.SKIPPED,
        )
    )  # fmt: skip
    return ActivityBin(at, succeeded, failed, timed_out, cancelled, skipped)


def _lateness(by_stage: Mapping[Stage, Counter[int]]) -> dict[str, StageLateness]:
    return {
        stage.name.lower(): StageLateness(counts.total(), quantile(counts, 0.5), quantile(counts, 0.99))
        for stage, counts in by_stage.items()
        if counts
    }


def _buckets(connection: Conn, columns: Mapping[str, object]) -> dict[int, dict[Stage, Counter[int]]]:
    rows = cast("list[tuple[int, int, int]]", connection.execute(_READ_STAGES, columns, binary=True).fetchall())
    found: dict[int, list[tuple[int, int]]] = {}
    for place, key, runs in rows:
        found.setdefault(place, []).append((key, runs))
    return {place: unpack_stages(packed) for place, packed in found.items()}
