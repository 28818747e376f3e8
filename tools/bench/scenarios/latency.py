"""`latency`: due to handler start, and request to handler start, under low load."""

import json
import threading
from datetime import timedelta

from tidewheel.clock import monotonic_seconds
from tidewheel.postgres.session import Conn
from tools.bench.complete import (
    Ends,
    check_runs,
    check_starts,
    lateness_ms,
    p99_by_second,
    until_empty,
    wait_for,
)
from tools.bench.environment import Environment, Server
from tools.bench.load import count_of, due_after_loading, load_steady
from tools.bench.measurement import Figure, Options, Round, percentile
from tools.bench.messages import now_seconds, produce, sender
from tools.bench.scenarios.pipeline import all_services, mark_before_firing, warm_up
from tools.bench.starts import Start

RATE = 200.0
SECONDS = 30.0
_PERIOD = timedelta(seconds=5)
_WARM_RUNS = 3000
# Of the same load before the measurement: a new broker's compiler takes 1.8 ms of CPU a run meanwhile.
_WARM_SECONDS = 40.0
_KEY = "requested"


def measure(server: Server, options: Options) -> Round:
    """Timed runs at a steady rate; then triggered ones."""
    per_second, seconds = options.rate or RATE, options.seconds or SECONDS
    jobs, rounds = int(per_second * _PERIOD.total_seconds()), max(1, round(seconds / _PERIOD.total_seconds()))
    runs = jobs * rounds
    warm_rounds = max(1, round(min(_WARM_SECONDS, 2 * seconds) / _PERIOD.total_seconds()))
    first = min(_WARM_RUNS, runs)
    warm = first + jobs * warm_rounds
    with server.environment() as environment, environment.connect() as connection:
        ends = Ends(environment, environment.installation.topics.completions)
        with all_services(environment, executors=1) as processes, environment.meter(processes) as meter:
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
    due, requested = lateness_ms(timed), lateness_ms(triggered)
    figures = {
        "due_to_start_p50_ms": Figure(percentile(due, 50), "ms", spent),
        "due_to_start_p99_ms": Figure(percentile(due, 99), "ms"),
        "request_to_start_p50_ms": Figure(percentile(requested, 50), "ms"),
        "request_to_start_p99_ms": Figure(percentile(requested, 99), "ms"),
    }
    return Round(figures, series={"due to start, p99 of a second, ms": p99_by_second(timed)})


def _trigger(environment: Environment, connection: Conn, requests: int, per_second: float, begun: int) -> list[Start]:
    """Request runs of one job at a steady pace; each payload is the instant of its request."""
    client, topic = sender(environment), environment.installation.topics.requests
    job = {"key": _KEY, "schedule": "manual", "target": "requested"}
    produce(client, topic, [(_KEY.encode(), json.dumps({"type": "job.submit", "job": job}).encode())])
    wait_for(lambda: count_of(connection, "SELECT count(*) FROM jobs WHERE key = %s", _KEY), 1, "jobs submitted")
    first = monotonic_seconds()
    for number in range(requests):
        threading.Event().wait(max(0.0, first + number / per_second - monotonic_seconds()))
        trigger = {"type": "job.trigger", "key": _KEY, "payload": now_seconds()}
        client.produce(topic, key=_KEY.encode(), value=json.dumps(trigger).encode())
        client.poll(0)
    client.flush()
    wait_for(environment.starts().count, begun + requests, "runs begun")
    timed = [start for start in environment.starts().read() if start.due]
    return timed[-requests:]
