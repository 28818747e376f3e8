"""`execute`: runs/s of two executors and of one, from Kafka messages to the completions' rows.

`chunks`: the same of one executor, by a handler of single runs and by one of chunks.
"""

from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial

import psutil

from tidewheel.jobs.strict_json import Json
from tools.bench.complete import check_runs, until, until_empty, wait_for
from tools.bench.environment import EXECUTOR, Environment, Server
from tools.bench.flow import EXECUTORS
from tools.bench.load import Load, checkpoint, load_jobs
from tools.bench.measurement import Figure, Incomplete, Options, Round, Spent

RUNS = 200_000
_WARM_SHARE = 10  # the first of so many parts is not timed, and the last of as many is
_BETWEEN_LOOKS = 2000  # so many may begin
_UNFAIR = {"TIDEWHEEL_FAIRNESS": "off"}  # the relay holds nothing back while no executor claims
# All is to come by Kafka: what is due already would be swept while the group forms.
_NO_SWEEP = {"TIDEWHEEL_SWEEP": "30s"}
_CHUNKS = {"TIDEWHEEL_SLOTS": "4000"}  # a chunk's runs are not claimed ahead of the slots: eight chunks of 500


def measure(server: Server, options: Options) -> Round:
    """Let two executors, and then one, loose on published runs."""
    names = {"runs_per_second": EXECUTORS, "one_executor_runs_per_second": 1}
    return Round({name: _measure(server, options, count) for name, count in names.items()})


def measure_chunks(server: Server, options: Options) -> Round:
    """Let one executor loose on runs that a call takes one by one, and on as many in chunks."""
    single = _measure(server, options, 1)
    chunked = _measure(server, options, 1, target="chunked", variables=_CHUNKS)
    ratio = Figure(chunked.value / single.value, "times")
    return Round({"single_runs_per_second": single, "chunked_runs_per_second": chunked, "chunked_ratio": ratio})


def _measure(
    server: Server,
    options: Options,
    executors: int,
    *,
    target: Json = "noop",
    variables: Mapping[str, str] | None = None,
) -> Figure:
    runs = options.jobs or RUNS
    with server.environment() as environment:
        begun = environment.starts().count
        per_second, spent = work_off(environment, options, runs, executors, begun, target=target, variables=variables)
    return Figure(per_second, "runs/s", spent)


def work_off(
    environment: Environment,
    options: Options,
    runs: int,
    executors: int,
    begun: Callable[[], int],
    *,
    target: Json = "noop",
    variables: Mapping[str, str] | None = None,
    beside: Mapping[str, list[psutil.Process]] | None = None,
) -> tuple[float, Spent]:
    """Publish runs, then start executors; return runs/s to the last end, and their cost.

    `begun` counts the runs that have begun. The processes in `beside` are metered, too.
    """
    options.report(f"publishing {runs:,} runs")
    load_jobs(environment.connection, environment.installation, Load(jobs=runs, target=target), environment.now())
    with environment.services(("scheduler",), ("relay",), variables=_UNFAIR):
        wait_for(partial(environment.count, "SELECT count(*) FROM job_runs"), runs, "runs fired")
        until_empty(environment, "outbox")
    checkpoint(environment.connection)
    options.report(f"executing, executors: {executors}")
    with (
        environment.services(*[EXECUTOR] * executors, variables={**_NO_SWEEP, **(variables or {})}) as processes,
        environment.meter({**processes, **(beside or {})}) as meter,
    ):
        # The second is a member seconds after the first; of few runs there may be none left for it.
        until(
            lambda: environment.starts().processes() == executors or begun() > runs // 2 - _BETWEEN_LOOKS,
            "every executor is at work",
        )
        wait_for(begun, runs // _WARM_SHARE, "runs begun")
        before, warm, begun_at = meter.mark(), begun(), environment.now()
        if runs - warm < runs // _WARM_SHARE:
            message = f"{runs:,} runs are too few: {warm:,} had begun before the clock was started"
            raise Incomplete(message)
        wait_for(begun, runs, "runs begun")
        until_empty(environment, "job_runs")
        seconds, spent = (environment.now() - begun_at) / timedelta(seconds=1), meter.since(before, runs - warm)
    check_runs(environment.connection, runs, begun())
    return (runs - warm) / seconds, spent
