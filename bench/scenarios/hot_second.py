"""`hot-second`: recurring jobs that are all due at the same instant; how late each was begun."""

import threading
from collections.abc import Sequence
from datetime import timedelta

from tidewheel.bench import baselines
from tidewheel.bench.complete import Ends, check_events, check_runs, check_starts, until_empty, wait_for
from tidewheel.bench.environment import Environment, Server
from tidewheel.bench.load import database_now, load_jobs
from tidewheel.bench.measurement import Figure, Options, Round, least, percentile
from tidewheel.bench.scenarios.fire import fire_all
from tidewheel.bench.scenarios.pipeline import (
    EXECUTORS,
    all_services,
    due_after_loading,
    lateness_ms,
    mark_before_firing,
    warm_up,
)
from tidewheel.bench.starts import Start
from tidewheel.postgres.session import Conn

SIZES = (10_000, 100_000)
_IDLE_SECONDS = 15.0  # on an empty table: thirty looks of the scheduler, more than twice seventy of the relay
_WARM_RUNS = 3000


def measure(server: Server, options: Options) -> Round:
    """Each size with services that have just worked, and with services that have idled on empty tables."""
    figures: dict[str, Figure] = {}
    late: dict[str, Sequence[float]] = {}
    for size in (options.jobs,) if options.jobs else SIZES:
        for idled in (False, True):
            name = f"{size // 1000}k" if size % 1000 == 0 else str(size)
            name += "_after_idling" if idled else ""
            options.report(f"{size:,} jobs{' after idling' if idled else ''}")
            found, starts = _hot_second(server, size, options, idled=idled)
            figures |= {f"{name}_{figure}": value for figure, value in found.items()}
            late[f"{size:,} due at once{', after idling' if idled else ''}"] = lateness_ms(starts)
    return Round(figures, distributions=late)


def _hot_second(server: Server, size: int, options: Options, *, idled: bool) -> tuple[dict[str, Figure], list[Start]]:
    warm = 0 if idled else min(_WARM_RUNS, size)
    with server.environment() as environment, environment.connect() as connection:
        ends = Ends(environment, environment.installation.topics.completions)
        with all_services(environment, executors=EXECUTORS) as processes, environment.meter(processes) as meter:
            if idled:
                threading.Event().wait(_IDLE_SECONDS)
            else:
                warm_up(environment, connection, ends, options, warm)
            due_at = due_after_loading(environment, connection, size)
            load_jobs(
                connection,
                environment.installation,
                size,
                due_at=due_at,
                every=timedelta(hours=2),
                handler="noted",
                prefix="hot",
                analyze=not idled,
            )
            before = mark_before_firing(environment, connection, meter, due_at)
            wait_for(environment.starts().count, warm + size, "runs begun")
            ends.watch(warm + size)
            until_empty(connection, "job_runs", "outbox")
            spent = meter.since(before, size)
        check_runs(connection, warm + size, environment.starts())
        check_events(environment, warm + size)
        starts = [start for start in environment.starts().read() if start.due]
        check_starts(starts, size)
        published = Ends(environment, environment.installation.topics.runs("default", "standard"))
        acknowledged = (published.last_seconds() - due_at.timestamp()) * 1000
        floor = _floor_ms(connection, environment, size)
    late = lateness_ms(starts)
    figures = {
        "start_p50_ms": least(percentile(late, 50), "ms"),
        "start_p99_ms": least(percentile(late, 99), "ms", floor=floor, spent=spent),
        "start_max_ms": least(max(late), "ms"),
        "acknowledged_ms": least(acknowledged, "ms"),
    }
    return figures, starts


def _floor_ms(connection: Conn, environment: Environment, size: int) -> float:
    """Measure the time to produce, consume and claim the messages by plain statements."""
    connection.execute("TRUNCATE finished_runs, job_runs, run_inputs, attempts, active_runs, outbox, timers, skips")
    connection.commit()
    load_jobs(connection, environment.installation, size, due_at=database_now(connection), prefix="floor")
    fire_all(environment)
    return baselines.burst(connection, environment, size) * 1000
