"""Jumps of the database's clock: forward is an outage of that length, back causes lateness only."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from tests.fixtures.acts import about, submission
from tests.fixtures.database import ClockedDatabase
from tests.fixtures.services import until
from tests.scheduler.firing import DAY, HOUR, MINUTE, SECOND, fire_all
from tests.scheduler.test_loop import running
from tidewheel.postgres.partitions import TABLES

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
EACH_MINUTE: Mapping[str, Any] = {"schedule": {"cron": "* * * * *"}, "overlap": "allow_all"}


@pytest.fixture
def noon(clocked: ClockedDatabase) -> ClockedDatabase:
    clocked.stop_clock(NOON)
    return clocked


def made(database: ClockedDatabase, key: str = "job") -> list[datetime]:
    """The instants of a job that have become runs, each run once."""
    rows = database.rows(
        "SELECT r.scheduled_at FROM runs AS r JOIN jobs AS j USING (job_id) WHERE j.key = %s ORDER BY 1", [key]
    )
    return [at for (at,) in rows]


@pytest.mark.parametrize("jump", [HOUR, 40 * DAY])
def test_clock_jump_forward_is_decided_by_each_jobs_policy(noon: ClockedDatabase, jump: timedelta) -> None:
    for policy in ("fire_once", "skip", "fire_all"):
        noon.submit(policy, catch_up=policy, **EACH_MINUTE)
    noon.advance(jump)
    fire_all(noon)
    latest = NOON + jump
    missed = int(jump / MINUTE)
    assert made(noon, "fire_once") == [latest - MINUTE, latest]
    assert made(noon, "skip") == [latest]
    assert len(made(noon, "fire_all")) == min(missed, 1001)
    recorded = dict(noon.rows("SELECT key, sum(occurrences) FROM skips JOIN jobs USING (job_id) GROUP BY key"))
    for key in ("fire_once", "skip", "fire_all"):
        assert recorded.get(key, 0) + len(made(noon, key)) == missed, key


@pytest.mark.parametrize("jump", [2 * MINUTE, HOUR, 40 * DAY])
def test_clock_jump_back_fires_each_instant_once(noon: ClockedDatabase, jump: timedelta) -> None:
    noon.submit(**EACH_MINUTE)
    noon.advance(MINUTE)
    fire_all(noon)
    before = noon.rows("SELECT run_id, scheduled_at, publish_at, state FROM job_runs")
    noon.advance(-jump)
    fire_all(noon)
    assert noon.rows("SELECT run_id, scheduled_at, publish_at, state FROM job_runs") == before, "written runs stay"
    noon.advance(jump - SECOND)
    fire_all(noon)
    assert made(noon) == [NOON + MINUTE]
    noon.advance(SECOND + MINUTE)
    fire_all(noon)
    assert made(noon) == [NOON + MINUTE, NOON + 2 * MINUTE]
    assert noon.count("skips") == 0


@pytest.mark.parametrize(
    "change",
    [
        [submission(payload={"another": True}, **EACH_MINUTE)],
        [about("job.pause"), about("job.resume")],
        [about("job.delete"), submission(**EACH_MINUTE)],
    ],
    ids=["edit", "pause and resume", "delete and create"],
)
def test_clock_jump_back_and_an_edit_fire_nothing_twice(noon: ClockedDatabase, change: list[dict[str, object]]) -> None:
    """The instants are ahead again, and the timer is set to them; their runs exist already."""
    noon.submit(**EACH_MINUTE)
    ended: list[UUID] = []
    for _ in range(3):
        noon.advance(MINUTE)
        fire_all(noon)
        [run] = noon.job_runs()
        noon.succeed(noon.begin(run.run_id))
        ended.append(run.run_id)
    noon.advance(-HOUR)
    for request in change:
        noon.apply_batch(request)
    noon.advance(HOUR + 2 * MINUTE)
    fire_all(noon)
    instants = made(noon)
    assert instants == sorted(set(instants))
    assert {NOON + number * MINUTE for number in range(1, 4)} <= set(instants)
    assert noon.count("quarantine") == 0
    told = [completion.run_id for completion in noon.completions()]
    assert [told.count(str(run)) for run in ended] == [1, 1, 1]
    assert not {run.run_id for run in noon.job_runs()} & set(ended)


@pytest.mark.parametrize("jump", [55 * DAY, -55 * DAY], ids=["forward", "back"])
def test_clock_jump_of_days_creates_partitions_for_every_run(noon: ClockedDatabase, jump: timedelta) -> None:
    noon.submit(**EACH_MINUTE)
    noon.advance(MINUTE)
    fire_all(noon)
    noon.advance(jump)
    noon.apply_batch(submission("new", **EACH_MINUTE), about("job.trigger", "new"))
    noon.advance(MINUTE)
    fire_all(noon)
    assert noon.now() in made(noon, "new")
    for run in noon.job_runs():
        if run.publish_at <= noon.now():
            noon.succeed(noon.begin(run.run_id))
    assert noon.count("quarantine") == 0


@pytest.mark.parametrize("jump", [55 * DAY, -55 * DAY], ids=["forward", "back"])
def test_scheduler_creates_partitions_by_the_databases_clock(clocked: ClockedDatabase, jump: timedelta) -> None:
    today = clocked.advance(jump)
    wanted = {f"{table}_{today + days * DAY:%Y%m%d}" for table in TABLES for days in range(-1, 4)}
    wanted -= {f"{table}_{today:%Y%m%d}" for table in TABLES}  # the test's clock has made those
    assert not wanted & partitions(clocked)
    with running(clocked):
        until(lambda: wanted <= partitions(clocked), "the partitions are there")


def partitions(database: ClockedDatabase) -> set[str]:
    return {str(name) for (name,) in database.rows("SELECT relname FROM pg_class WHERE relispartition")}
