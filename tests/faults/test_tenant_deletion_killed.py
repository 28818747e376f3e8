"""A scheduler is killed while it deletes a tenant; the next one leaves no row of the tenant."""

from datetime import timedelta

import pytest

from tests.fixtures.services import Fleet
from tests.scheduler.test_tenant_deletions import rows_by_table
from tidewheel.control.client.client import Client

pytestmark = [pytest.mark.postgres, pytest.mark.kafka, pytest.mark.slow]


@pytest.mark.parametrize("visit", [2, 8])  # while it stops jobs and runs, and while it removes rows
@pytest.mark.parametrize("point", ["deleting.before_commit", "deleting.after_commit"])
def test_killed_deletion_is_continued_by_the_next_scheduler(point: str, visit: int, fleet: Fleet) -> None:
    database = fleet.database
    with Client(database.url) as client:
        client.tenants.create("acme")
        job = {"schedule": "@every 1s", "target": "note", "overlap": "allow_all"}
        for tenant in ("acme", "default"):
            for number in range(5):
                fleet.ask({"type": "job.submit", "tenant": tenant, "job": {"key": f"each/{number}", **job}})
        fleet.flush()
        fleet.start_all("intake", "relay", "executor")
        first = fleet.start("scheduler")
        fleet.until(lambda: rows_by_table(database, "acme").get("finished_runs", 0) > 10, "runs have ended")
        first.terminate()
        doomed = fleet.start("scheduler", failpoint=f"{point}:exit:{visit}")
        client.tenants.delete("acme", grace=timedelta(0))
        for _ in range(20):
            fleet.ask({"type": "job.trigger", "tenant": "acme", "key": "each/1"})
        fleet.flush()
        doomed.wait_killed()
        assert client.tenants.get("acme").state == "deleting"
        fleet.start("scheduler")
        fleet.until(lambda: client.tenants.get("acme").state == "deleted", "the tenant is deleted")
        assert rows_by_table(database, "acme") == {}
        removed = client.tenants.get("acme").deletion
        assert removed is not None
        assert removed.removed["finished_runs"] > 10
        before = rows_by_table(database, "default")["finished_runs"]
        fleet.until(lambda: rows_by_table(database, "default")["finished_runs"] > before, "the other tenant goes on")
