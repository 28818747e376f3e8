"""`pipeline`: no-op runs/s from due to the completion event on Kafka, with every service running."""

import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial

import psutil

from tidewheel.postgres.session import Conn
from tools.bench.complete import (
    Ends,
    check_events,
    check_runs,
    check_starts,
    lateness_ms,
    p99_by_second,
    until_empty,
    wait_for,
)
from tools.bench.environment import EXECUTOR, Environment, Server
from tools.bench.load import count_of, database_now, due_after_loading, load_jobs, load_steady, lookahead_of
from tools.bench.measurement import Figure, Incomplete, Options, Points, Round, percentile
from tools.bench.usage import Mark, Meter

SECONDS = 60.0
STEADY_SECONDS = 300.0
STEADY_RATE = 10_000.0
WARM_RUNS = 50_000
EXECUTORS = 2  # Python's lock keeps one of them from using what the others leave

_OVERLOAD = 1.5  # of what the warm-up has shown: the load must exceed what can be done
_PERIOD = timedelta(seconds=20)  # of the steady load's jobs: later than this, a run would be skipped
_BEFORE_FIRING = timedelta(seconds=1)


@contextmanager
def all_services(
    environment: Environment,
    *,
    executors: int = EXECUTORS,
    arguments: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
) -> Generator[dict[str, list[psutil.Process]]]:
    """Start every service, executors with further arguments, and yield the processes by service."""
    commands = [("intake",), ("relay",), *[(*EXECUTOR, *arguments)] * executors, ("scheduler",)]
    with environment.services(*commands, variables=variables) as processes:
        found: dict[str, list[psutil.Process]] = {}
        for command, process in zip(commands, processes, strict=True):
            found.setdefault(command[0], []).append(process)
        yield found


def measure(server: Server, options: Options) -> Round:
    """Load more than can be done for a while; count runs from the first due to the last event."""
    seconds = options.seconds or SECONDS
    warm = min(WARM_RUNS, options.jobs or WARM_RUNS)
    with server.environment() as environment, environment.connect() as connection:
        ends = Ends(environment, environment.installation.topics.completions)
        with all_services(environment) as processes, environment.meter(processes) as meter:
            warm_rate = warm_up(environment, connection, ends, options, warm)
            runs = options.jobs or int(warm_rate * _OVERLOAD * seconds)
            options.report(f"loading {runs:,} jobs")
            due_at = due_after_loading(environment, connection, runs)
            load_jobs(
                connection, environment.installation, runs, due_at=due_at, every=timedelta(hours=2),
                spread=timedelta(seconds=seconds), prefix="flow",
            )  # fmt: skip
            options.report(f"{runs:,} runs, due within {seconds:.0f} s")
            before = mark_before_firing(environment, connection, meter, due_at)
            wait_for(environment.starts().count, warm + 1, "runs begun")
            seen = ends.watch(warm + runs)
            spent = meter.since(before, runs)
            until_empty(connection, "job_runs", "outbox")
        check_runs(connection, warm + runs, environment.starts())
        check_events(environment, warm + runs)
    done = runs / (seen[-1][0] - due_at.timestamp())
    return Round({"runs_per_second": Figure(done, "runs/s", spent)}, series={"events/s": _rates(seen)})


def steady(server: Server, options: Options) -> Round:
    """The same number of runs each second for minutes, and how late each was begun."""
    per_second, seconds = options.rate or STEADY_RATE, options.seconds or STEADY_SECONDS
    jobs = int(per_second * _PERIOD.total_seconds())
    rounds = max(1, round(seconds / _PERIOD.total_seconds()))
    runs = jobs * rounds
    with server.environment() as environment, environment.connect() as connection:
        ends = Ends(environment, environment.installation.topics.completions)
        with all_services(environment) as processes, environment.meter(processes) as meter:
            warm_up(environment, connection, ends, options)
            options.report(f"loading {jobs:,} jobs")
            due_at = due_after_loading(environment, connection, jobs)
            load_steady(connection, environment.installation, jobs, due_at=due_at, period=_PERIOD, rounds=rounds)
            options.report(f"{per_second:,.0f} runs/s for {_PERIOD.total_seconds() * rounds:.0f} s")
            before = mark_before_firing(environment, connection, meter, due_at)
            wait_for(environment.starts().count, WARM_RUNS + 1, "runs begun")
            seen = ends.watch(WARM_RUNS + runs)
            spent = meter.since(before, runs)
            until_empty(connection, "job_runs", "outbox")
        check_runs(connection, WARM_RUNS + runs, environment.starts())
        starts = [start for start in environment.starts().read() if start.due]
        check_starts(starts, runs)
    late = lateness_ms(starts)
    figures = {
        "steady_start_p50_ms": Figure(percentile(late, 50), "ms"),
        "steady_start_p99_ms": Figure(percentile(late, 99), "ms", spent),
        "steady_start_max_ms": Figure(max(late), "ms"),
        "steady_runs_per_second": Figure(runs / (seen[-1][0] - due_at.timestamp()), "runs/s"),
    }
    return Round(figures, {"events/s": _rates(seen), "due to start, p99 of a second, ms": p99_by_second(starts)})


def warm_up(environment: Environment, connection: Conn, ends: Ends, options: Options, runs: int = WARM_RUNS) -> float:
    """Let all services do some work; return runs/s of it."""
    options.report("warming up")
    for role in ("scheduler", "relay"):
        members = "SELECT count(*) FROM members WHERE role = %s"
        wait_for(partial(count_of, connection, members, role), 1, f"{role}s entered")
    due_at = database_now(connection)
    load_jobs(connection, environment.installation, runs, due_at=due_at, every=timedelta(hours=2), prefix="warm")
    ends.watch(runs)
    until_empty(connection, "job_runs", "outbox")
    times = environment.starts().times()
    return runs * 0.8 / (times[runs * 9 // 10] - times[runs // 10])


def mark_before_firing(environment: Environment, connection: Conn, meter: Meter, due_at: datetime) -> Mark:
    """Mark just before the scheduler may fire the first job, which is due at this instant.

    So all of firing is in the cost, and no more than a second of idling.

    Raises:
        Incomplete: A job was fired before the mark: loading took too long.
    """
    wait = due_at - lookahead_of(environment) - _BEFORE_FIRING - database_now(connection)
    connection.rollback()
    threading.Event().wait(max(0.0, wait / timedelta(seconds=1)))
    mark = meter.mark()
    if count_of(connection, "SELECT count(*) FROM outbox WHERE topic LIKE %s", f"{environment.prefix}.runs.%"):
        message = "the scheduler fired before the jobs were loaded: use fewer jobs"
        raise Incomplete(message)
    return mark


def _rates(seen: Sequence[tuple[float, int]]) -> Points:
    """Return events a second, from how many there were when; by whole seconds or more."""
    points: list[tuple[float, float]] = []
    at, count = seen[0]
    for now, there in seen[1:]:
        if now - at >= 1.0:
            points.append((now - seen[0][0], (there - count) / (now - at)))
            at, count = now, there
    return points
