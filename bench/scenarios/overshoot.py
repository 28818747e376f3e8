"""`limits`, the second part: the overshoot of limits, undisturbed and while executors are killed.

Three tenants are offered more than their limits for a while. One has a key with places, one a key with a rate, and one
a limit of triggers per second. The same load comes again while an executor is killed by SIGKILL every few seconds, and
another one started.

All figures come from the rows of runs and attempts. A claim writes the start after it has locked the key, and an end is
written before that lock. So the spans of two attempts on one place never overlap in the rows.

The runs of the third tenant have an executor of their own that is not killed: a further attempt would change the times
at which they were due.
"""

import json
import threading
from bisect import bisect_left
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import LiteralString, cast

import psutil

from tidewheel.bench import baselines
from tidewheel.bench.complete import until
from tidewheel.bench.environment import EXECUTOR, Environment, Server
from tidewheel.bench.load import count_of, database_now
from tidewheel.bench.measurement import (
    Figure,
    Incomplete,
    Options,
    Round,
    least,
    most_at_once,
    most_in_a_window,
    rate,
)
from tidewheel.bench.scenarios.workflows import run_command
from tidewheel.clock import monotonic_seconds
from tidewheel.control.client.client import Client
from tidewheel.kafka.clients import producer
from tidewheel.postgres.session import Conn
from tidewheel.runs import AttemptOutcome

SECONDS = 80.0
_MINUTE = 60.0
_SHARE = 0.75  # of the load that a window lasts, at most a minute
_PLACES = 20
_HOLDS = 0.5  # seconds of a run with a place
_STARTS = 600  # a minute
_TRIGGERS = 100  # a second
_OFFERED = {"places": 60, "rate": 20, "triggers": 1000}  # runs a second, each more than the limit
_STEADY = "steady"  # the queue of the executor that is not killed
_EXECUTORS = 3
_KILL_SECONDS = 5.0
_GIVE_UP_SECONDS = 10.0
_TICK_SECONDS = 0.05
_WARM_SECONDS = 1.0
_GRID = 10  # windows that begin in a second
# The lease is longer than a busy machine holds up a heartbeat: an executor that is taken for lost would run beside its
# successors. The sweep is short, because messages for killed executors wait for seconds: else the load stays far below
# the limits.
_SETTINGS = {"TIDEWHEEL_HEARTBEAT": "1s", "TIDEWHEEL_LEASE": "4s", "TIDEWHEEL_SWEEP": "200ms"}

_LIVE: LiteralString = "SELECT count(*) FROM executors WHERE NOT stopping"
_BEGUN: LiteralString = "SELECT count(*) FROM runs WHERE tenant = %s AND started_at IS NOT NULL"
_WAITING: LiteralString = "SELECT count(*) FROM job_runs WHERE tenant = %s AND waits_for IS NOT NULL"
_LOST: LiteralString = "SELECT count(*) FROM attempts WHERE outcome = %s"
_ATTEMPTS: LiteralString = """
SELECT extract(epoch FROM started_at)::float8, extract(epoch FROM finished_at)::float8
  FROM ended_attempts
 WHERE tenant = %(tenant)s
 UNION ALL
SELECT extract(epoch FROM started_at)::float8, NULL
  FROM job_runs
 WHERE tenant = %(tenant)s AND started_at IS NOT NULL
"""
_DUE: LiteralString = """
SELECT extract(epoch FROM publish_at)::float8 AS due
  FROM runs
 WHERE tenant = %s AND isfinite(publish_at)
 ORDER BY due
"""


def measure(server: Server, options: Options) -> Round:
    """Offer the load twice, the second time while executors are killed; read what each limit let through."""
    seconds = options.seconds or SECONDS
    with server.environment() as environment, environment.connect(autocommit=True) as connection:
        copies = server.info.replication
        replication = () if copies is None else ("--replication", str(copies))
        run_command(environment, "topics", "apply", "--queues", f"default,{_STEADY}", *replication)
        _submit(environment)
        services = [("intake",), ("relay",), ("scheduler",), (*EXECUTOR, "--queues", _STEADY)]
        with environment.services(*services, variables=_SETTINGS), ExitStack() as running:
            fleet = [_start(environment, running) for _ in range(_EXECUTORS)]

            def replace_oldest() -> None:
                oldest = fleet.pop(0)
                oldest.kill()
                oldest.wait(_GIVE_UP_SECONDS)  # it takes the exit code, so `services` sees no failure
                fleet.append(_start(environment, running))

            options.report("warming up")
            until(lambda: count_of(connection, _LIVE) == _EXECUTORS + 1, "every executor is at work")
            offer = _Offer(environment)
            offer.go(_WARM_SECONDS)
            for tenant in _OFFERED:
                until(lambda tenant=tenant: count_of(connection, _BEGUN, tenant) > 0, f"runs of {tenant} begin")  # type: ignore[misc]
            options.report(f"load of {seconds:.0f} s")
            undisturbed = _load(connection, offer, seconds)
            options.report(f"load of {seconds:.0f} s, an executor killed every {_KILL_SECONDS:.0f} s")
            killed = _load(connection, offer, seconds, replace_oldest)
            lost = count_of(connection, _LOST, AttemptOutcome.LOST)
    figures = {f"{name}_undisturbed": figure for name, figure in undisturbed.items()}
    return Round({**figures, **killed, "lost_attempts": Figure(lost, "")})


