"""`archive`: runs/s of `tidewheel archive run`, bytes a run, and the time to find one run.

SQL makes the days. Retention counts and closes them, and the command archives them to a folder. Then runs of all days
are looked up by id, each as `tidewheel archive show` does.
"""

import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import LiteralString, cast
from uuid import UUID

from tidewheel.bench.environment import Environment, Server
from tidewheel.bench.load import count_of, database_now
from tidewheel.bench.measurement import Figure, Incomplete, Options, Round, least, percentile, rate
from tidewheel.bench.scenarios.retention import load_old_jobs, make_day
from tidewheel.clock import monotonic_seconds
from tidewheel.control.archive.lookup import show_archived_run
from tidewheel.postgres.partitions import day_of
from tidewheel.postgres.session import Conn
from tidewheel.process.service import Shutdown
from tidewheel.scheduler.retention import Retention
from tidewheel.scheduler.retention_rules import periods_of
from tidewheel.settings.services import SchedulerSettings

RUNS = 3_000_000

_DAYS = 30
_JOBS = 1000
_FOUND = 200  # runs that are looked up
_MOST_PASSES = 1000
_CLOSED: LiteralString = "SELECT count(*) FROM run_days WHERE closed_at IS NOT NULL"
_ARCHIVED: LiteralString = "SELECT count(*) FROM archived_days"
_SOME: LiteralString = "SELECT run_id FROM finished_runs ORDER BY md5(run_id::text) LIMIT %s"


def measure(server: Server, options: Options) -> Round:
    """Archive days, and find runs in them."""
    each = max(10, (options.jobs or RUNS) // _DAYS)
    with server.environment() as environment, environment.connect() as connection:
        today = day_of(database_now(connection))
        options.report(f"making {_DAYS} days of {each:,} runs")
        load_old_jobs(environment, connection, _JOBS)
        stored = sum(
            make_day(environment, connection, day, runs=each, jobs=_JOBS)
            for day in (today - timedelta(days=age) for age in range(2, 2 + _DAYS))
        )
        options.report("closing the days")
        _close(environment, connection)
        options.report("archiving")
        folder = environment.home / "archive"
        seconds = _archive(environment, folder)
        options.report(f"looking up {_FOUND} runs")
        late = _find(connection, folder)
        if (days := count_of(connection, _ARCHIVED)) < _DAYS:
            message = f"{days} of {_DAYS} days are archived"
            raise Incomplete(message)
    runs, size = each * _DAYS, sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return Round(
        {
            "archive_runs_per_second": rate(runs / seconds, "runs/s"),
            "archive_bytes_per_run": least(size / runs, "bytes"),
            "archive_mib": least(size / 2**20, "MiB"),
            "stored_bytes_per_run": least(stored / runs, "bytes"),
            "archive_days": Figure(_DAYS, ""),
            "find_p50_ms": least(percentile(late, 50), "ms"),
            "find_max_ms": least(max(late), "ms"),
        },
        distributions={"find one run": late},
    )


def _close(environment: Environment, connection: Conn) -> None:
    retention = Retention(environment.url, periods_of(SchedulerSettings.load()), Shutdown())
    try:
        for _ in range(_MOST_PASSES):
            retention.step()
            if count_of(connection, _CLOSED) >= _DAYS:
                return
    finally:
        retention.close()
    message = f"only {count_of(connection, _CLOSED)} of {_DAYS} days are closed"
    raise Incomplete(message)


def _archive(environment: Environment, folder: Path) -> float:
    """Run the command; return its seconds."""
    program = [sys.executable, "-m", "tidewheel.control.cli", "archive", "run"]
    variables = {**environment.variables, "TIDEWHEEL_ARCHIVE": str(folder)}
    began = monotonic_seconds()
    done = subprocess.run(program, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        message = f"archive run ended with {done.returncode}: {(done.stderr or done.stdout)[-500:]}"
        raise Incomplete(message)
    return monotonic_seconds() - began


def _find(connection: Conn, folder: Path) -> list[float]:
    """Find runs of all days; return the milliseconds of each."""

    @contextmanager
    def snapshot() -> Generator[Conn]:
        with connection.transaction():
            yield connection

    found = cast("list[tuple[UUID]]", connection.execute(_SOME, [_FOUND]).fetchall())
    connection.commit()
    late: list[float] = []
    for (run_id,) in found:
        began = monotonic_seconds()
        run = show_archived_run(snapshot, str(folder), "default", run_id)
        late.append((monotonic_seconds() - began) * 1000)
        if run.summary.run_id != run_id:
            message = f"{run.summary.run_id} was found in place of {run_id}"
            raise Incomplete(message)
    return late
