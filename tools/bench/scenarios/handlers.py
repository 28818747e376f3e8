"""`handlers`: runs/s of handlers that await, block, run in a process, fail first, or return results.

Each kind has two loads of the same size on the same services: no-op handlers, then its own. Both are offered faster
than they can be done.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from tidewheel.jobs.strict_json import Json
from tidewheel.postgres.session import Conn
from tools.bench.complete import Ends, check_events, check_runs, until_empty
from tools.bench.environment import Environment, Server
from tools.bench.load import due_after_loading, load_jobs
from tools.bench.measurement import Figure, Options, Round
from tools.bench.scenarios.pipeline import all_services, mark_before_firing, warm_up
from tools.bench.usage import Meter

WARM_RUNS = 30_000
_PER_SECOND = 15_000  # offered: more than can be done
_RETRY: Mapping[str, Json] = {"backoff": "fixed", "initial": "100ms", "jitter": "0%"}


@dataclass(frozen=True, slots=True)
class _Kind:
    """Handlers of one kind: `runs` of a round, `retry` of jobs whose runs each take two attempts."""

    handler: str
    runs: int
    retry: Mapping[str, Json] | None = None
    arguments: Sequence[str] = ()
    variables: Mapping[str, str] = field(default_factory=dict[str, str])


KINDS = {
    "async": _Kind("awaits", 100_000, variables={"TIDEWHEEL_SLOTS": "500"}),
    "threads": _Kind("blocks", 60_000),
    "process": _Kind("isolated", 40_000),
    "retry": _Kind("fails_first", 60_000, retry=_RETRY),
    "results": _Kind("writes", 60_000, arguments=("--log-level", "info")),
}


def measure(server: Server, options: Options) -> Round:
    """Do no-op runs, and as many of each kind, on the same services."""
    figures: dict[str, Figure] = {}
    for name, kind in KINDS.items():
        figures |= {f"{name}_{figure}": value for figure, value in _measure_kind(server, options, kind).items()}
    return Round(figures)


def _measure_kind(server: Server, options: Options, kind: _Kind) -> Mapping[str, Figure]:
    runs = options.jobs or kind.runs
    warm = min(WARM_RUNS, runs)
    with server.environment() as environment, environment.connect() as connection:
        ends = Ends(environment, environment.installation.topics.completions)
        started = all_services(environment, arguments=kind.arguments, variables=kind.variables)
        with started as processes, environment.meter(processes) as meter:
            warm_up(environment, connection, ends, options, warm)
            load = _Load(environment, connection, ends, meter, options)
            noop = load.run("noop", runs, done=warm)
            done = load.run(kind.handler, runs, done=warm + runs, retry=kind.retry)
        check_runs(
            connection, warm + 2 * runs, environment.starts(), retried=runs if kind.retry else 0,
            may_be_released=not kind.retry,  # the no-op runs before have let the executors claim far ahead
        )  # fmt: skip
        check_events(environment, warm + 2 * runs)
    percent = Figure(100 * done.value / noop.value, "percent")
    return {"runs_per_second": done, "noop_runs_per_second": noop, "of_noop_percent": percent}


@dataclass(frozen=True, slots=True)
class _Load:
    """Runs of one handler on the services of a round."""

    environment: Environment
    connection: Conn
    ends: Ends
    meter: Meter
    options: Options

    def run(self, handler: str, runs: int, *, done: int, retry: Mapping[str, Json] | None = None) -> Figure:
        """Load jobs with one run each, and return runs/s from the first due to the last event."""
        environment, connection = self.environment, self.connection
        self.options.report(f"loading {runs:,} jobs of {handler}")
        due_at = due_after_loading(environment, connection, runs)
        load_jobs(
            connection, environment.installation, runs, due_at=due_at, every=timedelta(hours=2),
            spread=timedelta(seconds=runs / (self.options.rate or _PER_SECOND)), handler=handler, prefix=handler,
            retry=retry,
        )  # fmt: skip
        before = mark_before_firing(environment, connection, self.meter, due_at)
        self.options.report(f"{runs:,} runs of {handler}")
        self.ends.watch(done + runs)
        spent = self.meter.since(before, runs)
        until_empty(connection, "job_runs", "outbox")
        return Figure(runs / (self.ends.last_seconds() - due_at.timestamp()), "runs/s", spent)
