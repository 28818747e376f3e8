"""`pipeline`: no-op runs/s from due to the completion event on Kafka, with every service running."""

from datetime import timedelta

from tools.bench.complete import lateness, p99_by_second, starts_since
from tools.bench.environment import Server
from tools.bench.flow import flowing, rates
from tools.bench.load import Load
from tools.bench.load import steady as steady_load
from tools.bench.measurement import Figure, Options, Round

SECONDS = 60.0
STEADY_SECONDS = 300.0
STEADY_RATE = 10_000.0
WARM_RUNS = 50_000

_OVERLOAD = 1.5  # of what the warm-up has shown: the load must exceed what can be done
_PERIOD = timedelta(seconds=20)  # of the steady load's jobs: later than this, a run would be skipped


def measure(server: Server, options: Options) -> Round:
    """Load more than can be done for a while; count runs from the first due to the last event."""
    seconds = options.seconds or SECONDS
    with flowing(server, options) as flow:
        warm_rate = flow.warm_up(min(WARM_RUNS, options.jobs or WARM_RUNS))
        runs = options.jobs or int(warm_rate * _OVERLOAD * seconds)
        due_at = flow.load(Load(jobs=runs, prefix="flow", spread=timedelta(seconds=seconds)))
        seen, spent = flow.measure(due_at, runs, flow.ends.watch)
        flow.check()
    done = runs / (seen[-1][0] - due_at.timestamp())
    return Round({"runs_per_second": Figure(done, "runs/s", spent)}, series={"events/s": rates(seen)})


def steady(server: Server, options: Options) -> Round:
    """The same number of runs each second for minutes, and how late each was begun."""
    per_second, seconds = options.rate or STEADY_RATE, options.seconds or STEADY_SECONDS
    load = steady_load(
        int(per_second * _PERIOD.total_seconds()), _PERIOD, max(1, round(seconds / _PERIOD.total_seconds()))
    )
    with flowing(server, options) as flow:
        flow.warm_up(min(WARM_RUNS, options.jobs or WARM_RUNS))
        due_at = flow.load(load)
        seen, spent = flow.measure(due_at, load.runs, flow.ends.watch)
        flow.check(events=False)
        starts = starts_since(flow.environment, due_at, load.runs)
    done = Figure(load.runs / (seen[-1][0] - due_at.timestamp()), "runs/s")
    figures = {**lateness(starts, spent, "steady_start"), "steady_runs_per_second": done}
    return Round(figures, {"events/s": rates(seen), **p99_by_second(starts)})
