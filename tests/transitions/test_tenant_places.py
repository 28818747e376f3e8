"""Runs of a tenant in flight: no more than the limit, counted when it begins, passed on by each end."""

from contextlib import closing
from datetime import timedelta
from typing import LiteralString
from uuid import UUID

import pytest

from tests.fixtures.acts import EXECUTOR, ending, submission
from tests.fixtures.database import ClockedDatabase, Database
from tests.fixtures.services import until
from tests.transitions.test_run_keys import limit_tenant
from tidewheel.control.client.client import Client
from tidewheel.control.reads.waits import read_waits
from tidewheel.executor.claim import Claimer
from tidewheel.ids import tenant_key_id
from tidewheel.postgres.session import UNIFORM
from tidewheel.process.service import Shutdown
from tidewheel.runs import RunState
from tidewheel.scheduler.concurrency_keys import KeyRepair
from tidewheel.transitions.after_end import apply_deferred_effects
from tidewheel.transitions.claim import Started
from tidewheel.transitions.finish import finish_runs
from tidewheel.transitions.run_keys import COUNTED_FOR

COUNTERS = "SELECT running, unclaimed, has_waiters FROM run_keys WHERE key = ''"
# The locks of a repair of this release, and of 0.1.
REPAIRING: tuple[LiteralString, ...] = (
    "SELECT FROM settings WHERE name = 'shards' FOR NO KEY UPDATE",
    "SELECT pg_advisory_xact_lock(hashtext('tidewheel.tenant_repair'))",
)


class Executor:
    def __init__(self, database: Database) -> None:
        self.database = database
        database.register()
        session = database.session("executor", options=UNIFORM)
        self.claimer = Claimer(
            session, database.installation, EXECUTOR, Shutdown(), lease_lost=lambda: None, notify=lambda _: None
        )

    def claim(self, *runs: UUID, tenant: str | None = "default") -> list[Started]:
        claims = [self.database.requested_claim(run)._replace(tenant=tenant) for run in runs]
        return list(self.claimer.claim(claims, source="message").started)


@pytest.mark.parametrize("tenant", ["default", None])
def test_runs_beyond_the_limit_wait_and_an_end_starts_the_oldest(with_job: Database, tenant: str | None) -> None:
    limit_tenant(with_job, 2)
    executor = Executor(with_job)
    runs = [with_job.trigger() for _ in range(4)]
    started = executor.claim(*runs, tenant=tenant)
    assert [one.run_id for one in started] == runs[:2]
    assert [with_job.open_run(run).state for run in runs] == ["running", "running", "buffered", "buffered"]
    assert with_job.rows(COUNTERS) == [(2, 0, True)]
    with_job.succeed(started[0])
    assert with_job.open_run(runs[2]).state == "queued"
    assert with_job.rows(COUNTERS) == [(2, 1, True)]
    newcomer = with_job.trigger()
    assert executor.claim(newcomer) == []
    [third] = executor.claim(runs[2])
    assert with_job.within(read_waits, [runs[3]])[runs[3]].code == "tenant"
    for one in (started[1], third):
        with_job.succeed(one)
    for one in executor.claim(runs[3], newcomer):
        with_job.succeed(one)
    assert with_job.rows(COUNTERS) == [(0, 0, False)]


def test_other_tenants_are_not_counted_and_a_lifted_limit_lets_all_start(database: Database) -> None:
    with Client(database.url) as client:
        client.tenants.create("acme", in_flight=1)
        database.submit()
        database.accept(submission() | {"tenant": "acme"})
        executor = Executor(database)
        assert len(executor.claim(*[database.trigger() for _ in range(3)])) == 3
        runs = [database.trigger(tenant="acme") for _ in range(3)]
        assert len(executor.claim(*runs, tenant="acme")) == 1
        client.tenants.limit("acme", in_flight=None)
    assert [database.open_run(run).state for run in runs] == ["running", "queued", "queued"]
    assert len(executor.claim(*runs[1:], tenant="acme")) == 2


def test_run_keeps_the_place_of_its_key_while_it_waits_for_its_tenant(database: Database) -> None:
    database.submit("keyed", concurrency_key={"key": "k", "at_once": 1})
    database.submit()
    limit_tenant(database, 1)
    executor = Executor(database)
    [busy] = executor.claim(database.trigger())
    first, second = database.trigger("keyed"), database.trigger("keyed")
    assert executor.claim(first, second) == []
    waits = dict(database.rows("SELECT run_id, waits_for FROM job_runs WHERE state = 'buffered'"))
    assert waits[first] == tenant_key_id("default")
    assert waits[second] not in {None, tenant_key_id("default")}
    database.succeed(busy)
    [started] = executor.claim(first)
    database.succeed(started)
    [started] = executor.claim(second)
    database.succeed(started)
    assert database.rows("SELECT * FROM run_keys WHERE running <> 0 OR unclaimed <> 0 OR has_waiters") == []


