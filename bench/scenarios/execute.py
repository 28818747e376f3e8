"""`execute`: runs/s of two executors and of one, from Kafka messages to the completions' rows."""

from datetime import datetime, timedelta

from tidewheel.bench import baselines
from tidewheel.bench.complete import check_runs, until, until_empty, wait_for
from tidewheel.bench.environment import EXECUTOR, Environment, Server
from tidewheel.bench.load import checkpoint, database_now, load_jobs
from tidewheel.bench.measurement import Figure, Incomplete, Options, Round, rate
from tidewheel.bench.scenarios.fire import fire_all
from tidewheel.bench.scenarios.pipeline import EXECUTORS
from tidewheel.bench.scenarios.relay import relay_all
from tidewheel.jobs.concurrency import MOST_AT_ONCE
from tidewheel.postgres.session import Conn

RUNS = 200_000
_WARM_SHARE = 10  # the first of so many parts is not timed, and the last of as many is
_BETWEEN_LOOKS = 2000  # so many may begin
# All is to come by Kafka: what is due already would be swept while the group forms.
_NO_SWEEP = {"TIDEWHEEL_SWEEP": "30s"}
_WRITTEN = ("job_runs",)
_KEYS = {"one_key": 1, "thousand_keys": 1000}
_SET_KEYS = """
UPDATE job_versions
   SET concurrency_key = 'key-' || mod(abs(hashtext(job_id::text)::bigint), %(keys)s), at_once = %(places)s
"""


def measure(server: Server, options: Options) -> Round:
    """Let two executors, and then one, loose on published runs; then the same by plain statements."""
    runs = options.jobs or RUNS
    figures = {
        "runs_per_second": measure_executors(server, runs, options, executors=EXECUTORS),
        "one_executor_runs_per_second": measure_executors(server, runs, options, executors=1),
    }
    if options.keys:
        for name, keys in _KEYS.items():
            figures[f"{name}_runs_per_second"] = measure_executors(
                server, runs, options, executors=EXECUTORS, keys=keys
            )
    return Round(figures)


def measure_executors(server: Server, runs: int, options: Options, *, executors: int, keys: int = 0) -> Figure:
    """The same with so many executors, and with so many concurrency keys that have room for all runs."""
    with server.environment() as environment, environment.connect() as connection:
        options.report(f"publishing {runs:,} runs")
        load_jobs(connection, environment.installation, runs, due_at=database_now(connection))
        if keys:
            connection.execute(_SET_KEYS, {"keys": keys, "places": MOST_AT_ONCE})
            connection.commit()
        fire_all(environment)
        relay_all(environment)
        taken = baselines.take_rows(connection, _WRITTEN, runs)
        checkpoint(connection)
        options.report(f"executing, executors: {executors}")
        starts = environment.starts()
        with (
            environment.services(*[EXECUTOR] * executors, variables=_NO_SWEEP) as processes,
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
        options.report("the floor")
        floor = _floor(connection, environment, taken)
    return rate((runs - warm) / seconds, "runs/s", floor=floor, spent=spent)


def _floor(connection: Conn, environment: Environment, taken: list[baselines.Rows]) -> float:
    """The runs a second that plain statements claim and end: all runs, from the same messages."""
    connection.execute("TRUNCATE finished_runs, job_runs, attempts, active_runs, outbox")
    connection.commit()
    baselines.copy_rows(connection, taken)
    connection.execute("ANALYZE job_runs")
    connection.commit()
    topic = environment.installation.topics.runs("default", "standard")
    runs = len(taken[0].rows)
    return runs / baselines.execute(connection, environment, runs, topic)


def _now(connection: Conn) -> datetime:
    now = database_now(connection)
    connection.rollback()
    return now
