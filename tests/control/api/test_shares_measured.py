"""Shares by the clock: a tenant that shares an API process with a flood of another one.

`--log-cli-level=info` shows the factor of each flood.
"""

import json
import logging
import socket
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http import HTTPStatus
from threading import Event

import httpx
import pytest

import tidewheel
from tests.control.api.answering import NO_ROOTS
from tests.control.api.test_keys import TOKEN, created, with_key
from tests.control.api.test_shares import job_of
from tests.fixtures.acts import submission
from tests.fixtures.services import LONG_LEASE, ROLES, Fleet
from tidewheel.clock import monotonic_seconds
from tidewheel.local.daemon import free_port

pytestmark = pytest.mark.slow

_LOG = logging.getLogger(__name__)
JSON = {"Content-Type": "application/json"}
REQUESTS = 100
FLOODS = ("bulks", "lists", "locked rows", "streams", "cancellations", "slow bodies", "strangers")
AFTER_REFUSAL_SECONDS = 0.05  # as a client that heeds no Retry-After, but is no busy loop in the test's own process


@contextmanager
def client_of(base: str) -> Generator[httpx.Client]:
    with httpx.Client(base_url=base, timeout=60, trust_env=False, verify=NO_ROOTS) as client:
        yield client


def flood(kind: str, base: str, key: str, over: Event) -> None:
    """Send requests of one kind until it is over."""
    bulk = json.dumps({"jobs": [job_of(f"bulk-{number}") for number in range(500)]}).encode()  # once: it takes the GIL
    with client_of(base) as client:
        calls: dict[str, Callable[[], httpx.Response]] = {
            "bulks": lambda: client.post("/api/v1/jobs:bulk", content=bulk, headers=with_key(key) | JSON),
            "lists": lambda: client.get("/api/v1/runs?limit=1000", headers=with_key(key)),
            "locked rows": lambda: client.post(
                "/api/v1/jobs/job:trigger", json={}, headers=with_key(key) | {"Idempotency-Key": "R"}
            ),
            "cancellations": lambda: client.post("/api/v1/runs:cancel", json={"key": "job"}, headers=with_key(key)),
            "triggers": lambda: client.post("/api/v1/jobs/job:trigger", json={}, headers=with_key(key)),
            "strangers": lambda: client.get("/api/v1/schemas/0101010101010101"),
        }
        while not over.is_set():
            if calls[kind]().status_code >= HTTPStatus.BAD_REQUEST:
                over.wait(AFTER_REFUSAL_SECONDS)