def test_count_of_started_runs_goes_on_where_the_step_before_stopped(
    clocked: ClockedDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidewheel.transitions.run_keys._MAX_READ", 2)
    monkeypatch.setattr("tidewheel.scheduler.concurrency_keys._MAX_READ", 4)
    clocked.stop_clock()
    clocked.submit()
    started = [clocked.begun() for _ in range(7)]
    limit_tenant(clocked, 3)
    repair = KeyRepair(clocked.session(), clocked.installation)
    found: list[int] = []
    for _ in range(4):
        repair.count_started_runs()
        found.append(clocked.value("SELECT running FROM run_keys WHERE key = ''"))
    assert found == [2, 4, 6, 7]
    clocked.advance(COUNTED_FOR + timedelta(seconds=1))
    for _ in range(4):
        assert clocked.value("SELECT in_flight_since FROM tenants WHERE tenant = 'default'") is not None
        repair.count_started_runs()
    assert clocked.value("SELECT in_flight_since FROM tenants WHERE tenant = 'default'") is None
    for one in started:
        clocked.succeed(one)
    assert clocked.rows(COUNTERS) == [(0, 0, False)]


def test_runs_that_started_before_the_limit_are_counted(clocked: ClockedDatabase) -> None:
    clocked.submit()
    before = [clocked.begun() for _ in range(2)]
    limit_tenant(clocked, 2)
    repair = KeyRepair(clocked.session(), clocked.installation)
    repair.count_started_runs()
    assert clocked.rows(COUNTERS) == [(2, 0, False)]
    executor = Executor(clocked)
    run = clocked.trigger()
    assert executor.claim(run) == []
    late = clocked.begun()  # by an executor whose list of tenants is old
    repair.count_started_runs()
    assert clocked.rows(COUNTERS) == [(3, 0, True)]
    clocked.advance(COUNTED_FOR + timedelta(seconds=1))
    repair.count_started_runs()
    assert clocked.value("SELECT in_flight_since FROM tenants WHERE tenant = 'default'") is None
    for one in (*before, late):
        clocked.succeed(one)
    assert clocked.open_run(run).state == "queued"
    assert len(clocked.requests()) == 5
    clocked.advance(timedelta(minutes=11))
    for one in executor.claim(run):
        clocked.succeed(one)
    repair.repair()
    assert clocked.rows(COUNTERS) == [(0, 0, False)]


def test_wrong_count_of_runs_in_flight_is_repaired_and_lets_waiting_runs_start(with_job: Database) -> None:
    limit_tenant(with_job, 2)
    executor = Executor(with_job)
    runs = [with_job.trigger() for _ in range(4)]
    started = executor.claim(*runs)
    repair = KeyRepair(with_job.session(), with_job.installation)
    assert repair.repair_tenants() == 0
    assert with_job.rows(COUNTERS) == [(2, 0, True)], "what is right stays"
    # As a restore of an older copy of the table leaves it.
    with_job.execute("UPDATE run_keys SET running = 7, unclaimed = 1, has_waiters = false")
    assert repair.repair_tenants() == 0
    assert with_job.rows(COUNTERS) == [(2, 0, True)]
    with_job.within(finish_runs, with_job.installation, [ending(started[0], RunState.SUCCEEDED)], lasting=True)
    with_job.execute("UPDATE run_keys SET running = 0")
    assert repair.repair_tenants() == 0
    assert with_job.rows(COUNTERS) == [(2, 0, True)], "the deferred effect of an end holds its place"
    with_job.execute("DELETE FROM run_keys")
    with_job.within(apply_deferred_effects, with_job.installation)
    assert repair.repair_tenants() == 1
    assert with_job.rows("SELECT at_once, running, unclaimed FROM run_keys") == [(2, 2, 1)]
    for one in (started[1], *executor.claim(runs[2])):
        with_job.succeed(one)
    for one in executor.claim(runs[3]):
        with_job.succeed(one)
    assert with_job.rows(COUNTERS) == [(0, 0, False)]
    with_job.execute("UPDATE run_keys SET running = 5")
    for lock in REPAIRING:
        with with_job.transaction() as connection:  # of another scheduler, which has not committed yet
            connection.execute(lock)
            repair.repair_tenants()
            assert with_job.rows(COUNTERS) == [(5, 0, False)], "it would be added twice"
    with closing(KeyRepair(with_job.session("background"), with_job.installation)) as walking:
        until(lambda: not walking.step(repairs=True) and with_job.rows(COUNTERS) == [(0, 0, False)], "it is repaired")
