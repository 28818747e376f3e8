"""A scheduler is killed at each step of a drain: each job still runs once in each occurrence."""

import pytest

from tests.fixtures.oracle import Oracle
from tests.fixtures.services import Fleet
from tests.transitions.acts import apply_batch, submission

pytestmark = [pytest.mark.postgres, pytest.mark.kafka, pytest.mark.slow]

ROOTS = 5
AFTER = {"b": ["a"], "c": ["a"], "d": ["b", "c"], "e": ["d"]}
GRAPH: dict[str, object] = {"a": "manual", **{key: {"after": parents} for key, parents in AFTER.items()}}
POINTS = ("taken", "locked", "marked", "written", "before_commit", "after_commit")


def test_killed_drain_is_continued_by_the_next_scheduler(fleet: Fleet, oracle: Oracle) -> None:
    # In one transaction: requests of different keys have no order on the topic.
    apply_batch(fleet.database, *(submission(key, schedule=of, target="note") for key, of in GRAPH.items()))
    for _ in range(ROOTS):
        fleet.ask({"type": "job.trigger", "key": "a"})
    fleet.flush()
    fleet.start_all("intake", "relay", "executor")
    oracle.wait_answered()
    for point in POINTS:
        fleet.start("scheduler", failpoint=f"draining.{point}:exit:1").wait_killed()
    fleet.start("scheduler")
    fleet.until(lambda: ended(fleet) == ROOTS, "the occurrences have ended")
    runs = fleet.database.rows("SELECT count(*), count(DISTINCT (workflow_run_id, job_id)) FROM finished_runs")
    assert runs == [(5 * ROOTS, 5 * ROOTS)]
    assert fleet.database.rows("SELECT DISTINCT state FROM finished_runs") == [("succeeded",)]
    for table in ("job_runs", "releases", "joins"):
        assert fleet.database.count(table) == 0, table


def ended(fleet: Fleet) -> int:
    return fleet.database.value("SELECT count(*) FROM workflows WHERE state = 'succeeded'")
