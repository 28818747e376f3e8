"""`latency`: due to handler start, and request to handler start, under low load."""

import json
import threading
import time
from datetime import timedelta
from functools import partial

from tidewheel.clock import monotonic_seconds
from tools.bench.complete import lateness, p99_by_second, starts_since, wait_for
from tools.bench.environment import Server
from tools.bench.flow import Flow, flowing
from tools.bench.load import steady
from tools.bench.measurement import Options, Round
from tools.bench.messages import produce, sender
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
    jobs = int(per_second * _PERIOD.total_seconds())
    load = steady(jobs, _PERIOD, max(1, round(seconds / _PERIOD.total_seconds())))
    warm_rounds = max(1, round(min(_WARM_SECONDS, 2 * seconds) / _PERIOD.total_seconds()))
    with flowing(server, options, executors=1) as flow:
        flow.warm_up(min(_WARM_RUNS, load.runs))
        flow.load(steady(jobs, _PERIOD, warm_rounds, prefix="warm-steady"))
        flow.done += jobs * warm_rounds
        flow.wait_begun(flow.done)
        flow.until_empty()
        due_at = flow.load(load)
        _, spent = flow.measure(due_at, load.runs, flow.wait_begun)
        timed = starts_since(flow.environment, due_at, load.runs)
        requested = _trigger(flow, int(per_second * seconds), per_second)
        flow.check(events=False)
    figures = {**lateness(timed, spent, "due_to_start"), **lateness(requested, name="request_to_start")}
    return Round(figures, series=p99_by_second(timed))


def _trigger(flow: Flow, requests: int, per_second: float) -> list[Start]:
    """Request runs of one job at a steady pace; return the starts, due at the instants of their requests."""
    flow.report(f"{requests:,} requests, {per_second:.0f} a second")
    client, topic = sender(flow.environment), flow.environment.topics.requests
    job = {"key": _KEY, "schedule": "manual", "target": "requested"}
    produce(client, topic, [(_KEY.encode(), json.dumps({"type": "job.submit", "job": job}).encode())])
    submitted = partial(flow.environment.count, "SELECT count(*) FROM jobs WHERE key = %s", _KEY)
    wait_for(submitted, 1, "jobs submitted")
    first = monotonic_seconds()
    for number in range(requests):
        threading.Event().wait(max(0.0, first + number / per_second - monotonic_seconds()))
        trigger = {"type": "job.trigger", "key": _KEY, "payload": time.time()}
        client.produce(topic, key=_KEY.encode(), value=json.dumps(trigger).encode())
        client.poll(0)
    client.flush()
    flow.done += requests
    flow.wait_begun(flow.done)
    flow.until_empty()
    return [start for start in flow.starts.read() if start.due][-requests:]
