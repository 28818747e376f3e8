"""CPU of all services over a minute in which nothing is due."""

import threading
from datetime import timedelta

import psutil

from bench.load import database_now, load_jobs
from bench.stage import Stage
from tidewheel.clock import monotonic_seconds

JOBS = 100_000
_SETTLE_SECONDS = 20.0
_MEASURE_SECONDS = 60.0


def measure(stage: Stage) -> dict[str, float]:
    """Percent of one core, for the services and for PostgreSQL."""
    with stage.connect() as connection:
        tomorrow = database_now(connection) + timedelta(days=1)
        load_jobs(connection, stage.installation, JOBS, due_at=tomorrow, prefix="idle")
    commands = (["relay"], ["executor", "--handlers", "bench.handlers"], ["scheduler"], ["intake"])
    with stage.services(*commands) as processes:
        threading.Event().wait(_SETTLE_SECONDS)
        postgres = _postgres(stage)
        before, before_postgres, started = _spent(processes), _spent(postgres), monotonic_seconds()
        threading.Event().wait(_MEASURE_SECONDS)
        seconds = monotonic_seconds() - started
        figures = {
            f"{command[0]}_percent": (after - was) / seconds * 100
            for command, after, was in zip(commands, _spent(processes), before, strict=True)
        }
        spent = sum(after - was for after, was in zip(_spent(postgres), before_postgres, strict=True))
    return {**figures, "services_percent": sum(figures.values()), "postgres_percent": spent / seconds * 100}


def _postgres(stage: Stage) -> list[psutil.Process]:
    with stage.connect() as connection:
        row = connection.execute("SELECT pg_backend_pid()").fetchone()
        assert row is not None
        postmaster = psutil.Process(int(str(row[0]))).parent()
    assert postmaster is not None
    return [child for child in postmaster.children() if child.is_running()]


def _spent(processes: list[psutil.Process]) -> list[float]:
    spent: list[float] = []
    for process in processes:
        try:
            times = process.cpu_times()
            spent.append(times.user + times.system)
        except psutil.NoSuchProcess:
            spent.append(0.0)
    return spent
