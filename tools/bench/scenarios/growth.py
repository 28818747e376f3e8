"""`growth`: a steady load for a quarter of an hour: lateness flat, tables and WAL bounded."""

import math
import threading
from datetime import datetime, timedelta
from functools import partial
from typing import LiteralString

from tidewheel.clock import monotonic_seconds
from tools.bench.complete import lateness, p99_by_second, starts_since
from tools.bench.environment import Server
from tools.bench.flow import Flow, flowing
from tools.bench.load import steady
from tools.bench.measurement import Figure, Incomplete, Options, Points, Round, percentile
from tools.bench.scenarios.pipeline import WARM_RUNS

MINUTES = 15.0
SHARE = 0.6  # of what the warm-up has shown, where no rate is given
_PERIOD = timedelta(seconds=20)  # of a job: later than this, its next run is passed over
_SAMPLE_SECONDS = 5.0
_TABLES = ("timers", "job_runs", "active_runs", "outbox")
_SERIES: dict[str, LiteralString] = {
    "dead rows of hot tables": (
        "SELECT coalesce(sum(n_dead_tup), 0)::bigint FROM pg_stat_user_tables WHERE relname = ANY (%s)"
    ),
    "bytes of hot tables": (
        "SELECT sum(pg_total_relation_size(to_regclass(name)))::bigint FROM unnest(%s::text[]) AS name"
    ),
    "bytes in pg_wal": "SELECT coalesce(sum(size), 0)::bigint FROM pg_ls_waldir() WHERE %s::text[] IS NOT NULL",
}


def measure(server: Server, options: Options) -> Round:
    """Run a steady load, and look at the tables that it changes and at the WAL."""
    rounds = max(1, math.ceil((options.minutes or MINUTES) * 60 / _PERIOD.total_seconds()))
    with flowing(server, options) as flow:
        per_second = options.rate or flow.warm_up(WARM_RUNS) * SHARE
        load = steady(int(per_second * _PERIOD.total_seconds()), _PERIOD, rounds)
        due_at = flow.load(load)
        series, spent = flow.measure(due_at, load.runs, partial(_sample, flow, due_at, rounds))
        flow.check(events=False)
        starts = starts_since(flow.environment, due_at, load.runs)
    by_second = p99_by_second(starts)
    [late] = by_second.values()
    tenth = max(1, len(late) // 10)
    figures = {
        "runs_per_second": Figure(load.runs / series["events"][-1][0], "runs/s", spent),
        **lateness(starts),
        "first_tenth_p99_ms": Figure(percentile([value for _, value in late[:tenth]], 50), "ms"),
        "last_tenth_p99_ms": Figure(percentile([value for _, value in late[-tenth:]], 50), "ms"),
        **{f"most {name}": Figure(max(value for _, value in series[name]), "") for name in _SERIES},
    }
    return Round(figures, {**series, **by_second})


def _sample(flow: Flow, due_at: datetime, rounds: int, wanted: int) -> dict[str, Points]:
    """Look on until all is done; by seconds since the first was due."""
    series: dict[str, list[tuple[float, float]]] = {"events": [], **{name: [] for name in _SERIES}}
    begins = monotonic_seconds() + (due_at - flow.environment.now()) / timedelta(seconds=1)
    seconds = rounds * _PERIOD.total_seconds()
    while True:
        at, count = monotonic_seconds() - begins, flow.ends.count()
        series["events"].append((at, float(count)))
        for name, statement in _SERIES.items():
            series[name].append((at, float(flow.environment.count(statement, list(_TABLES)))))
        if count >= wanted:
            return dict(series)
        if at > seconds + 5 * _PERIOD.total_seconds():
            message = f"{count:,} of {wanted:,} runs are done long after the last was due"
            raise Incomplete(message)
        threading.Event().wait(min(_SAMPLE_SECONDS, max(0.5, seconds / 20)))
