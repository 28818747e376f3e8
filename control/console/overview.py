"""The overview: is all well, and if not, what, since when, whose; lateness over time as lines."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import ClassVar, Literal, NamedTuple
from uuid import UUID

from starlette.requests import Request

from tidewheel.activity import Stage, begin_of
from tidewheel.control.api.answers import fleet_of
from tidewheel.control.api.authorization import Caller
from tidewheel.control.api.request_input import TenantQuery
from tidewheel.control.client.connection import Connection
from tidewheel.control.console.axis import GRID, Axis, Window, axis
from tidewheel.control.console.grid import NARROW as PITCH
from tidewheel.control.console.jobs import Row, in_order, problems, row_of
from tidewheel.control.console.rendering import zone_of_page
from tidewheel.control.console.sentences import wait_label
from tidewheel.control.console.tide import NARROW, WIDE, Counts, Span, Tide, sentence, tide
from tidewheel.control.console.urls import Urls
from tidewheel.control.console.view import Failed, View, of_all_tenants, or_else, page_now, part, part_of, read_filters
from tidewheel.control.console.words import agreed, counted, number
from tidewheel.control.explain.month import job_bins
from tidewheel.control.reads.causes import RECOVERED, Need, with_slots
from tidewheel.control.reads.findings import Severity
from tidewheel.control.reads.fleet import able_of_each
from tidewheel.control.reads.overview import Now, read_now_of
from tidewheel.control.reads.workload import (
    ActivityFigures,
    Backlog,
    OpenRuns,
    UpcomingJobs,
    read_activity,
    read_open_runs,
    read_upcoming,
)
from tidewheel.control.words import duration
from tidewheel.jobs.values import format_timestamp
from tidewheel.nouns.freezes.reads import frozen_spans
from tidewheel.nouns.jobs.reads import find_unwell, jobs_of, list_jobs
from tidewheel.nouns.runs.model import PageFilter
from tidewheel.nouns.runs.reads import list_runs, read_runs
from tidewheel.runs import FINAL

_NEEDS = 6  # or one more, which would take as much room as the line of the further ones
_SMALLER = 6  # further needs in one line
_BACKLOGS = 8
_JOBS, _LOOKED_AT = 12, 50  # jobs that are shown, and that are looked at
_REASONS = 2  # for which runs wait
_HOUR = timedelta(hours=1)
_LATEST = 20  # runs, among which one has ended unless the installation is new
_WINDOWS = (Window.HOUR, Window.SIX_HOURS, Window.DAY, Window.WEEK)
STAGES = {"written": "until enqueued", "claimed": "until claimed", "ended": "until finished"}
"""The stages of which one plot shows one, and their names."""
LATENESS_WIDTH = 1000  # of the coordinates of the lines, which stretch to the width of the plot
_LEAST, _MOST = -3, 5  # powers of ten in seconds: 1 ms to a day


class OverviewQuery(TenantQuery):
    """The window and the stage of the overview's plots."""

    window: Literal["1h", "6h", "24h", "7d"] = "1h"
    stage: Literal["claimed", "written", "ended"] = "claimed"


