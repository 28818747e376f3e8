"""`latency`: due to handler start, and request to handler start, under low load."""

import json
import threading
from datetime import timedelta

from tidewheel.bench import baselines
from tidewheel.bench.complete import Ends, check_runs, check_starts, until_empty, wait_for
from tidewheel.bench.environment import Environment, Server
from tidewheel.bench.load import load_steady
from tidewheel.bench.measurement import Options, Round, least, percentile
from tidewheel.bench.scenarios.pipeline import (
    all_services,
    due_after_loading,
    lateness_ms,
    mark_before_firing,
    p99_by_second,
    warm_up,
)
from tidewheel.bench.starts import Start
from tidewheel.clock import monotonic_seconds
from tidewheel.kafka.clients import producer
from tidewheel.postgres.session import Conn

RATE = 200.0
SECONDS = 30.0
_PERIOD = timedelta(seconds=5)
_WARM_RUNS = 3000
# Of the same load before the measurement: a new broker's compiler takes 1.8 ms of CPU a run meanwhile.
_WARM_SECONDS = 40.0
_SAMPLES = 500  # of the floor
_KEY = "requested"
_FLUSH_SECONDS = 30.0


def measure(server: Server, options: Options) -> Round:
    """Timed runs at a steady rate; then triggered ones; then the bare chain of commits and messages."""
    per_second, seconds = options.rate or RATE, options.seconds or SECONDS
    jobs, rounds = int(per_second * _PERIOD.total_seconds()), max(1, round(seconds / _PERIOD.total_seconds()))
    runs = jobs * rounds
    warm_rounds = max(1, round(min(_WARM_SECONDS, 2 * seconds) / _PERIOD.total_seconds()))
    first = min(_WARM_RUNS, runs)
    warm = first + jobs * warm_rounds
    with server.environment() as environment, environment.connect() as connection:
        ends = Ends(environment, environment.installation.topics.completions)
        with all_services(environment) as processes, environment.meter(processes) as meter:
            warm_up(environment, connection, ends, options, first)
            warm_due_at = due_after_loading(environment, connection, jobs)
            load_steady(
                connection, environment.installation, jobs, due_at=warm_due_at, period=_PERIOD, rounds=warm_rounds,
                prefix="warm-steady",
            )  # fmt: skip
            wait_for(environment.starts().count, warm, "runs begun")
            until_empty(connection, "job_runs", "outbox")
            options.report(f"{per_second:.0f} timed runs/s for {_PERIOD.total_seconds() * rounds:.0f} s")
            due_at = due_after_loading(environment, connection, jobs)
            load_steady(connection, environment.installation, jobs, due_at=due_at, period=_PERIOD, rounds=rounds)
            before = mark_before_firing(environment, connection, meter, due_at)
            wait_for(environment.starts().count, warm + runs, "runs begun")
            spent = meter.since(before, runs)
            timed = [start for start in environment.starts().read() if start.due >= due_at.timestamp()]
            options.report(f"{per_second:.0f} requests/s for {seconds:.0f} s")
            triggered = _trigger(environment, connection, int(per_second * seconds), per_second, warm + runs)
            until_empty(connection, "job_runs", "outbox")
        check_runs(connection, warm + runs + len(triggered), environment.starts())
        check_starts(timed, runs)
        options.report("the floor")
        topic = environment.installation.topics.runs("default", "standard")
        one = baselines.hops(environment, topic, 1, _SAMPLES)
        two = baselines.hops(environment, topic, 2, _SAMPLES)
    due, requested = lateness_ms(timed), lateness_ms(triggered)
    figures = {
        "due_to_start_p50_ms": least(percentile(due, 50), "ms", floor=percentile(one, 50), spent=spent),
        "due_to_start_p99_ms": least(percentile(due, 99), "ms", floor=percentile(one, 99)),
        "request_to_start_p50_ms": least(percentile(requested, 50), "ms", floor=percentile(two, 50)),
        "request_to_start_p99_ms": least(percentile(requested, 99), "ms", floor=percentile(two, 99)),
    }
    distributions = {"due to start": due, "request to start": requested, "floor: one hop": one, "floor: two hops": two}
    return Round(
        figures, distributions=distributions, series={"due to start, p99 of a second, ms": p99_by_second(timed)}
    )


def _trigger(environment: Environment, connection: Conn, requests: int, per_second: float, begun: int) -> list[Start]:
    """Request runs of one job at a steady pace; each payload is the instant of its request."""
    sender, topic = (
        producer(environment.kafka, role="bench-requests", linger_ms=0),
        environment.installation.topics.requests,
    )
    job = {"key": _KEY, "schedule": "manual", "target": "requested"}
    sender.produce(topic, key=_KEY.encode(), value=json.dumps({"type": "job.submit", "job": job}).encode())
    sender.flush(_FLUSH_SECONDS)
    wait_for(lambda: _accepted(connection), 1, "jobs submitted")
    first = monotonic_seconds()
    for number in range(requests):
        threading.Event().wait(max(0.0, first + number / per_second - monotonic_seconds()))
        trigger = {"type": "job.trigger", "key": _KEY, "payload": baselines.now_seconds()}
        sender.produce(topic, key=_KEY.encode(), value=json.dumps(trigger).encode())
        sender.poll(0)
    sender.flush(_FLUSH_SECONDS)
    wait_for(environment.starts().count, begun + requests, "runs begun")
    timed = [start for start in environment.starts().read() if start.due]
    return timed[-requests:]


def _accepted(connection: Conn) -> int:
    row = connection.execute("SELECT count(*) FROM jobs WHERE key = %s", [_KEY]).fetchone()
    connection.rollback()
    assert row is not None
    return int(str(row[0]))
