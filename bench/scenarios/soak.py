"""`soak`: a steady load for a quarter of an hour, without and with a long open transaction.

The third part has jobs of 1 s with `skip`, beside an open transaction: each claim looks for other runs of its job, and
the rows of the runs that have ended remain for as long as the transaction is open.

What is looked for is what changes: throughput and latency flat, tables and WAL bounded, dead rows kept down.
"""

import math
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import cast

import psycopg

from tidewheel.bench.complete import Ends, check_runs, check_starts, count_skipped, describe_counts, until_empty
from tidewheel.bench.environment import Environment, Server
from tidewheel.bench.load import load_steady
from tidewheel.bench.measurement import Figure, Incomplete, Options, Round, least, percentile, rate
from tidewheel.bench.scenarios.pipeline import (
    EXECUTORS,
    WARM_RUNS,
    all_services,
    due_after_loading,
    lateness_ms,
    mark_before_firing,
    p99_by_second,
    warm_up,
)
from tidewheel.clock import monotonic_seconds
from tidewheel.postgres.session import Conn

MINUTES = 15.0
SKIP_RATE = 500.0
SHARE = 0.6  # of what the warm-up has shown, where no rate is given
_HELD_SHARE = 2 / 3  # of the time: ten of fifteen minutes
_PERIOD = timedelta(seconds=100)  # of a job: later than this, its next run is passed over; a soak is so many whole ones
_SHORT = timedelta(seconds=1)
_SAMPLE_SECONDS = 5.0
_TABLES = ("timers", "job_runs", "active_runs", "outbox")
_MAX_LATE_SECONDS = _PERIOD.total_seconds()  # after the last due run
_STANDING = """
SELECT relname, n_dead_tup, pg_total_relation_size(relid) FROM pg_stat_user_tables WHERE relname = ANY (%s)
"""
_WAL = "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn, (SELECT coalesce(sum(size), 0) FROM pg_ls_waldir())"

Series = dict[str, list[tuple[float, float]]]


def free(server: Server, options: Options) -> Round:
    """Run without an open transaction."""
    return _soak(server, options, "free", held=False)


def held(server: Server, options: Options) -> Round:
    """Run beside an open transaction."""
    return _soak(server, options, "held", held=True)


def skip(server: Server, options: Options) -> Round:
    """Run jobs of 1 s with `skip` beside an open transaction."""
    options = replace(options, rate=options.rate or SKIP_RATE)
    return _soak(server, options, "skip", held=True, period=_SHORT)


