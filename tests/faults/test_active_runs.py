"""Buffered runs still run one after another while claiming and ending processes are killed."""

from datetime import datetime
from itertools import pairwise
from typing import LiteralString

import pytest

from tests.fixtures.oracle import Oracle
from tests.fixtures.services import Fleet
from tidewheel.schemas.generated.records import RunStatus

pytestmark = [pytest.mark.postgres, pytest.mark.kafka, pytest.mark.slow]

JOBS = ("first", "second")
EACH = 6
SPANS: LiteralString = """
SELECT a.started_at, a.finished_at
  FROM ended_attempts AS a JOIN runs AS r USING (run_id) JOIN jobs AS j USING (job_id)
 WHERE j.key = %s
 ORDER BY a.started_at
"""
POINTS = {
    "claim.before_commit": 3,
    "claim.after_commit": 3,
    "completion.before_commit": 2,
    "completion.after_commit": 2,
}


def submit_and_trigger(fleet: Fleet) -> None:
    """Jobs whose runs wait for each other, and triggers for all of them at once."""
    for key in JOBS:
        fleet.ask({"type": "job.submit", "job": {"key": key, "schedule": "manual", "target": "note"}})
    for number in range(EACH):
        for key in JOBS:
            trigger = {"type": "job.trigger", "key": key, "overlap": "buffer_all", "payload": {"number": number}}
            fleet.ask(trigger)
    fleet.flush()


def done(oracle: Oracle) -> bool:
    if not oracle.answered():
        return False
    return sum(c.status is RunStatus.SUCCEEDED for c in oracle.completed().values()) == EACH * len(JOBS)


@pytest.mark.parametrize("point", sorted(POINTS))
def test_active_run_is_transferred_when_killed(point: str, fleet: Fleet, oracle: Oracle) -> None:
    submit_and_trigger(fleet)
    fleet.start_all("intake", "scheduler", "relay")
    doomed = fleet.start("executor", failpoint=f"{point}:exit:{POINTS[point]}")
    doomed.wait_killed()
    fleet.start("executor")
    fleet.start("executor")
    fleet.wait_started()
    fleet.until(lambda: done(oracle), "every run has been active")
    oracle.wait_settled()
    fleet.kill()
    oracle.check()
    for key in JOBS:
        spans: list[tuple[datetime, datetime]] = [(a, b) for a, b in fleet.database.rows(SPANS, [key])]
        assert len(spans) >= EACH
        assert all(earlier[1] <= later[0] for earlier, later in pairwise(spans))
