"""`limits`: throughput with each limit that never binds, as a ratio to the same runs without it.

All services run at once, on one database. A turn triggers runs by messages, and ends with the last completion event. A
pair is two turns, one after the other: with a limit and without it. The order changes from pair to pair and from sweep
to sweep, so a drift of the machine is on both sides.
"""

import json
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import median

from confluent_kafka import Producer

from tidewheel.clock import monotonic_seconds
from tidewheel.control.client.client import Client
from tidewheel.jobs.keys import FASTEST, MOST_AT_ONCE, MOST_BURST
from tidewheel.nouns.tenants.reads import Limits
from tools.bench.environment import Environment, Server
from tools.bench.flow import Flow, flowing
from tools.bench.load import PAYLOAD
from tools.bench.measurement import Figure, Options, Round
from tools.bench.messages import produce, sender

RUNS = 10_000  # of a turn
MINUTES = 4.0  # after which no further sweep over all pairs begins
_KEYS = 1000
_WARM_RUNS = 1000
_TENANTS: Mapping[str, Limits] = {
    "plain": {},
    "in-flight": {"in_flight": MOST_AT_ONCE},
    "triggers": {"triggers_per_second": FASTEST},
}
_JOBS: Mapping[str, Mapping[str, object]] = {
    "plain": {},
    "keyed": {"concurrency_key": {"key": "hot", "at_once": MOST_AT_ONCE}},
    "rated": {"concurrency_key": {"key": "rated", "rate": f"{FASTEST}/s", "burst": MOST_BURST}},
}


@dataclass(frozen=True, slots=True)
class _Load:
    """Runs of one turn: their tenant and job, and further fields of the trigger of each, by its number."""

    tenant: str = "plain"
    job: str = "plain"
    fields: Callable[[int], dict[str, object]] = lambda _: {}

    def trigger(self, number: int) -> bytes:
        """Return the request for one run."""
        request = {"type": "job.trigger", "tenant": self.tenant, "key": self.job, **self.fields(number)}
        return json.dumps(request).encode()


_PLAIN = _Load()
_LIMITS: Mapping[str, _Load] = {
    "one_key": _Load(job="keyed"),
    "thousand_keys": _Load(job="keyed", fields=lambda number: {"concurrency_key": f"key-{number % _KEYS}"}),
    "rate": _Load(job="rated", fields=lambda number: {"concurrency_key": f"rate-{number % _KEYS}"}),
    "in_flight": _Load(tenant="in-flight"),
    "triggers": _Load(tenant="triggers"),
    "ordering_key": _Load(fields=lambda number: {"ordering_key": f"order-{number % _KEYS}"}),
    "dedupe": _Load(fields=lambda number: {"dedupe": {"key": str(number), "window": "1h", "mode": "reject"}}),
    "priority": _Load(fields=lambda number: {"priority": number % 10}),
}


def measure(server: Server, options: Options) -> Round:
    """Sweep over the pairs until the time is over; each limit's ratios and rate."""
    runs = options.jobs or RUNS
    ratios: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    rates: defaultdict[str, list[float]] = defaultdict(list)
    with flowing(server, options) as flow:
        _submit(flow.environment)
        turn = partial(_turn, flow, sender(flow.environment))
        options.report("warming up")
        for load in (_PLAIN, *_LIMITS.values()):
            turn(load, min(_WARM_RUNS, runs))
        before, warm = flow.meter.mark(), flow.done
        began, sweep = monotonic_seconds(), 0
        while not sweep or monotonic_seconds() - began < (options.minutes or MINUTES) * 60:
            for number, (limit, load) in enumerate(_LIMITS.items()):
                options.report(f"sweep {sweep + 1}: {limit}")
                order = (_PLAIN, load) if (number + sweep) % 2 else (load, _PLAIN)
                done = {each is load: turn(each, runs) for each in order}
                ratios[limit].append((monotonic_seconds() - began, done[True] / done[False]))
                rates[limit].append(done[True])
            sweep += 1
        spent = flow.meter.since(before, flow.done - warm)
        flow.check(may_be_released=True, events=False)
    figures = {"runs": Figure(spent.runs, "runs", spent)}
    for limit, points in ratios.items():
        found = [ratio for _, ratio in points]
        figures[f"{limit}_ratio"] = Figure(median(found), "")
        figures[f"{limit}_ratio_least"] = Figure(min(found), "")
        figures[f"{limit}_runs_per_second"] = Figure(median(rates[limit]), "runs/s")
    return Round(figures, series={f"{limit}: ratio": found for limit, found in ratios.items()})


def _turn(flow: Flow, client: Producer, load: _Load, runs: int) -> float:
    """Trigger runs, wait until all have ended, and return runs/s."""
    requests = [(None, load.trigger(number)) for number in range(flow.done, flow.done + runs)]
    flow.done += runs
    began = time.time()
    produce(client, flow.environment.topics.requests, requests)
    flow.ends.watch(flow.done)
    flow.until_empty()
    return runs / (flow.ends.last_seconds() - began)


def _submit(environment: Environment) -> None:
    """Create the tenants, and each job for each of them."""
    for tenant, limits in _TENANTS.items():
        with Client(environment.url, tenant=tenant) as client:
            client.tenants.create(tenant, **limits)
            for key, fields in _JOBS.items():
                client.submit({"key": key, "schedule": "manual", "target": "noop", "payload": PAYLOAD, **fields})
