"""Triggers per second of a tenant: delayed, held, paced, never dropped, in their order."""

from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID, uuid4

import pytest
from psycopg.conninfo import make_conninfo

from tests.fixtures.database import ClockedDatabase, Database
from tests.transitions.acts import apply_batch, job_runs, requests, submit
from tests.transitions.test_rate_ring import most_in
from tidewheel.control.client.client import Client
from tidewheel.postgres.session import connect
from tidewheel.scheduler.key_duties import KeyDuties
from tidewheel.transitions.tenant_rates import TenantRates

TRIGGER = {"type": "job.trigger", "key": "job"}
HELD = "SELECT count(*) FROM job_runs WHERE waits_for IS NOT NULL"


class _Run(NamedTuple):
    run_id: UUID
    tenant: str
    publish_at: datetime


@pytest.fixture
def rated(clocked: ClockedDatabase) -> Iterator[ClockedDatabase]:
    clocked.stop_clock()
    submit(clocked)
    yield clocked
    clocked.installation.rates.close()
    clocked.installation.rates.forget()  # tests share it


def limit(database: ClockedDatabase, rate: float | None) -> None:
    with Client(database.url) as client:
        client.tenants.limit("default", triggers_per_second=rate)
    database.installation.rates.forget()


def flood(database: ClockedDatabase, runs: int) -> None:
    replies = apply_batch(database, *[TRIGGER] * runs)
    assert {reply.status for reply in replies} == {"accepted"}


def test_flood_is_delayed_and_held_and_none_is_lost(rated: ClockedDatabase) -> None:
    limit(rated, 10)
    for _ in range(3):
        flood(rated, 100)
        rated.advance(timedelta(milliseconds=1))
    duties = KeyDuties(rated.session(), rated.installation)
    assert rated.value(HELD) == 300 - 110
    for _ in range(32):
        rated.advance(timedelta(seconds=1))
        duties.pace()
    assert rated.value(HELD) == 0
    due = [run.publish_at for run in job_runs(rated)]
    assert len(due) == 300
    assert max(due[:100]) <= min(due[100:200])
    assert max(due[100:200]) <= min(due[200:])
    assert most_in(timedelta(seconds=1), due) <= 20
    assert most_in(timedelta(seconds=10), due) <= 110
    assert len(requests(rated)) == 300


def test_edit_during_a_backlog_applies_and_a_lifted_rate_queues_all(rated: ClockedDatabase) -> None:
    limit(rated, 1)
    flood(rated, 300)
    duties = KeyDuties(rated.session(), rated.installation)
    held = rated.value(HELD)
    limit(rated, 50)
    for _ in range(2):
        rated.advance(timedelta(seconds=1))
        duties.pace()
    left = rated.value(HELD)
    assert held - left >= 100
    limit(rated, None)
    duties.pace()
    assert rated.value(HELD) == 0
    assert rated.count("tenant_rates") == 0
    assert len(requests(rated)) == 300


def test_runs_under_the_rate_and_of_tenants_without_one_leave_at_once(rated: ClockedDatabase) -> None:
    flood(rated, 5)
    assert rated.count("tenant_rates") == 0
    limit(rated, 10)
    flood(rated, 5)
    assert len({run.publish_at for run in job_runs(rated)}) == 1
    apply_batch(rated, TRIGGER | {"delay": "1h"})
    assert rated.value(HELD) == 1
    flood(rated, 1)
    assert rated.value(HELD) == 1
    duties = KeyDuties(rated.session(), rated.installation)
    assert duties.pace() == 0
    rated.advance(timedelta(minutes=59, seconds=59))
    assert duties.pace() == 1
    [late] = [run for run in job_runs(rated) if run.publish_at > job_runs(rated)[0].publish_at]
    assert late.publish_at == late.scheduled_at


def test_held_run_can_be_cancelled(rated: ClockedDatabase) -> None:
    limit(rated, 1)
    flood(rated, 30)
    [(run,)] = rated.rows("SELECT run_id FROM job_runs WHERE waits_for IS NOT NULL LIMIT 1")
    held = rated.value(HELD)
    apply_batch(rated, {"type": "run.cancel", "run_id": str(run)})
    assert rated.value(HELD) == held - 1


def test_places_are_taken_in_the_schema_of_the_users_search_path(fresh_database: Database) -> None:
    with Client(fresh_database.url) as client:
        client.tenants.limit("default", triggers_per_second=1)
    run = _Run(uuid4(), "default", fresh_database.now())
    fresh_database.execute("ALTER SCHEMA public RENAME TO shop")
    with (
        closing(TenantRates()) as rates,
        closing(connect(make_conninfo(fresh_database.url, options="-c search_path=shop"), "test")) as connection,
    ):
        assert rates.shape(connection, [run]) == ({}, set())
        assert connection.execute("SELECT count(*) FROM tenant_rates").fetchone() == (1,)
