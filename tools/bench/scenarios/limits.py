"""`limits`: throughput with each limit that never binds, as a ratio to the same runs without it.

All services run at once, on one database. A turn triggers runs by messages, and ends with the last completion event. A
pair is two turns, one after the other: with a limit and without it. The order changes from pair to pair and from sweep
to sweep, so a drift of the machine is on both sides.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from tidewheel.clock import monotonic_seconds
from tidewheel.control.client.client import Client
from tidewheel.control.client.tenants import Limits
from tidewheel.jobs.concurrency import FASTEST, MOST_AT_ONCE, MOST_BURST
from tidewheel.postgres.session import Conn
from tools.bench.complete import Ends, check_runs, until_empty
from tools.bench.environment import Environment, Server
from tools.bench.load import PAYLOAD
from tools.bench.measurement import Figure, Options, Round
from tools.bench.messages import now_seconds, produce, sender
from tools.bench.scenarios.pipeline import all_services

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


def _nothing(number: int) -> Mapping[str, object]:
    del number
    return {}


@dataclass(frozen=True, slots=True)
class _Load:
    """Runs of one turn: their tenant and job, and further fields of the trigger of each, by its number."""

    tenant: str = "plain"
    job: str = "plain"
    fields: Callable[[int], Mapping[str, object]] = _nothing

    def trigger(self, number: int) -> bytes:
        """Return the request for one run."""
        request = {"type": "job.trigger", "tenant": self.tenant, "key": self.job}
        return json.dumps({**request, **self.fields(number)}).encode()


class _Pair(NamedTuple):
    """The runs/s of two turns, one after the other; `at` counts seconds from the first sweep."""

    at: float
    without: float
    limited: float

    @property
    def ratio(self) -> float:
        """The throughput with the limit to that without."""
        return self.limited / self.without


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
    pairs: defaultdict[str, list[_Pair]] = defaultdict(list)
    with server.environment() as environment, environment.connect() as connection:
        _submit(environment)
        with all_services(environment):
            turns = _Turns(environment, connection)
            options.report("warming up")
            for load in (_PLAIN, *_LIMITS.values()):
                turns.run(load, min(_WARM_RUNS, runs))
            began, sweep = monotonic_seconds(), 0
            while not sweep or monotonic_seconds() - began < (options.minutes or MINUTES) * 60:
                for number, (limit, load) in enumerate(_LIMITS.items()):
                    options.report(f"sweep {sweep + 1}: {limit}")
                    order = (_PLAIN, load) if (number + sweep) % 2 else (load, _PLAIN)
                    done = {each is load: turns.run(each, runs) for each in order}
                    pairs[limit].append(_Pair(monotonic_seconds() - began, done[False], done[True]))
                sweep += 1
        check_runs(connection, turns.runs, environment.starts(), may_be_released=True)
    series = {f"{limit}: ratio": [(pair.at, pair.ratio) for pair in found] for limit, found in pairs.items()}
    return Round(_figures(pairs), series=series)


def _figures(pairs: Mapping[str, Sequence[_Pair]]) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    for limit, found in pairs.items():
        ratios = [pair.ratio for pair in found]
        figures[f"{limit}_ratio"] = Figure(median(ratios), "")
        figures[f"{limit}_ratio_least"] = Figure(min(ratios), "")
        figures[f"{limit}_runs_per_second"] = Figure(median(pair.limited for pair in found), "runs/s")
    return figures


class _Turns:
    """Turns on one database; `runs` counts all of them."""

    def __init__(self, environment: Environment, connection: Conn) -> None:
        self.runs = 0
        self._connection, self._sender = connection, sender(environment)
        self._topics = environment.installation.topics
        self._ends = Ends(environment, self._topics.completions)

    def run(self, load: _Load, runs: int) -> float:
        """Trigger runs, wait until all have ended, and return runs/s."""
        requests = [(None, load.trigger(number)) for number in range(self.runs, self.runs + runs)]
        self.runs += runs
        began = now_seconds()
        produce(self._sender, self._topics.requests, requests)
        self._ends.watch(self.runs)
        until_empty(self._connection, "job_runs", "outbox")
        return runs / (self._ends.last_seconds() - began)


def _submit(environment: Environment) -> None:
    """Create the tenants, and each job for each of them."""
    for tenant, limits in _TENANTS.items():
        with Client(environment.url, tenant=tenant) as client:
            client.tenants.create(tenant, **limits)
            for key, fields in _JOBS.items():
                client.submit({"key": key, "schedule": "manual", "target": "noop", "payload": PAYLOAD, **fields})
