"""PostgreSQL crashes and comes back while everything is under way: it costs time, and nothing else.

No attempt is repeated or lost, no request is refused, nothing is quarantined, and nothing is left behind. These tests
have a server of their own, for everything else would feel the restart too.
"""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import LiteralString

import pytest
from psycopg import sql

from tests.faults.own_server import fleet_on, own_server, restart
from tests.faults.workload import ATTEMPTS, DOOMED, Workload, now
from tests.fixtures.oracle import Oracle
from tests.fixtures.services import HANDLERS, LONG_LEASE, Fleet
from tidewheel.local.stack import LocalStack, StackInfo

pytestmark = [pytest.mark.postgres, pytest.mark.kafka, pytest.mark.slow]

CLAIMERS = {"tidewheel-executor-standard", "tidewheel-executor-sweep"}

WAITING: LiteralString = """
SELECT DISTINCT application_name FROM pg_stat_activity
 WHERE datname = current_database() AND (wait_event_type = 'Lock' OR wait_event = 'SyncRep')
"""
STATES: LiteralString = """
SELECT DISTINCT state || CASE WHEN publish_at > tidewheel_now() THEN ', later' ELSE '' END FROM job_runs
"""


@pytest.fixture(scope="module")
def server(info: StackInfo, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    """A PostgreSQL of these tests' own."""
    with own_server(info, tmp_path_factory.mktemp("server")) as local:
        yield local


@pytest.fixture
def fleet(server: LocalStack, tmp_path: Path) -> Iterator[Fleet]:
    """Services on that server."""
    with fleet_on(server, tmp_path) as made:
        yield made


def end_checkpoint(fleet: Fleet) -> None:
    """End a checkpoint that is under way: until then the checkpointer does not apply `answers_lost`."""
    fleet.database.execute("CHECKPOINT")


@contextmanager
def answers_lost(fleet: Fleet) -> Generator[None]:
    """With a standby that never answers, a COMMIT is durable and its answer never arrives."""
    fleet.database.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
    fleet.database.execute("SELECT pg_reload_conf()")
    try:
        yield
    finally:  # or the next test's CREATE DATABASE waits for ever
        fleet.database.execute("ALTER SYSTEM RESET synchronous_standby_names")
        fleet.database.execute("SELECT pg_reload_conf()")


def waiting(fleet: Fleet) -> set[str]:
    """Whose statement or COMMIT the server holds up."""
    return {str(name) for (name,) in fleet.database.rows(WAITING)}


def test_runs_survive_a_database_restart_in_their_attempt(
    server: LocalStack, fleet: Fleet, oracle: Oracle, work: Workload
) -> None:
    work.submit()
    held, held_sync = work.hold(), work.hold("gated-sync")
    # Longer than the pauses between two tries of a heartbeat that finds no server, which grow to 5 s.
    lease = timedelta(seconds=6)
    fleet.start_all(SLOTS="6", LEASE=f"PT{lease.seconds}S")
    held.wait_begun(1)
    held_sync.wait_begun(1)
    slow_retry = {"max_attempts": 2, "backoff": "fixed", "initial": "8s", "jitter": "0%"}
    for job in (
        {"key": "shaky-slow", "schedule": "manual", "target": "shaky", "retry": slow_retry},
        {"key": "late", "schedule": "manual", "target": "late"},
    ):
        fleet.ask({"type": "job.submit", "job": job})
        fleet.ask({"type": "job.trigger", "key": job["key"]})
    work.trigger_later(timedelta(seconds=8))
    states = {"running", "retrying, later", "queued", "queued, later"}
    fleet.until(lambda: {str(s) for (s,) in fleet.database.rows(STATES)} >= states, f"there are runs {states}")
    restart(server, away=lease)  # no reaper could watch any counter meanwhile, so no executor is lost
    held.let_go()
    held_sync.let_go()
    fleet.start("executor", HANDLERS=f"{HANDLERS},tests.faults.late_handlers", LEASE=f"PT{lease.seconds}S")
    work.trigger("errand", 20)  # more than there are slots: none of them was lost either
    work.wait_recovered(now())
    work.finish()
    fleet.stop()
    oracle.check(failures=DOOMED, attempts={**ATTEMPTS, "shaky-slow": 2})
    assert fleet.database.count("executors") == 0


@dataclass(frozen=True)
class Step:
    """A step held up in the middle of its transaction: by which table, and whose it is."""

    table: str
    applications: frozenset[str]


STEPS = {
    "intake": Step("requests", frozenset({"tidewheel-intake"})),
    "firing": Step("timers", frozenset({"tidewheel-scheduler"})),
    "relay": Step("outbox", frozenset({"tidewheel-relay-delete"})),
    "claim": Step("job_runs", frozenset(CLAIMERS)),
    "completion": Step("finished_runs", frozenset({"tidewheel-executor-complete"})),
}


@pytest.mark.parametrize("step", STEPS)
def test_interrupted_step_is_repeated_once(
    step: str, server: LocalStack, fleet: Fleet, oracle: Oracle, work: Workload
) -> None:
    work.submit()
    fleet.start_all(LEASE=LONG_LEASE)
    work.wait_recovered(now())
    # Something that leaves and is claimed when nothing new can be written.
    work.trigger_later(timedelta(seconds=3))
    # Not written to until the crash releases the lock; readers continue.
    lock = sql.SQL("LOCK TABLE {} IN SHARE MODE").format(sql.Identifier(STEPS[step].table))
    fleet.database.connection().execute(lock)
    work.trigger("errand", 3)
    fleet.until(lambda: waiting(fleet) & STEPS[step].applications, f"{step} is held up in its transaction")
    restart(server)
    work.wait_recovered(now())
    work.finish()
    fleet.stop()
    oracle.check(failures=DOOMED, attempts=ATTEMPTS)


def test_lost_answer_of_a_commit_is_not_repeated(
    server: LocalStack, fleet: Fleet, oracle: Oracle, work: Workload
) -> None:
    work.submit()
    held = work.hold()
    # Heartbeats hang too: a relay that takes itself for dead publishes nothing, and then has nothing to delete.
    fleet.start_all(LEASE=LONG_LEASE, MEMBER_TIMEOUT=LONG_LEASE)
    held.wait_begun(1)
    end_checkpoint(fleet)
    work.trigger_later(timedelta(seconds=8))
    with answers_lost(fleet):
        work.trigger("errand", 3)
        held.let_go()
        others = {"tidewheel-intake", "tidewheel-scheduler", "tidewheel-relay-delete", "tidewheel-executor-complete"}
        fleet.until(lambda: waiting(fleet) >= others and waiting(fleet) & CLAIMERS, "every COMMIT hangs")
        restart(server)
    work.wait_recovered(now())
    work.finish()
    fleet.stop()
    oracle.check(failures=DOOMED, attempts=ATTEMPTS)


def test_claim_with_a_long_lost_answer_starts(server: LocalStack, fleet: Fleet, oracle: Oracle, work: Workload) -> None:
    work.submit(recurring=False)
    lease = timedelta(seconds=8)  # longer than the pauses of a heartbeat that finds no server
    fleet.start_all(LEASE=f"PT{lease.seconds}S")
    work.wait_recovered(now())
    end_checkpoint(fleet)
    work.trigger_later(timedelta(seconds=4))
    fleet.until(lambda: fleet.database.count("outbox") == 1, "it waits for its time")
    with answers_lost(fleet):
        fleet.until(lambda: waiting(fleet) & CLAIMERS, "the claim's COMMIT hangs")
        restart(server, away=lease)
    work.wait_recovered(now())
    work.finish()
    fleet.stop()
    oracle.check(failures=DOOMED, attempts=ATTEMPTS)