def _load(
    connection: Conn, offer: "_Offer", seconds: float, replace: Callable[[], None] | None = None
) -> Mapping[str, Figure]:
    """Offer the load for so many seconds; return what each limit let through."""
    began = database_now(connection).timestamp()
    replaced = offer.go(seconds, replace)
    ended = database_now(connection).timestamp()
    for tenant in _OFFERED:
        if not count_of(connection, _WAITING, tenant):
            message = f"no run of {tenant} waits at the end: the load was not above the limit"
            raise Incomplete(message)
    figures = _figures(connection, began, ended, min(_MINUTE, seconds * _SHARE))
    return figures if replace is None else {**figures, "killed_executors": Figure(replaced, "")}


def _figures(connection: Conn, began: float, ended: float, window: float) -> Mapping[str, Figure]:
    """Return what each limit let through, in windows of so many seconds, as numbers of a minute."""
    per_minute = _MINUTE / window
    attempts = {tenant: _attempts(connection, tenant) for tenant in ("places", "rate")}
    held = [(at, end) for at, end in attempts["places"] if at < ended and (end is None or end > began)]
    paced = [at for at, _ in attempts["rate"] if began <= at < ended]
    places = most_at_once(held)
    starts = most_in_a_window(paced, window) * per_minute
    due = [cast("float", row[0]) for row in connection.execute(_DUE, ["triggers"])]
    # After a rest the runs of one second more are due. So steady windows begin a while after the load.
    first = began + (ended - began - window) / 4
    begins = [first + number / _GRID for number in range(int((ended - window - first) * _GRID) + 1)]
    steady = [bisect_left(due, at + window) - bisect_left(due, at) for at in begins]
    return {
        "places_most": least(places, "runs"),
        "places_over": least(max(0, places - _PLACES), "runs"),
        "places_starts_per_second": rate(sum(at >= began for at, _ in held) / (ended - began), "starts/s"),
        "rate_most_in_a_minute": least(starts, "starts"),
        "rate_over_percent": least(max(0.0, 100 * (starts / _STARTS - 1)), "percent"),
        "rate_mean_in_a_minute": rate(len(paced) / (ended - began) * _MINUTE, "starts"),
        "triggers_most_in_a_minute": least(max(steady) * per_minute, "runs"),
        "triggers_least_in_a_minute": rate(min(steady) * per_minute, "runs"),
        "triggers_most_after_a_rest": least(
            most_in_a_window([at for at in due if at < ended], window) * per_minute, "runs"
        ),
    }


def _attempts(connection: Conn, tenant: str) -> list[tuple[float, float | None]]:
    rows = connection.execute(_ATTEMPTS, {"tenant": tenant}).fetchall()
    return cast("list[tuple[float, float | None]]", rows)


def _start(environment: Environment, running: ExitStack) -> psutil.Process:
    [process] = running.enter_context(environment.services(EXECUTOR, variables=_SETTINGS))
    return process


def _submit(environment: Environment) -> None:
    """Create the tenants with their limits, each with one job."""
    places = {"target": "sleep", "payload": _HOLDS, "concurrency_key": {"key": "places", "at_once": _PLACES}}
    paced = {"target": "noop", "concurrency_key": {"key": "rate", "rate": f"{_STARTS}/min"}}
    jobs: Mapping[str, Mapping[str, object]] = {
        "places": places,
        "rate": paced,
        "triggers": {"target": "noop", "queue": _STEADY},
    }
    for tenant, job in jobs.items():
        with Client(environment.url, tenant=tenant) as client:
            client.tenants.create(tenant, triggers_per_second=_TRIGGERS if tenant == "triggers" else None)
            client.submit({"key": "job", "schedule": "manual", **job})


class _Offer:
    """Requests triggers of all tenants at their steady rates."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._sender = producer(environment.kafka, role="bench-requests")

    def go(self, seconds: float, replace: Callable[[], None] | None = None) -> int:
        """Offer for so many seconds, and replace an executor every few; return how often."""
        sent, replaced = dict.fromkeys(_OFFERED, 0), 0
        topic = self._environment.installation.topics.requests
        began = monotonic_seconds()
        while (at := monotonic_seconds() - began) < seconds:
            requests: list[baselines.Made] = []
            for tenant, per_second in _OFFERED.items():
                wanted = int(at * per_second)
                trigger = json.dumps({"type": "job.trigger", "tenant": tenant, "key": "job"}).encode()
                requests += [(None, trigger, [])] * (wanted - sent[tenant])
                sent[tenant] = wanted
            baselines.produce(self._environment, topic, requests, client=self._sender)
            if replace is not None and at >= (replaced + 1) * _KILL_SECONDS:
                replace()
                replaced += 1
            threading.Event().wait(_TICK_SECONDS)
        return replaced
