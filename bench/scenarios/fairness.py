"""`fairness`: waits of one tenant's runs, one a second, beside another's burst of 200,000.

Each round has two loads on services of their own: with fairness, and with `TIDEWHEEL_FAIRNESS=off`. Neither waits until
the burst is done, so a round takes about two minutes however long its handlers are.
"""

import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import LiteralString, cast

from tidewheel.bench.complete import until, wait_for
from tidewheel.bench.environment import Environment, Server
from tidewheel.bench.load import count_of
from tidewheel.bench.measurement import Figure, Incomplete, Options, Round, least, percentile, rate
from tidewheel.bench.scenarios.pipeline import EXECUTORS, all_services
from tidewheel.clock import monotonic_seconds
from tidewheel.errors import Unavailable
from tidewheel.intake.apply import apply_requests
from tidewheel.intake.request import ReceivedRequest
from tidewheel.jobs.parsing import parse_request
from tidewheel.postgres.session import Conn

BURST = 200_000
SECONDS = 30.0  # of one load
HANDLERS = {"10ms": 0.01, "100ms": 0.1, "1s": 1.0}
_SLOTS = 50  # of each executor
_EVERY_SECONDS = 1.0  # between two runs of the other tenant
_BATCH = 1000
_WARM_RUNS = 100
_LAST_SECONDS = 5.0  # for the last runs of the other tenant

_ADD_TENANTS: LiteralString = "INSERT INTO tenants (tenant) VALUES ('a'), ('b')"
_STARTED: LiteralString = "SELECT count(*) FROM runs WHERE tenant = %s AND started_at IS NOT NULL"
_WAITS: LiteralString = """
SELECT 1000 * extract(epoch FROM coalesce(started_at, tidewheel_now()) - publish_at)::float FROM runs WHERE tenant = 'b'
"""


def measure(server: Server, options: Options, *, handler: str) -> Round:
    """Measure the waits of the other tenant's runs, with fairness and without it."""
    figures: dict[str, Figure] = {}
    rates: dict[str, float] = {}
    for fairness in ("on", "off"):
        options.report(f"handlers of {handler}, fairness {fairness}")
        waits, rates[fairness] = _load(server, options, HANDLERS[handler], fairness)
        name = f"{handler}_{fairness}"
        figures |= {
            f"{name}_wait_p50_ms": least(percentile(waits, 50), "ms"),
            f"{name}_wait_p99_ms": least(percentile(waits, 99), "ms"),
            f"{name}_wait_max_ms": least(max(waits), "ms"),
            f"{name}_burst_per_second": rate(rates[fairness], "runs/s"),
        }
    figures[f"{handler}_burst_of_off_percent"] = Figure(100 * rates["on"] / rates["off"], "percent")
    return Round(figures)


def _load(server: Server, options: Options, handler_seconds: float, fairness: str) -> tuple[list[float], float]:
    """Return the other tenant's waits in ms, and the burst's starts a second."""
    variables = {"TIDEWHEEL_FAIRNESS": fairness, "TIDEWHEEL_SLOTS": str(_SLOTS)}
    burst, seconds = options.jobs or BURST, options.seconds or SECONDS
    with server.environment() as environment, environment.connect(autocommit=True) as connection:
        connection.execute(_ADD_TENANTS)
        for tenant in "ab":
            job = {"key": "job", "schedule": "manual", "target": "sleep", "payload": handler_seconds}
            _apply(environment, connection, [{"type": "job.submit", "tenant": tenant, "job": job}])
        with all_services(environment, executors=EXECUTORS, variables=variables):
            _trigger(environment, connection, "a", _WARM_RUNS)
            wait_for(lambda: count_of(connection, _STARTED, "a"), _WARM_RUNS, "runs begun")
            with _written(environment, burst):
                until(lambda: count_of(connection, _STARTED, "a") > _WARM_RUNS, "the burst begins")
                began, before = monotonic_seconds(), count_of(connection, _STARTED, "a")
                ends = began + seconds
                while (left := ends - monotonic_seconds()) > 0:
                    _trigger(environment, connection, "b", 1)
                    threading.Event().wait(min(left, _EVERY_SECONDS))
                started = count_of(connection, _STARTED, "a") - before
                took = monotonic_seconds() - began
                threading.Event().wait(_LAST_SECONDS)
                waits = [cast("float", wait) for (wait,) in connection.execute(_WAITS)]
                if count_of(connection, _STARTED, "a") >= burst + _WARM_RUNS:
                    message = f"the burst of {burst:,} runs ended before the load: give more --jobs"
                    raise Incomplete(message)
    return waits, started / took


@contextmanager
def _written(environment: Environment, burst: int) -> Generator[None]:
    """Write the burst on a thread, as far as the block lasts."""
    stop = threading.Event()

    def write() -> None:
        with environment.connect(autocommit=True) as connection, suppress(Unavailable):
            for _ in range(0, burst, _BATCH):
                if stop.is_set():
                    return
                _trigger(environment, connection, "a", _BATCH)

    thread = threading.Thread(target=write, name="burst")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _trigger(environment: Environment, connection: Conn, tenant: str, count: int) -> None:
    request: dict[str, object] = {"type": "job.trigger", "tenant": tenant, "key": "job"}
    _apply(environment, connection, [request] * count)


def _apply(environment: Environment, connection: Conn, documents: Sequence[Mapping[str, object]]) -> None:
    batch = [ReceivedRequest(parse_request(document)) for document in documents]
    with connection.transaction():
        apply_requests(connection, environment.installation, batch)
