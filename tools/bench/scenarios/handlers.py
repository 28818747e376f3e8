"""`handlers`: runs/s of handlers that await, block, run in a process, fail first, or return results.

Each kind has two loads of the same size on the same services: no-op handlers, then its own. Both are offered faster
than they can be done.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from tidewheel.jobs.strict_json import Json
from tools.bench.environment import Server
from tools.bench.flow import Flow, flowing
from tools.bench.load import Load
from tools.bench.measurement import Figure, Options, Round

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
        runs, rate = options.jobs or kind.runs, options.rate or _PER_SECOND
        with flowing(server, options, arguments=kind.arguments, variables=kind.variables) as flow:
            flow.warm_up(min(WARM_RUNS, runs))
            noop = _run(flow, "noop", runs, rate)
            done = _run(flow, kind.handler, runs, rate, kind.retry)
            # The no-op runs before have let the executors claim far ahead.
            flow.check(retried=runs if kind.retry else 0, may_be_released=not kind.retry)
        figures[f"{name}_runs_per_second"] = done
        figures[f"{name}_noop_runs_per_second"] = noop
        figures[f"{name}_of_noop_percent"] = Figure(100 * done.value / noop.value, "percent")
    return Round(figures)


def _run(flow: Flow, handler: str, runs: int, rate: float, retry: Mapping[str, Json] | None = None) -> Figure:
    """Load jobs with one run each, and return runs/s from the first due to the last event."""
    spread = timedelta(seconds=runs / rate)
    due_at = flow.load(Load(jobs=runs, prefix=handler, target=handler, spread=spread, retry=retry))
    _, spent = flow.measure(due_at, runs, flow.ends.watch)
    return Figure(runs / (flow.ends.last_seconds() - due_at.timestamp()), "runs/s", spent)
