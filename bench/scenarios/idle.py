"""`idle`: CPU of the services and PostgreSQL without due jobs, with few jobs and very many."""

import threading
from datetime import timedelta

from tidewheel.bench.environment import Server
from tidewheel.bench.load import checkpoint, database_now, load_jobs
from tidewheel.bench.measurement import Figure, Options, Round, least
from tidewheel.bench.scenarios.pipeline import all_services
from tidewheel.clock import monotonic_seconds

SIZES = (10_000, 10_000_000)
MINUTES = 10.0
_COUNTED = ("scheduler", "relay", "executor")
_SETTLE_SECONDS = 30.0


def measure(server: Server, options: Options) -> Round:
    """Percent of one core, by process, and the scheduler's memory; for each number of jobs."""
    seconds = (options.minutes or MINUTES) * 60
    figures: dict[str, Figure] = {}
    for size in (options.jobs,) if options.jobs else SIZES:
        found = _idle(server, size, seconds, options)
        figures |= {f"{_named(size)}_{name}": figure for name, figure in found.items()}
    few, many = (f"{_named(size)}_postgres_percent" for size in (SIZES[0], SIZES[-1]))
    if few in figures and many in figures:
        figures["postgres_percent_more"] = least(figures[many].value - figures[few].value, "points")
    return Round(figures)


def _idle(server: Server, size: int, seconds: float, options: Options) -> dict[str, Figure]:
    with server.environment() as environment:
        options.report(f"loading {size:,} jobs")
        with environment.connect() as connection:
            tomorrow = database_now(connection) + timedelta(days=1)
            load_jobs(connection, environment.installation, size, due_at=tomorrow, prefix="idle")
            checkpoint(connection)
        with all_services(environment) as processes, environment.meter(processes) as meter:
            options.report(f"{size:,} jobs, settling")
            threading.Event().wait(min(_SETTLE_SECONDS, seconds))
            options.report(f"{size:,} jobs, idle for {seconds / 60:.1f} minutes")
            before, started = meter.mark(), monotonic_seconds()
            threading.Event().wait(seconds)
            spent, took = meter.since(before, 1), monotonic_seconds() - started
            memory = processes["scheduler"][0].memory_info().rss
        with environment.connect() as connection:
            row = connection.execute("SELECT count(*) FROM runs").fetchone()
            assert row == (0,), "nothing was due, and yet there are runs"
    percent = {name: cpu / took * 100 for name, cpu in spent.cpu_seconds.items()}
    return {
        "services_percent": least(sum(percent[name] for name in _COUNTED), "% of a core"),
        **{f"{name}_percent": least(value, "% of a core") for name, value in percent.items()},
        "wal_bytes_per_second": least(spent.wal_bytes / took, "bytes/s"),
        "scheduler_memory": least(memory / 2**20, "MiB"),
    }


def _named(size: int) -> str:
    for unit, letter in ((1_000_000, "m"), (1000, "k")):
        if size >= unit:
            return f"{size // unit}{letter}"
    return str(size)
