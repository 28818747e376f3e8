"""`async`, `threads`, `process`, `retry`, `results`: runs/s of handlers that do work.

Each round has two loads of the same size on the same services: no-op handlers, then the handlers of the scenario. Both
are offered faster than they can be done.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple

from tidewheel.bench import bare
from tidewheel.bench.complete import Ends, check_events, check_outputs, check_runs, until_empty
from tidewheel.bench.environment import Environment, Server
from tidewheel.bench.handlers import AWAITED_SECONDS, BLOCKED_SECONDS
from tidewheel.bench.load import PAYLOAD, load_jobs
from tidewheel.bench.measurement import Figure, Options, Round, Spent, rate
from tidewheel.bench.scenarios.pipeline import (
    EXECUTORS,
    all_services,
    due_after_loading,
    mark_before_firing,
    statements_floor,
    warm_up,
)
from tidewheel.bench.usage import Meter
from tidewheel.jobs.strict_json import Json
from tidewheel.postgres.session import Conn
from tidewheel.settings.executor import ExecutorSettings

WARM_RUNS = 30_000
_PER_SECOND = 15_000  # offered: more than can be done
_ONE_KB = 1024
_RETRY: Mapping[str, Json] = {"backoff": "fixed", "initial": "100ms", "jitter": "0%"}


class Done(NamedTuple):
    """The result of a load: runs/s from the first due to the last event, and their cost."""

    per_second: float
    spent: Spent


@dataclass(frozen=True, slots=True)
class Services:
    """All services of a round at work, and the runs so far."""

    environment: Environment
    connection: Conn
    ends: Ends
    meter: Meter
    options: Options


@dataclass(frozen=True, slots=True)
class Kind:
    """Handlers of one kind.

    Args:
        handler: Their name.
        runs: Of a round.
        floor: Runs/s of the least work that could do it.
        retry: Their jobs' retry policy.
        retried: True if each run takes two attempts.
        arguments: Further ones of the executors.
        variables: Further settings of the services.
    """

    handler: str
    runs: int
    floor: Callable[[Services, int], float]
    retry: Mapping[str, Json] | None = None
    retried: bool = False
    arguments: Sequence[str] = ()
    variables: Mapping[str, str] = field(default_factory=dict[str, str])


def measure_kind(server: Server, options: Options, kind: Kind) -> Round:
    """Do no-op runs, and as many of a kind, on the same services."""
    runs = options.jobs or kind.runs
    warm = min(WARM_RUNS, runs)
    with server.environment() as environment, environment.connect() as connection:
        ends = Ends(environment, environment.installation.topics.completions)
        started = all_services(environment, executors=EXECUTORS, arguments=kind.arguments, variables=kind.variables)
        with started as processes, environment.meter(processes) as meter:
            services = Services(environment, connection, ends, meter, options)
            warm_up(environment, connection, ends, options, warm)
            noop = do_load(services, "noop", runs, done=warm)
            done = do_load(services, kind.handler, runs, done=warm + runs, retry=kind.retry)
        check_runs(
            connection,
            warm + 2 * runs,
            environment.starts(),
            retried=runs if kind.retried else 0,
            may_be_released=not kind.retried,  # the no-op runs before have let the executors claim far ahead
        )
        check_events(environment, warm + 2 * runs)
        if kind.handler == "writes":
            check_outputs(connection, runs, result_bytes=_ONE_KB, output_bytes=_ONE_KB)
        options.report("the floor")
        floor = kind.floor(services, runs)
    return Round(
        {
            "runs_per_second": rate(done.per_second, "runs/s", floor=floor, spent=done.spent),
            "noop_runs_per_second": rate(noop.per_second, "runs/s", spent=noop.spent),
            "of_noop_percent": Figure(100 * done.per_second / noop.per_second, "percent"),
        }
    )


def do_load(
    services: Services,
    handler: str,
    runs: int,
    *,
    done: int,
    overlap: str = "skip",
    retry: Mapping[str, Json] | None = None,
) -> Done:
    """Load jobs with one run each, and wait for all of them.

    The meter starts before the scheduler fires the first.
    """
    environment, connection, options = services.environment, services.connection, services.options
    options.report(f"loading {runs:,} jobs of {handler}")
    due_at = due_after_loading(environment, connection, runs)
    load_jobs(
        connection,
        environment.installation,
        runs,
        due_at=due_at,
        every=timedelta(hours=2),
        spread=timedelta(seconds=runs / (options.rate or _PER_SECOND)),
        overlap=overlap,
        handler=handler,
        prefix=handler,
        retry=retry,
    )
    before = mark_before_firing(environment, connection, services.meter, due_at)
    options.report(f"{runs:,} runs of {handler}")
    services.ends.watch(done + runs)
    spent = services.meter.since(before, runs)
    until_empty(connection, "job_runs", "outbox")
    return Done(runs / (services.ends.last_seconds() - due_at.timestamp()), spent)


def _await_floor(services: Services, runs: int) -> float:
    del services
    return bare.awaited(runs, at_once=EXECUTORS * int(_SLOTS["TIDEWHEEL_SLOTS"]), seconds=AWAITED_SECONDS)


def _thread_floor(services: Services, runs: int) -> float:
    del services
    return bare.on_threads(runs, threads=EXECUTORS * ExecutorSettings.load().threads, seconds=BLOCKED_SECONDS)


def _process_floor(services: Services, runs: int) -> float:
    del services
    each = ExecutorSettings.load().worker_processes or max(os.cpu_count() or 2, 2)
    return bare.in_processes(runs, processes=EXECUTORS * each, message=PAYLOAD.encode())


def _retry_floor(services: Services, runs: int) -> float:
    return statements_floor(services.connection, services.environment, runs, retried=True)


def _results_floor(services: Services, runs: int) -> float:
    return statements_floor(services.connection, services.environment, runs, output=b"o" * _ONE_KB)


_SLOTS = {"TIDEWHEEL_SLOTS": "500"}  # of an executor whose handlers mostly wait
KINDS = {
    "async": Kind("awaits", 100_000, _await_floor, variables=_SLOTS),
    "threads": Kind("blocks", 60_000, _thread_floor),
    "process": Kind("isolated", 40_000, _process_floor),
    "retry": Kind("fails_first", 60_000, _retry_floor, retry=_RETRY, retried=True),
    "results": Kind("writes", 60_000, _results_floor, arguments=("--log-level", "info")),
}
