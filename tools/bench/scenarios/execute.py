"""`execute`: runs/s of two executors and of one, from Kafka messages to the completions' rows."""

from datetime import datetime, timedelta

from tidewheel.postgres.session import Conn
from tools.bench.complete import check_runs, until, until_empty, wait_for
from tools.bench.environment import EXECUTOR, Server
from tools.bench.load import checkpoint, database_now, load_jobs
from tools.bench.measurement import Figure, Incomplete, Options, Round
from tools.bench.scenarios.fire import fire_all
from tools.bench.scenarios.pipeline import EXECUTORS
from tools.bench.scenarios.relay import relay_all

RUNS = 200_000
_WARM_SHARE = 10  # the first of so many parts is not timed, and the last of as many is
_BETWEEN_LOOKS = 2000  # so many may begin
# All is to come by Kafka: what is due already would be swept while the group forms.
NO_SWEEP = {"TIDEWHEEL_SWEEP": "30s"}


def measure(server: Server, options: Options) -> Round:
    """Let two executors, and then one, loose on published runs."""
    return Round(
        {
            "runs_per_second": _measure(server, options, executors=EXECUTORS),
            "one_executor_runs_per_second": _measure(server, options, executors=1),
        }
    )


def _measure(server: Server, options: Options, *, executors: int) -> Figure:
    runs = options.jobs or RUNS
    with server.environment() as environment, environment.connect() as connection:
        options.report(f"publishing {runs:,} runs")
        load_jobs(connection, environment.installation, runs, due_at=database_now(connection))
        fire_all(environment)
        relay_all(environment)
        checkpoint(connection)
        options.report(f"executing, executors: {executors}")
        starts = environment.starts()
        with (
            environment.services(*[EXECUTOR] * executors, variables=NO_SWEEP) as processes,
            environment.meter({"executor": processes}) as meter,
        ):
            # The second is a member seconds after the first; of few runs there may be none left for it.
            until(
                lambda: starts.processes() == executors or starts.count() > runs // 2 - _BETWEEN_LOOKS,
                "every executor is at work",
            )
            wait_for(starts.count, runs // _WARM_SHARE, "runs begun")
            before, warm, begun_at = meter.mark(), starts.count(), _now(connection)
            if runs - warm < runs // _WARM_SHARE:
                message = f"{runs:,} runs are too few: {warm:,} had begun before the clock was started"
                raise Incomplete(message)
            wait_for(starts.count, runs, "runs begun")
            until_empty(connection, "job_runs")
            seconds, spent = (_now(connection) - begun_at) / timedelta(seconds=1), meter.since(before, runs - warm)
        check_runs(connection, runs, starts)
    return Figure((runs - warm) / seconds, "runs/s", spent)


def _now(connection: Conn) -> datetime:
    now = database_now(connection)
    connection.rollback()
    return now
