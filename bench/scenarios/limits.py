"""`limits`, the first part: throughput with each limit, as a ratio to the same runs without it.

All services run at once, on one database. A turn triggers runs by messages, and ends with the last completion event. A
pair is two turns, one after the other: with a limit that never binds, and without it. The order changes from pair to
pair and from sweep to sweep, so a drift of the machine is on both sides.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

import psutil

from tidewheel.bench import baselines
from tidewheel.bench.complete import Ends, check_runs, until_empty
from tidewheel.bench.environment import EXECUTOR, Environment, Server
from tidewheel.bench.load import PAYLOAD
from tidewheel.bench.measurement import Figure, Options, Round, Spent, rate
from tidewheel.bench.scenarios.handlers import Done
from tidewheel.bench.scenarios.pipeline import EXECUTORS
from tidewheel.clock import monotonic_seconds
from tidewheel.control.client.client import Client
from tidewheel.control.client.tenants import Limits
from tidewheel.jobs.concurrency import FASTEST, MOST_AT_ONCE, MOST_BURST
from tidewheel.kafka.clients import producer
from tidewheel.postgres.session import Conn

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
    """Runs of one turn.

    Args:
        tenant: Their tenant.
        job: Their job.
        fields: Returns further fields of the trigger of a run, by its number.
        fairness: The relay's setting.
    """

    tenant: str = "plain"
    job: str = "plain"
    fields: Callable[[int], Mapping[str, object]] = _nothing
    fairness: str = "on"

    def trigger(self, number: int) -> bytes:
        """Return the request for one run."""
        request = {"type": "job.trigger", "tenant": self.tenant, "key": self.job}
        return json.dumps({**request, **self.fields(number)}).encode()


class _Pair(NamedTuple):
    """Two turns, one after the other; `at` counts seconds from the first sweep."""

    at: float
    without: Done
    limited: Done

    @property
    def ratio(self) -> float:
        """The throughput with the limit to that without."""
        return self.limited.per_second / self.without.per_second


_NONE, _OFF = "none", "fairness_off"
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
_LOADS: Mapping[str, _Load] = {_NONE: _Load(), **_LIMITS, _OFF: _Load(fairness="off")}
# Without and with. Fairness is the last, so that one sweep ends and the next one begins with the same relay.
_PAIRS: Mapping[str, tuple[str, str]] = {**{name: (_NONE, name) for name in _LIMITS}, "fairness": (_OFF, _NONE)}


def measure(server: Server, options: Options) -> Round:
    """Sweep over the pairs until the time is over; each limit's ratios, and the rates of all loads."""
    runs = options.jobs or RUNS
    pairs: defaultdict[str, list[_Pair]] = defaultdict(list)
    commands: list[tuple[str, ...]] = [("intake",), ("scheduler",), *[EXECUTOR] * EXECUTORS]
    with server.environment() as environment, environment.connect() as connection:
        _submit(environment)
        with environment.services(*commands) as [intake, scheduler, *executors], ExitStack() as relay:
            processes = {"intake": [intake], "scheduler": [scheduler], "executor": executors}
            pipeline = _Pipeline(environment, connection, processes, relay)
            options.report("warming up")
            for name in _LOADS:
                pipeline.run(name, min(_WARM_RUNS, runs))
            began, sweep = monotonic_seconds(), 0
            while not sweep or monotonic_seconds() - began < (options.minutes or MINUTES) * 60:
                for limit, order in _turns(sweep):
                    options.report(f"sweep {sweep + 1}: {limit}")
                    turns = {name: pipeline.run(name, runs) for name in order}
                    without, limited = _PAIRS[limit]
                    pairs[limit].append(_Pair(monotonic_seconds() - began, turns[without], turns[limited]))
                sweep += 1
        check_runs(connection, pipeline.runs, environment.starts(), may_be_released=True)
    series = {f"{limit}: ratio": [(pair.at, pair.ratio) for pair in found] for limit, found in pairs.items()}
    return Round(_figures(pairs), series=series)