def _soak(server: Server, options: Options, name: str, *, held: bool, period: timedelta = _PERIOD) -> Round:
    with server.environment() as environment, environment.connect() as connection:
        ends = Ends(environment, environment.installation.topics.completions)
        with all_services(environment, executors=EXECUTORS) as processes, environment.meter(processes) as meter:
            warm_rate = warm_up(environment, connection, ends, options)
            per_second = options.rate or warm_rate * SHARE
            rounds = max(1, math.ceil((options.minutes or MINUTES) * 60 / period.total_seconds()))
            jobs, seconds = int(per_second * period.total_seconds()), rounds * period.total_seconds()
            due_at = due_after_loading(environment, connection, jobs)
            load_steady(
                connection, environment.installation, jobs, due_at=due_at, period=period, rounds=rounds, prefix="soak"
            )
            runs = jobs * rounds
            options.report(f"{name}: {per_second:,.0f} runs/s for {seconds / 60:.1f} minutes")
            before = mark_before_firing(environment, connection, meter, due_at)
            with _held_open(environment, seconds * _HELD_SHARE if held else 0.0):
                series = _sample(connection, ends, WARM_RUNS + runs, due_at, seconds)
            spent = meter.since(before, runs)
            until_empty(connection, "job_runs", "outbox")
        skipped = count_skipped(connection) if period == _SHORT else 0
        check_runs(connection, WARM_RUNS + runs, environment.starts(), skipped=skipped)
        starts = [start for start in environment.starts().read() if start.due]
        check_starts(starts, runs - skipped)
    lateness, late = lateness_ms(starts), p99_by_second(starts)
    tenth = max(1, len(late) // 10)
    reached = runs / series["events"][-1][0]
    at, count = [point for point in series["events"] if point[0] <= seconds * _HELD_SHARE][-1]
    figures = {
        "runs_per_second": rate(reached, "runs/s", spent=spent),
        "share_of_asked": rate(reached / per_second, ""),
        "share_in_two_thirds": rate((count - WARM_RUNS) / at / per_second, ""),  # while the transaction is held
        "start_p99_ms": least(percentile(lateness, 99), "ms"),
        "first_tenth_p99_ms": least(percentile([value for _, value in late[:tenth]], 50), "ms"),
        "last_tenth_p99_ms": least(percentile([value for _, value in late[-tenth:]], 50), "ms"),
        "most_dead_rows": least(max(value for kind, each in series.items() if "dead" in kind for _, value in each), ""),
        "most_hot_table_mib": least(max(value for _, value in series["MiB of hot tables"]), "MiB"),
        "most_wal_mib": least(max(value for _, value in series["MiB in pg_wal"]), "MiB"),
    }
    if period == _SHORT:
        figures["skipped_percent"] = Figure(100 * skipped / runs, "percent", less_is_better=True)
    series["due to start, p99 of a second, ms"] = list(late)
    return Round(
        {f"{name}_{figure}": value for figure, value in figures.items()},
        distributions={name: lateness},
        series={f"{name}: {what}": points for what, points in series.items()},
    )


def _sample(connection: Conn, ends: Ends, wanted: int, due_at: datetime, seconds: float) -> Series:
    """Look on until all is done; by seconds since the first was due."""
    series: Series = {"events": []}
    offset = _seconds_since(connection, due_at) - monotonic_seconds()
    gives_up = monotonic_seconds() - (offset + monotonic_seconds()) + seconds + _MAX_LATE_SECONDS
    before, first_wal = (0.0, WARM_RUNS), 0.0
    while True:
        at, count = monotonic_seconds() + offset, ends.count()
        if at > 0:
            series["events"].append((at, float(count)))
            wal, kept = _wal(connection)
            first_wal = first_wal or wal
            points = {
                "events/s": (count - before[1]) / (at - before[0]),
                "MiB of WAL written": (wal - first_wal) / 2**20,
            }
            points["MiB in pg_wal"] = kept / 2**20
            points |= _tables(connection)
            for name, value in points.items():
                series.setdefault(name, []).append((at, value))
            before = (at, count)
        if count >= wanted:
            return series
        if monotonic_seconds() > gives_up:
            done = f"{count:,} of {wanted:,} runs are done {_MAX_LATE_SECONDS:.0f} s after the last was due"
            message = f"{done}: {describe_counts(connection)}"
            raise Incomplete(message)
        threading.Event().wait(_SAMPLE_SECONDS if wanted - count > WARM_RUNS else 0.5)


@contextmanager
def _held_open(environment: Environment, seconds: float) -> Generator[None]:
    """Keep a transaction open for so long, with a snapshot and an id; none for 0 seconds."""
    if not seconds:
        yield
        return
    over = threading.Event()

    def hold() -> None:
        with psycopg.connect(environment.url, application_name="open-transaction") as other:
            other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            other.execute("SELECT pg_current_xact_id()")
            over.wait(seconds)
            other.rollback()

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _tables(connection: Conn) -> dict[str, float]:
    rows = connection.execute(_STANDING, [list(_TABLES)]).fetchall()
    connection.rollback()
    found = {f"dead rows of {name}": float(cast("int", dead)) for name, dead, _ in rows}
    return {**found, "MiB of hot tables": sum(cast("int", size) for _, _, size in rows) / 2**20}


def _wal(connection: Conn) -> tuple[float, float]:
    row = connection.execute(_WAL).fetchone()
    connection.rollback()
    assert row is not None
    return float(str(row[0])), float(str(row[1]))


def _seconds_since(connection: Conn, instant: datetime) -> float:
    row = connection.execute("SELECT extract(epoch FROM tidewheel_now() - %s)::float8", [instant]).fetchone()
    connection.rollback()
    assert row is not None
    return float(str(row[0]))