def figures(base: str, key: str) -> tuple[float, float]:
    """Return the p50 and the p99 of triggers and lists of a key, none of which is refused."""
    took: list[float] = []
    with client_of(base) as client:
        for number in range(REQUESTS):
            since = monotonic_seconds()
            if number % 2:
                answer = client.get("/api/v1/jobs", headers=with_key(key))
            else:
                answer = client.post("/api/v1/jobs/job:trigger", json={}, headers=with_key(key))
            took.append(monotonic_seconds() - since)
            assert answer.status_code < HTTPStatus.BAD_REQUEST, answer.text
    ordered = sorted(took)
    return ordered[REQUESTS // 2], ordered[REQUESTS * 99 // 100 - 1]


@contextmanager
def waiting_floods(kind: str, base: str, key: str) -> Generator[None]:
    """Keep open streams, or bodies that never come."""
    path = {"streams": "GET /api/v1/run-events", "slow bodies": "POST /api/v1/jobs:bulk"}[kind]
    head = f"{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {key}\r\n"
    head += "Content-Type: application/json\r\nContent-Length: 1000000\r\n\r\n" if kind == "slow bodies" else "\r\n"
    rest = b" " * 900_000 if kind == "slow bodies" else b""
    with ExitStack() as held:
        for _ in range(32):
            one = held.enter_context(socket.create_connection(("127.0.0.1", int(base.rpartition(":")[2])), timeout=60))
            one.sendall(head.encode())
            one.settimeout(0)
            if rest:
                one.send(rest)
        yield


@pytest.mark.parametrize("kind", FLOODS)
def test_flood_of_one_tenant_leaves_another_its_times(fleet: Fleet, kind: str) -> None:
    database, port = fleet.database, free_port()
    database.execute("INSERT INTO tenants (tenant) VALUES ('acme')")
    for tenant in ("default", "acme"):
        database.apply_batch(submission() | {"tenant": tenant})
    fleet.start("api", API_PORT=str(port), API_TOKEN=TOKEN, API_CONNECTIONS_PER_ADDRESS="500")
    fleet.wait_started()
    base = f"http://127.0.0.1:{port}"
    own = created(database, rate=None if kind == "bulks" else 1000)
    other = created(database, tenant="acme", rate=10_000)
    figures(base, other)  # warms up
    quiet = figures(base, other)
    over = Event()
    with ExitStack() as held:
        if kind == "locked rows":
            tidewheel.enqueue(held.enter_context(database.transaction()), "job", request_id="R")
        if kind in {"streams", "slow bodies"}:
            held.enter_context(waiting_floods(kind, base, own))
            flooded = figures(base, other)
        else:
            with ThreadPoolExecutor(32) as threads:
                flooding = [threads.submit(flood, kind, base, own, over) for _ in range(32)]
                try:
                    flooded = figures(base, other)
                finally:
                    over.set()
                assert [each.result() for each in flooding] == [None] * 32
    factor = flooded[0] / quiet[0]
    _LOG.info("%s: p50 %.1f times the quiet one of %.4f s, p99 %.3f s", kind, factor, quiet[0], flooded[1])
    assert flooded[0] <= max(3 * quiet[0], 0.05)  # the clients share the machine, and their interpreter, with the flood
    assert flooded[1] <= max(0.5, 3 * quiet[1])


@pytest.mark.parametrize(("kind", "floor_seconds"), [("bulks", 0.2), ("cancellations", 0.2), ("triggers", 0.4)])
def test_flood_of_one_tenant_leaves_another_its_starts(fleet: Fleet, kind: str, floor_seconds: float) -> None:
    """Start a tenant's timers on time beside requests of another, whose triggers executors also run."""
    database, port = fleet.database, free_port()
    database.execute("INSERT INTO tenants (tenant) VALUES ('acme')")
    database.apply_batch(submission(target="note"))
    timers = [submission(key=f"timer-{n}", schedule="@every 1s", target="note") | {"tenant": "acme"} for n in range(20)]
    database.apply_batch(*timers)
    for role in ROLES:
        fleet.start(role, LEASE=LONG_LEASE)
    fleet.start("api", API_PORT=str(port), API_TOKEN=TOKEN)
    fleet.wait_started()
    quiet = lateness_of(fleet, "acme")
    over, base = Event(), f"http://127.0.0.1:{port}"
    key = created(database, rate=10_000 if kind == "cancellations" else None)
    with ThreadPoolExecutor(12) as threads:
        flooding = [threads.submit(flood, kind, base, key, over) for _ in range(12)]
        try:
            flooded = lateness_of(fleet, "acme")
        finally:
            over.set()
        assert [each.result() for each in flooding] == [None] * 12
    _LOG.info("starts beside %s: p90 %.3f s, and %.3f s quiet", kind, flooded, quiet)
    assert flooded <= max(floor_seconds, 2 * quiet)


def lateness_of(fleet: Fleet, tenant: str) -> float:
    """Return the p90 of the lateness, in seconds, of 400 starts of a tenant."""
    since = fleet.database.value("SELECT tidewheel_now()")
    fleet.until(lambda: fleet.database.value(_STARTS, (tenant, since)) is not None, "400 runs have started")
    return float(fleet.database.value(_STARTS, (tenant, since)))


_STARTS = """
    SELECT CASE WHEN count(*) >= 400
                THEN extract(epoch FROM percentile_cont(0.9) WITHIN GROUP (ORDER BY started_at - scheduled_at)) END
      FROM runs WHERE tenant = %s AND scheduled_at > %s AND started_at IS NOT NULL
"""
