"""`http`: webhook calls/s of the whole pipeline, and of executors with a backlog.

The receiver is a process on this machine, which counts requests and runs: each run must have been sent once.
"""

from datetime import datetime, timedelta

from tidewheel.clock import monotonic_seconds
from tidewheel.postgres.session import Conn
from tools.bench.complete import Ends, check_events, check_runs, until_empty, wait_for
from tools.bench.environment import EXECUTOR, Environment, Server
from tools.bench.load import database_now, due_after_loading, load_jobs
from tools.bench.measurement import Figure, Incomplete, Options, Round
from tools.bench.receiver import Receiver, receiving
from tools.bench.scenarios.execute import NO_SWEEP
from tools.bench.scenarios.fire import fire_all
from tools.bench.scenarios.pipeline import EXECUTORS, all_services, mark_before_firing
from tools.bench.scenarios.relay import relay_all

CALLS = 50_000
_WARM_RUNS = 5_000
_SPREAD = timedelta(seconds=5)  # of the pipeline's due instants: far more than can be called in that time
_VARIABLES = {"TIDEWHEEL_HTTP_ALLOW_PRIVATE": "true"}


def measure(server: Server, options: Options) -> Round:
    """Call by all services, then by executors with a backlog."""
    jobs = options.jobs or CALLS
    with receiving() as receiver:
        figures = {"calls_per_second": _measure_pipeline(server, receiver, jobs, options)}
    with receiving() as receiver:
        figures["backlog_calls_per_second"] = _measure_backlog(server, receiver, jobs, options)
    return Round(figures)


def _measure_pipeline(server: Server, receiver: Receiver, jobs: int, options: Options) -> Figure:
    """Load more than can be called; count from the first due instant to the last event."""
    warm = min(_WARM_RUNS, jobs)
    with server.environment() as environment, environment.connect() as connection:
        ends = Ends(environment, environment.installation.topics.completions)
        with (
            all_services(environment, variables=_VARIABLES) as processes,
            environment.meter({**processes, "receiver": [receiver.process]}) as meter,
        ):
            options.report("warming up")
            _load(environment, connection, receiver, warm, due_at=database_now(connection), prefix="warm")
            ends.watch(warm)
            due_at = due_after_loading(environment, connection, jobs)
            _load(environment, connection, receiver, jobs, due_at=due_at, spread=_SPREAD, prefix="flow")
            options.report(f"{jobs:,} calls by all services")
            before = mark_before_firing(environment, connection, meter, due_at)
            seen = ends.watch(warm + jobs)
            spent = meter.since(before, jobs)
            until_empty(connection, "job_runs", "outbox")
        check_runs(connection, warm + jobs, receiver)
        check_events(environment, warm + jobs)
        _check_once(receiver, warm + jobs)
    return Figure(jobs / (seen[-1][0] - due_at.timestamp()), "calls/s", spent)


def _measure_backlog(server: Server, receiver: Receiver, jobs: int, options: Options) -> Figure:
    """Publish all runs, then start the executors; count from the first request to the last end."""
    with server.environment() as environment, environment.connect() as connection:
        options.report(f"publishing {jobs:,} runs")
        _load(environment, connection, receiver, jobs, due_at=database_now(connection), prefix="late")
        fire_all(environment)
        relay_all(environment)
        options.report(f"working off {jobs:,} calls")
        with (
            environment.services(*[EXECUTOR] * EXECUTORS, variables=NO_SWEEP | _VARIABLES) as executors,
            environment.meter({"executor": executors, "receiver": [receiver.process]}) as meter,
        ):
            wait_for(receiver.count, 1, "requests")
            before, first, began = meter.mark(), receiver.count(), monotonic_seconds()
            wait_for(receiver.count, jobs, "requests")
            until_empty(connection, "job_runs")
            seconds, spent = monotonic_seconds() - began, meter.since(before, jobs - first)
        check_runs(connection, jobs, receiver)
        _check_once(receiver, jobs)
    return Figure((jobs - first) / seconds, "calls/s", spent)


def _load(
    environment: Environment,
    connection: Conn,
    receiver: Receiver,
    jobs: int,
    *,
    due_at: datetime,
    prefix: str,
    spread: timedelta = timedelta(0),
) -> None:
    load_jobs(
        connection, environment.installation, jobs, due_at=due_at, every=timedelta(hours=2), spread=spread,
        target={"type": "http", "url": receiver.url}, prefix=prefix,
    )  # fmt: skip


def _check_once(receiver: Receiver, expected: int) -> None:
    """Verify that each run was sent once."""
    requests, runs = receiver.counts()
    if (requests, runs) != (expected, expected):
        message = f"{expected:,} runs were expected; {requests:,} requests, of {runs:,} runs"
        raise Incomplete(message)
