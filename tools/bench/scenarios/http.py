"""`http`: webhook calls/s of the whole pipeline, and of executors with a backlog.

The receiver is a process on this machine, which counts requests and runs: each run must have been sent once.
"""

from datetime import timedelta

from tidewheel.jobs.strict_json import Json
from tools.bench.complete import check_events, check_runs
from tools.bench.environment import Server
from tools.bench.flow import EXECUTORS, flowing
from tools.bench.load import Load
from tools.bench.measurement import Figure, Incomplete, Options, Round
from tools.bench.receiver import Receiver, receiving
from tools.bench.scenarios.execute import work_off

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
    with flowing(server, options, variables=_VARIABLES, beside={"receiver": [receiver.process]}) as flow:
        flow.warm_up(min(_WARM_RUNS, jobs), _target(receiver))
        due_at = flow.load(Load(jobs=jobs, prefix="flow", spread=_SPREAD, target=_target(receiver)))
        seen, spent = flow.measure(due_at, jobs, flow.ends.watch)
        check_runs(flow.environment.connection, flow.done, receiver.count())
        check_events(flow.environment, flow.done)
        _check_once(receiver, flow.done)
    return Figure(jobs / (seen[-1][0] - due_at.timestamp()), "calls/s", spent)


def _measure_backlog(server: Server, receiver: Receiver, jobs: int, options: Options) -> Figure:
    """Publish all runs, then start the executors."""
    with server.environment() as environment:
        per_second, spent = work_off(
            environment, options, jobs, EXECUTORS, receiver.count,
            target=_target(receiver), variables=_VARIABLES, beside={"receiver": [receiver.process]},
        )  # fmt: skip
        _check_once(receiver, jobs)
    return Figure(per_second, "calls/s", spent)


def _target(receiver: Receiver) -> Json:
    return {"type": "http", "url": receiver.url}


def _check_once(receiver: Receiver, expected: int) -> None:
    """Verify that each run was sent once."""
    requests, runs = receiver.counts()
    if (requests, runs) != (expected, expected):
        message = f"{expected:,} runs were expected; {requests:,} requests, of {runs:,} runs"
        raise Incomplete(message)