@dataclass(frozen=True, slots=True)
class OverviewPage:
    """The overview."""

    shards: int
    template: ClassVar[str] = "overview.html"

    def read(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> View:
        """Read each part by itself: one that fails leaves the others."""
        query, _ = read_filters(request, OverviewQuery)
        now = page_now(connection)
        along = axis(Window(query.window), now, zone_of_page(request)[1], whole=True, windows=GRID)
        along = replace(along, edges=[begin_of(along.begin), *along.edges[1:]])  # figures are of 5 seconds
        ahead = [along.now, *along.edges[along.behind + 1 :]]
        found = part(lambda: self._present(connection, caller, along, Stage[query.stage.upper()]))
        here, open_runs, figures = (found, found, found) if isinstance(found, Failed) else found
        upcoming = part_of(connection, read_upcoming, caller.tenant, self.shards, ahead)
        causes = here.findings if isinstance(here, Now) else ()
        needs = [need for need in causes if need.words != RECOVERED]
        shown = len(needs) if len(needs) == _NEEDS + 1 else _NEEDS
        backlogs = open_runs.backlogs if isinstance(open_runs, OpenRuns) else ()
        jobs = part(lambda: _jobs(connection, caller, causes, backlogs[:_BACKLOGS], along))
        red = [row.job.job_id for row in jobs.rows if row.condition == "failing"] if isinstance(jobs, Jobs) else []
        ordered = sorted(needs, key=lambda need: need.severity != Severity.ERROR and need.job_id not in red)
        frozen = or_else(part_of(connection, frozen_spans, caller.tenant, along.begin, along.now), ())
        steps = jobs if isinstance(jobs, Failed) else part(partial(_steps, connection, caller, figures, jobs))
        failed = [each for each in (here, open_runs, figures, upcoming, steps, jobs) if isinstance(each, Failed)]
        return View(
            {
                "now": now, "present": here, "open_runs": open_runs, "needs": ordered[:shown],
                "smaller": ordered[shown:], "in_one_line": _SMALLER,
                "recovered": [need for need in causes if need.words == RECOVERED],
                "needs_count": len(needs), "steps": steps,
                "hour_ago": format_timestamp(begin_of(now - _HOUR)), "windows": _WINDOWS, "stages": STAGES,
                "title": _title(needs, here, steps, failed, sees_all=caller.sees_fleet), "query": query,
                "plot": _plot(along, figures, upcoming, urls, frozen),
                "was_frozen": any(until > now - _HOUR for _, until, _ in frozen), "pitch": PITCH,
                "late": _late(along, figures, query.stage), "waiting": sum(each.count for each in backlogs),
                "backlogs": backlogs[:_BACKLOGS], "left_out": len(backlogs) - _BACKLOGS,
                "since": format_timestamp(along.begin), "upcoming": upcoming, "jobs": jobs, "along": along,
                "lost": sum(need.count or 0 for need in needs if need.counted == "orphaned"),
                "why_waiting": _why_waiting(open_runs) if isinstance(open_runs, OpenRuns) else "",
            }
        )  # fmt: skip

    def _present(
        self, connection: Connection, caller: Caller, along: Axis, stage: Stage
    ) -> tuple[Now | Failed, OpenRuns, ActivityFigures]:
        """Read what has to agree, in one snapshot."""
        fleet, tenant = fleet_of(connection, caller, self.shards), caller.tenant
        with connection.snapshot() as reading:
            figures = read_activity(reading, tenant, along.edges[: along.behind + 1], (stage,))
            found = read_open_runs(reading, tenant)
            sees, now = caller.all_tenants, along.now
            here = part(
                lambda: read_now_of(reading, tenant, self.shards, fleet, sees_slots=sees, as_of=now, open_runs=found)
            )
        if isinstance(here, Now) and fleet is not None:
            needs = with_slots(
                here.findings, found.waiting, lambda handlers: of_all_tenants(connection, able_of_each, handlers)
            )
            here = replace(here, findings=needs)
        return here, found, figures


class Jobs(NamedTuple):
    """The rows of a dozen jobs, how many others have nothing to draw, and whether these are all."""

    rows: Sequence[Row]
    whys: Mapping[UUID, tuple[str, str]]
    others: int
    is_whole: bool


def _jobs(
    connection: Connection, caller: Caller, needs: Sequence[Need], backlogs: Sequence[Backlog], along: Axis
) -> Jobs:
    """Return jobs with something to draw: failing ones, those of the oldest waiting runs, the first keys."""
    failing = [need.job_id for need in needs if need.job_id is not None]
    with connection.snapshot() as reading:
        waiting = [run.job_id for run in read_runs(reading, [each.oldest_run_id for each in backlogs])]
        unwell = jobs_of(reading, caller.tenant, [*dict.fromkeys((*failing, *waiting))][:_JOBS])
        page = list_jobs(reading, caller.tenant, limit=_LOOKED_AT, counts=False)
        found = list({job.job_id: job for job in (*unwell, *page.jobs)}.values())
        bins = job_bins(reading, found, along.edges, along.behind)
        marked = find_unwell(reading, [job.job_id for job in found])
        rows = in_order([row_of(job, bins[job.job_id], PITCH, along, marked) for job in found])
        drawn = [row for row in rows if row.strip.paths]
        others = [row for row in drawn[:_JOBS] if row.job.job_id not in failing]  # their needs have the errors
        whys = problems(reading, caller.tenant, others)
    return Jobs(drawn[:_JOBS], whys, len(rows) - len(drawn), page.next_cursor is None and len(drawn) <= _JOBS)


def _why_waiting(open_runs: OpenRuns) -> str:
    """Return the commonest reasons for which due runs wait, each with its number if there are several."""
    counts = Counter[str]()
    for each in open_runs.waiting:
        counts[wait_label(each.why)] += each.count
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{number(count)} {label}" for label, count in counts.most_common(_REASONS))


def _steps(connection: Connection, caller: Caller, figures: ActivityFigures | Failed, jobs: Jobs) -> int:
    """Return how many of the first steps of an installation are done: it has a job, a run, an ended run."""
    if isinstance(figures, ActivityFigures) and any(each.succeeded or each.failed for each in figures.bins):
        return 3
    if not (jobs.rows or jobs.others):
        return 0
    with connection.snapshot() as reading:
        runs = list_runs(reading, caller.tenant, PageFilter(), limit=_LATEST, counts=False).runs
    return 1 + bool(runs) + any(run.status in FINAL for run in runs)


class Plot(NamedTuple):
    """The tide line for both widths, its sentence, and the counts of all its bins."""

    wide: Tide
    narrow: Tide
    words: str
    total: Counts
    coming_at_least: bool


def _plot(
    along: Axis, figures: ActivityFigures | Failed, upcoming: UpcomingJobs | Failed, urls: Urls, frozen: Sequence[Span]
) -> Plot | Failed:
    if isinstance(figures, Failed):
        return figures
    past = [Counts(each.succeeded, each.failed, each.timed_out, each.cancelled, each.skipped) for each in figures.bins]
    ahead = [0] * (len(along.edges) - 1 - along.behind)
    cut = False
    if isinstance(upcoming, UpcomingJobs):
        ahead, cut = [each.jobs for each in upcoming.bins], upcoming.at_least
    bins = [*past, *(Counts(coming=jobs) for jobs in ahead)]

    def link(begin: datetime, end: datetime) -> str | None:
        if begin >= along.until:
            return None
        until = format_timestamp(end)  # so the list looks at no younger run, nor at one that ended before its time
        return urls("runs", ended_since=format_timestamp(begin), ended_until=until, until=until)

    wide, narrow = (tide(along, bins, size, link, frozen=frozen) for size in (WIDE, NARROW))
    words = sentence(along, bins, coming_at_least=cut, frozen=frozen)
    return Plot(wide, narrow, words, sum(bins, Counts()), cut)


def _late(along: Axis, figures: ActivityFigures | Failed, stage: str) -> "Lines | Failed":
    if isinstance(figures, Failed):
        return figures
    found = [(each.stages or {}).get(stage) for each in figures.bins]
    p50, p99 = ([None if each is None else getattr(each, name) for each in found] for name in ("p50", "p99"))
    whole = (figures.stages or {}).get(stage)
    named = [] if whole is None else [("p50", whole.p50), ("p99", whole.p99)]
    shown = [(name, duration(timedelta(seconds=seconds))) for name, seconds in named if seconds is not None]
    return lateness_lines(along, p50, p99)._replace(figures=shown)


def _title(
    needs: Sequence[Need], here: Now | Failed, steps: int | Failed, failed: Sequence[Failed], *, sees_all: bool
) -> str:
    """Return how all is; all is well only where every part was read, the fleet with them."""
    if needs:
        return f"{counted(len(needs), 'problem')} {agreed(len(needs), 'needs', 'need')} attention"
    if failed or not isinstance(here, Now) or isinstance(steps, Failed):
        return "A part could not be read, the others show no problem"
    if not steps:
        return "No job yet"
    return "All well" if sees_all else "Nothing of this tenant needs attention"


class Lines(NamedTuple):
    """The medians, bars up to the 99th percentiles, rules at powers of ten, both figures."""

    height: int
    p50: str
    p99: str
    rules: Sequence[tuple[float, str]]
    figures: Sequence[tuple[str, str]] = ()


def lateness_lines(along: Axis, p50: Sequence[float | None], p99: Sequence[float | None], height: int = 120) -> Lines:
    """Return the shapes of lateness in seconds; a value of 0 lies on the floor."""
    known = [each for each in (*p50, *p99) if each is not None]
    powers = [math.log10(each) for each in known if each > 0]
    low = max(min((math.floor(each) for each in powers), default=_LEAST), _LEAST)
    high = min(max(max((math.ceil(each) for each in powers), default=0), low + 2), _MOST)

    def y(seconds: float) -> float:
        power = min(max(math.log10(seconds), low), high) if seconds > 0 else low
        return round(height - 8 - (power - low) / (high - low) * (height - 24), 1)

    step = LATENESS_WIDTH / along.behind
    rules = [(y(10.0**power), duration(timedelta(seconds=10.0**power), exact=True)) for power in range(low, high + 1)]
    pairs = [(at, p50[at - 1] if at else None, each) for at, each in enumerate(p50) if each is not None]
    line = [f"{'M' if before is None else 'L'}{at * step:.1f} {y(each)}h{step:.1f}" for at, before, each in pairs]
    bars = [f"M{(at + 0.5) * step:.1f} {rules[0][0]}V{y(each)}" for at, each in enumerate(p99) if each is not None]
    return Lines(height, "".join(line), "".join(bars), rules)
