"""A scheduler is killed at each step of a drain: each job still runs once in each occurrence."""

import pytest

from tests.fixtures.acts import submission
from tests.fixtures.oracle import Oracle
from tests.fixtures.services import Fleet

pytestmark = [pytest.mark.postgres, pytest.mark.kafka, pytest.mark.slow]

ROOTS = 5
AFTER = {"b": ["a"], "c": ["a"], "d": ["b", "c"], "e": ["d"]}
GRAPH: dict[str, object] = {"a": "manual", **{key: {"after": parents} for key, parents in AFTER.items()}}
POINTS = ("taken", "locked", "marked", "written", "before_commit", "after_commit")


@pytest.mark.parametrize("overlap", ["allow_all", "buffer_all"])
def test_killed_drain_is_continued_by_the_next_scheduler(fleet: Fleet, oracle: Oracle, overlap: str) -> None:
    """With `buffer_all` each drain that ends an occurrence starts the next one."""
    # In one transaction: requests of different keys have no order on the topic.
    given = {key: {"overlap": overlap} if key == "a" else {} for key in GRAPH}
    jobs = [submission(key, schedule=of, target="note", **given[key]) for key, of in GRAPH.items()]
    fleet.database.apply_batch(*jobs)
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
    for table in ("job_runs", "releases", "joins", "active_runs"):
        assert fleet.database.count(table) == 0, table


def ended(fleet: Fleet) -> int:
    return fleet.database.value("SELECT count(*) FROM workflows WHERE state = 'succeeded'")


def test_killed_timeout_is_continued_by_the_next_scheduler(fleet: Fleet, oracle: Oracle) -> None:
    root = submission("a", schedule="manual", target="note", workflow={"timeout": "1s"})
    child = submission("b", schedule={"after": ["a"]}, target="note", queue="without-executors")
    fleet.database.apply_batch(root, child)
    fleet.ask({"type": "job.trigger", "key": "a"})
    fleet.flush()
    fleet.start_all("intake", "relay", "executor")
    oracle.wait_answered()
    for point in ("before_commit", "after_commit"):
        fleet.start("scheduler", failpoint=f"timing_out.{point}:exit:1").wait_killed()
    fleet.start("scheduler")
    ends = "SELECT count(*) FROM workflows WHERE state = 'timed_out'"
    fleet.until(lambda: fleet.database.value(ends) == 1, "the occurrence has timed out")
    assert fleet.database.rows("SELECT state FROM finished_runs ORDER BY state") == [("cancelled",), ("succeeded",)]
    for table in ("job_runs", "releases", "joins"):
        assert fleet.database.count(table) == 0, table
