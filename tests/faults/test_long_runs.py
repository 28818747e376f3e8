"""A long run survives rebalances, restarts of the broker and the database, and poll timeouts.

Here everything that takes minutes in production takes seconds; nothing in it depends on how long the run lasts.
"""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import LiteralString

import pytest

from tests.faults.own_server import fleet_on, own_stack, restart, serves
from tests.faults.workload import ATTEMPTS, DOOMED, Held, Workload, now
from tests.fixtures.oracle import Oracle
from tests.fixtures.services import HANDLERS, Fleet
from tidewheel.clock import monotonic_seconds
from tidewheel.local.stack import LocalStack
from tidewheel.runs import AttemptOutcome

pytestmark = [pytest.mark.postgres, pytest.mark.kafka, pytest.mark.slow]

TARGETS = ("marathon", "marathon-sync", "marathon-process")
LEASE = "PT6S"  # longer than the pauses between two tries of a heartbeat that finds no server
MAX_POLL_SECONDS = 11.0  # above the 10 s after which a member of a classic group is given up
MODULES = f"{HANDLERS},tests.faults.long_handlers"
LAPS: LiteralString = "SELECT convert_from(progress, 'UTF8')::int FROM run_inputs WHERE run_id = %s"


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    """A PostgreSQL and a broker of these tests' own."""
    with own_stack(tmp_path_factory.mktemp("servers")) as local:
        yield local


@pytest.fixture
def fleet(servers: LocalStack, tmp_path: Path) -> Iterator[Fleet]:
    """Services on those servers."""
    with fleet_on(servers, tmp_path) as made:
        yield made


def begin(fleet: Fleet, oracle: Oracle, target: str) -> Held:
    """A run that goes on until it is let go, and would be timed out if it did not beat."""
    gate = fleet.folder / f"gate-{target}"
    job = {"key": target, "schedule": "manual", "target": target, "payload": str(gate), "heartbeat": "20s"}
    fleet.ask({"type": "job.submit", "job": job})
    request_id = fleet.ask({"type": "job.trigger", "key": target})
    fleet.flush()
    return Held(fleet, oracle, target, request_id, gate)


def laps(fleet: Fleet, held: Held) -> int:
    """Return the reported progress of a run."""
    found = fleet.database.rows(LAPS, [held.run_id])
    return int(found[0][0]) if found and found[0][0] is not None else 0


def wait_on_their_way(fleet: Fleet, runs: list[Held]) -> None:
    """Wait until each has reported further laps."""
    before = {held.key: laps(fleet, held) for held in runs}
    fleet.until(lambda: all(laps(fleet, held) > before[held.key] for held in runs), "all go on, and say so")


def test_long_run_survives_restarts_in_one_attempt(
    servers: LocalStack, fleet: Fleet, oracle: Oracle, work: Workload
) -> None:
    fleet.start_all("intake", "scheduler", "relay")
    # Full all the while: it only polls so that the broker does not give it up.
    poll = str(int(MAX_POLL_SECONDS * 1000))
    settings = {"HANDLERS": MODULES, "LEASE": LEASE}
    fleet.start("executor", SLOTS=str(len(TARGETS)), KAFKA_CONFIG_MAX_POLL_INTERVAL_MS=poll, **settings)
    runs = [begin(fleet, oracle, target) for target in TARGETS]
    for held in runs:
        held.wait_begun(1)
    full_since = monotonic_seconds()
    work.submit()

    neighbour = fleet.start("executor", **settings)  # the group rebalances
    work.wait_recovered_but(runs, now())
    wait_on_their_way(fleet, runs)

    servers.broker(1).kill()
    try:
        wait_on_their_way(fleet, runs)
    finally:
        servers.broker(1).launch()
    fleet.until(lambda: serves(fleet), "the broker serves again")
    work.trigger("errand", 3)
    work.wait_recovered_but(runs, now())

    restart(servers, away=timedelta(seconds=2))
    wait_on_their_way(fleet, runs)

    neighbour.terminate()  # and rebalances again
    fleet.start("executor", **settings)
    work.trigger("errand", 3)
    work.wait_recovered_but(runs, now())
    fleet.until(
        lambda: monotonic_seconds() - full_since > MAX_POLL_SECONDS + 2, "the time between two polls has passed"
    )
    wait_on_their_way(fleet, runs)

    for held in runs:
        held.let_go()
    work.finish()
    fleet.stop()
    oracle.check(failures=DOOMED, attempts=ATTEMPTS)
    for held in runs:
        assert held.attempts() == [(1, AttemptOutcome.SUCCEEDED)]
        assert held.begun() == [1]
