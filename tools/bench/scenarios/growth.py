"""`growth`: a steady load for a quarter of an hour: lateness flat, tables and WAL bounded."""

import math
import threading
from datetime import datetime, timedelta
from typing import LiteralString

from tidewheel.clock import monotonic_seconds
from tidewheel.postgres.session import Conn
from tools.bench.complete import Ends, check_runs, check_starts, lateness_ms, p99_by_second, until_empty
from tools.bench.environment import Server
from tools.bench.load import count_of, database_now, due_after_loading, load_steady
from tools.bench.measurement import Figure, Incomplete, Options, Points, Round, percentile
from tools.bench.scenarios.pipeline import WARM_RUNS, all_services, mark_before_firing, warm_up

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
    with server.environment() as environment, environment.connect() as connection:
        ends = Ends(environment, environment.installation.topics.completions)
        with all_services(environment) as processes, environment.meter(processes) as meter:
            per_second = options.rate or warm_up(environment, connection, ends, options) * SHARE
            warm = 0 if options.rate else WARM_RUNS
            rounds = max(1, math.ceil((options.minutes or MINUTES) * 60 / _PERIOD.total_seconds()))
            jobs, seconds = int(per_second * _PERIOD.total_seconds()), rounds * _PERIOD.total_seconds()
            runs = jobs * rounds
            due_at = due_after_loading(environment, connection, jobs)
            load_steady(connection, environment.installation, jobs, due_at=due_at, period=_PERIOD, rounds=rounds)
            options.report(f"{per_second:,.0f} runs/s for {seconds / 60:.1f} minutes")
            before = mark_before_firing(environment, connection, meter, due_at)
            series = _sample(connection, ends, warm + runs, due_at, seconds)
            spent = meter.since(before, runs)
            until_empty(connection, "job_runs", "outbox")
        check_runs(connection, warm + runs, environment.starts())
        starts = [start for start in environment.starts().read() if start.due]
        check_starts(starts, runs)
    late = p99_by_second(starts)
    tenth = max(1, len(late) // 10)
    figures = {
        "runs_per_second": Figure(runs / series["events"][-1][0], "runs/s", spent),
        "start_p99_ms": Figure(percentile(lateness_ms(starts), 99), "ms"),
        "first_tenth_p99_ms": Figure(percentile([value for _, value in late[:tenth]], 50), "ms"),
        "last_tenth_p99_ms": Figure(percentile([value for _, value in late[-tenth:]], 50), "ms"),
        **{f"most {name}": Figure(max(value for _, value in series[name]), "") for name in _SERIES},
    }
    return Round(figures, {**series, "due to start, p99 of a second, ms": late})


def _sample(connection: Conn, ends: Ends, wanted: int, due_at: datetime, seconds: float) -> dict[str, Points]:
    """Look on until all is done; by seconds since the first was due."""
    series: dict[str, list[tuple[float, float]]] = {"events": [], **{name: [] for name in _SERIES}}
    begins = monotonic_seconds() + (due_at - database_now(connection)) / timedelta(seconds=1)
    gives_up = begins + seconds + 5 * _PERIOD.total_seconds()
    while True:
        at, count = monotonic_seconds() - begins, ends.count()
        series["events"].append((at, float(count)))
        for name, statement in _SERIES.items():
            series[name].append((at, float(count_of(connection, statement, list(_TABLES)))))
        if count >= wanted:
            return dict(series)
        if monotonic_seconds() > gives_up:
            message = f"{count:,} of {wanted:,} runs are done long after the last was due"
            raise Incomplete(message)
        threading.Event().wait(min(_SAMPLE_SECONDS, max(0.5, seconds / 20)))
