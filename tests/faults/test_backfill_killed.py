"""A scheduler is killed during a backfill and another continues: every instant has one run."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from tests.fixtures.database import Database
from tests.fixtures.oracle import Oracle
from tests.fixtures.services import Fleet
from tests.scheduler.backfills import progress
from tidewheel.ids import job_id, run_id
from tidewheel.runs import Cause

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]

MINUTE = timedelta(minutes=1)
INSTANTS = 40


def succeeded(database: Database, backfill_id: UUID) -> int:
    runs: Any = progress(database, backfill_id).facts["runs"]
    return runs.get("succeeded", 0)


@pytest.mark.parametrize(
    "failpoint",
    [
        "backfilling.before_commit:exit:3",
        pytest.param("backfilling.after_commit:exit:3", marks=pytest.mark.slow),
        pytest.param(None, marks=pytest.mark.slow),
    ],
)
def test_killed_backfill_is_continued_by_the_next_scheduler(
    failpoint: str | None, fleet: Fleet, oracle: Oracle
) -> None:
    last = fleet.database.now().replace(second=0, microsecond=0) - MINUTE
    first = last - (INSTANTS - 1) * MINUTE
    schedule = {"interval": "60s", "anchor": first.isoformat()}
    # Paused, so that its runs are the backfill's alone.
    job = {"key": "tide", "schedule": schedule, "target": "note", "overlap": "allow_all", "paused": True}
    fleet.ask({"type": "job.submit", "job": job})
    asked = fleet.ask(
        {
            "type": "job.backfill", "key": "tide", "from": first.isoformat(), "to": last.isoformat(), "what": "all",
            "versions": "current", "max_concurrent": 8,
        }
    )  # fmt: skip
    fleet.flush()
    fleet.start_all("intake", "relay", "executor")
    oracle.wait_answered()
    backfill_id = UUID(oracle.replies()[asked].backfill_id)
    doomed = fleet.start("scheduler", failpoint=failpoint)
    if failpoint is None:
        fleet.until(lambda: succeeded(fleet.database, backfill_id) >= 8, "some runs have succeeded")
        doomed.kill()
    doomed.wait_killed()
    stands = progress(fleet.database, backfill_id)
    assert 0 < stands.done_count < INSTANTS
    fleet.start("scheduler")
    fleet.until(lambda: progress(fleet.database, backfill_id).state == "finished", "the backfill is finished")
    oracle.wait_settled()
    fleet.kill()
    fleet.promised = {
        str(run_id(job_id("default", "tide"), at, Cause.BACKFILL, backfill_id.bytes, at=stands.created_at))
        for at in (first + number * MINUTE for number in range(INSTANTS))
    }
    findings = oracle.check(attempts={})
    assert findings.runs == INSTANTS
    assert succeeded(fleet.database, backfill_id) == INSTANTS
