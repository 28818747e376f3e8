"""`hot-second`: recurring jobs that are all due at the same instant; how late each was begun."""

import threading
from datetime import timedelta

from tools.bench.complete import Ends, check_events, check_runs, check_starts, lateness_ms, until_empty, wait_for
from tools.bench.environment import Server
from tools.bench.load import due_after_loading, load_jobs
from tools.bench.measurement import Figure, Options, Round, percentile
from tools.bench.scenarios.pipeline import all_services, mark_before_firing, warm_up

SIZES = (10_000, 100_000)
_IDLE_SECONDS = 15.0  # on an empty table: thirty looks of the scheduler, more than twice seventy of the relay
_WARM_RUNS = 3000


def measure(server: Server, options: Options) -> Round:
    """Each size with services that have just worked, and with services that have idled on empty tables."""
    figures: dict[str, Figure] = {}
    for size in (options.jobs,) if options.jobs else SIZES:
        for idled in (False, True):
            name = f"{size // 1000}k" if size % 1000 == 0 else str(size)
            name += "_after_idling" if idled else ""
            options.report(f"{size:,} jobs{' after idling' if idled else ''}")
            found = _hot_second(server, size, options, idled=idled)
            figures |= {f"{name}_{figure}": value for figure, value in found.items()}
    return Round(figures)


def _hot_second(server: Server, size: int, options: Options, *, idled: bool) -> dict[str, Figure]:
    warm = 0 if idled else min(_WARM_RUNS, size)
    with server.environment() as environment, environment.connect() as connection:
        ends = Ends(environment, environment.installation.topics.completions)
        with all_services(environment) as processes, environment.meter(processes) as meter:
            if idled:
                threading.Event().wait(_IDLE_SECONDS)
            else:
                warm_up(environment, connection, ends, options, warm)
            due_at = due_after_loading(environment, connection, size)
            load_jobs(
                connection, environment.installation, size, due_at=due_at, every=timedelta(hours=2), handler="noted",
                prefix="hot", analyze=not idled,
            )  # fmt: skip
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
    late = lateness_ms(starts)
    return {
        "start_p50_ms": Figure(percentile(late, 50), "ms"),
        "start_p99_ms": Figure(percentile(late, 99), "ms", spent),
        "start_max_ms": Figure(max(late), "ms"),
        "acknowledged_ms": Figure(acknowledged, "ms"),
    }