def _turns(sweep: int) -> list[tuple[str, Sequence[str]]]:
    """Return the pairs of a sweep in order, each with its loads in order; every second sweep is reversed."""
    forwards = [(limit, sides if number % 2 else sides[::-1]) for number, (limit, sides) in enumerate(_PAIRS.items())]
    return [(limit, order[::-1]) for limit, order in reversed(forwards)] if sweep % 2 else list(forwards)


def _figures(pairs: Mapping[str, Sequence[_Pair]]) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    done: defaultdict[str, list[Done]] = defaultdict(list)
    for limit, found in pairs.items():
        ratios = [pair.ratio for pair in found]
        figures[f"{limit}_ratio"] = Figure(median(ratios), "")
        figures[f"{limit}_ratio_least"] = Figure(min(ratios), "")
        figures[f"{limit}_ratio_most"] = Figure(max(ratios), "")
        without, limited = _PAIRS[limit]
        done[without] += [pair.without for pair in found]
        done[limited] += [pair.limited for pair in found]
    for name in _LOADS:
        per_second = median(turn.per_second for turn in done[name])
        figures[f"{name}_runs_per_second"] = rate(per_second, "runs/s", spent=_sum([turn.spent for turn in done[name]]))
    return figures


class _Pipeline:
    """All services, with a relay that a turn may replace.

    Args:
        environment: Of the round.
        connection: Of the database.
        processes: The services but the relay, by name.
        relay: Stops the relay when it closes.
    """

    def __init__(
        self,
        environment: Environment,
        connection: Conn,
        processes: Mapping[str, list[psutil.Process]],
        relay: ExitStack,
    ) -> None:
        self.runs = 0
        self._environment, self._connection, self._relay = environment, connection, relay
        self._processes = dict(processes)
        self._ends = Ends(environment, environment.installation.topics.completions)
        self._sender = producer(environment.kafka, role="bench-requests")
        self._fairness: str | None = None

    def run(self, name: str, runs: int) -> Done:
        """Trigger runs and wait until all have ended."""
        load = _LOADS[name]
        if load.fairness != self._fairness:
            self._replace_relay(load.fairness)
            self.run(name, min(_WARM_RUNS, runs))
        requests: list[baselines.Made] = [
            (None, load.trigger(number), []) for number in range(self.runs, self.runs + runs)
        ]
        self.runs += runs
        topic = self._environment.installation.topics.requests
        with self._environment.meter(self._processes) as meter:
            before, began = meter.mark(), baselines.now_seconds()
            baselines.produce(self._environment, topic, requests, client=self._sender)
            self._ends.watch(self.runs)
            spent = meter.since(before, runs)
        until_empty(self._connection, "job_runs", "outbox")
        return Done(runs / (self._ends.last_seconds() - began), spent)

    def _replace_relay(self, fairness: str) -> None:
        self._relay.close()
        started = self._environment.services(("relay",), variables={"TIDEWHEEL_FAIRNESS": fairness})
        self._processes["relay"] = self._relay.enter_context(started)
        self._fairness = fairness


def _submit(environment: Environment) -> None:
    """Create the tenants, and each job for each of them."""
    for tenant, limits in _TENANTS.items():
        with Client(environment.url, tenant=tenant) as client:
            client.tenants.create(tenant, **limits)
            for key, fields in _JOBS.items():
                client.submit({"key": key, "schedule": "manual", "target": "noop", "payload": PAYLOAD, **fields})


def _sum(spent: list[Spent]) -> Spent:
    """Return the cost of several turns as that of one."""
    cpu = {name: sum(each.cpu_seconds[name] for each in spent) for name in spent[0].cpu_seconds}
    return Spent(sum(each.runs for each in spent), cpu, sum(each.wal_bytes for each in spent))
