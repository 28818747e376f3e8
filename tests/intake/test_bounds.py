"""max_runs and bounds count from the first acceptance; jitter changes no run id."""

from datetime import datetime, timedelta

import pytest

from tests.fixtures.acts import about, submission
from tests.fixtures.database import ClockedDatabase
from tests.scheduler.firing import fire_due
from tidewheel.jobs.parsing import RequestRefused
from tidewheel.schemas.generated.records import Reply

SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)


@pytest.fixture
def still(clocked: ClockedDatabase) -> ClockedDatabase:
    clocked.stop_clock()
    return clocked


def refused(database: ClockedDatabase, **job: object) -> list[tuple[str, str]]:
    try:
        [reply] = database.apply_batch(submission("job", **job))
    except RequestRefused as error:
        return [(each.path, each.problem) for each in error.errors]
    return [(each.path, each.problem) for each in reply.errors]


def instants(database: ClockedDatabase) -> list[datetime]:
    return [at for (at,) in database.rows("SELECT scheduled_at FROM runs ORDER BY scheduled_at")]


def run_for(database: ClockedDatabase, hours: int) -> None:
    for _ in range(hours):
        database.advance(HOUR)
        fire_due(database)


def test_nth_occurrence_is_the_last_and_finishes_the_job(still: ClockedDatabase) -> None:
    still.submit(schedule="@every 1h", max_runs=3, overlap="allow_all")
    run_for(still, 5)
    assert len(instants(still)) == 3
    assert still.value("SELECT finished_at IS NOT NULL FROM jobs")


def test_max_runs_counts_skipped_occurrences_and_no_triggers(still: ClockedDatabase) -> None:
    still.submit(schedule="@every 1h", max_runs=4, overlap="allow_all")
    still.apply_batch({"type": "job.trigger", "key": "job"})
    still.advance(2 * HOUR + 30 * 60 * SECOND)
    run_for(still, 4)
    timers = still.rows("SELECT count(*) FROM runs WHERE cause = 'timer'")
    assert timers == [(2,)]
    assert still.rows("SELECT reason, occurrences FROM skips") == [("misfire", 2)]


def test_edited_max_runs_counts_from_the_first_acceptance(still: ClockedDatabase) -> None:
    still.submit(schedule="@every 1h", max_runs=5, overlap="allow_all")
    run_for(still, 2)
    still.submit(schedule="@every 1h", max_runs=3, overlap="allow_all")
    run_for(still, 4)
    assert len(instants(still)) == 3


def test_edit_to_fewer_max_runs_than_fired_is_refused(still: ClockedDatabase) -> None:
    still.submit(schedule="@every 1h", max_runs=5, overlap="allow_all")
    run_for(still, 3)
    [(path, problem)] = refused(still, schedule="@every 1h", max_runs=2)
    assert path == "job.end_at"
    assert "has passed" in problem


def test_recreated_job_counts_max_runs_from_zero(still: ClockedDatabase) -> None:
    still.submit(schedule="@every 1h", max_runs=2, overlap="allow_all")
    run_for(still, 2)
    still.apply_batch(about("job.delete"))
    still.submit(schedule="@every 1h", max_runs=2, overlap="allow_all")
    run_for(still, 4)
    assert len(instants(still)) == 4


@pytest.mark.parametrize(
    ("job", "path"),
    [
        ({"schedule": "@every 1s", "max_runs": 10**12}, "job.max_runs"),
        ({"schedule": {"fixed_delay": "1m"}, "max_runs": 3}, "job.max_runs"),
        ({"schedule": "manual", "max_runs": 3}, "job.max_runs"),
        ({"schedule": "@every 1h", "max_runs": 0}, "job.max_runs"),
        ({"schedule": "@every 1h", "jitter": "101%"}, "job.jitter"),
        ({"schedule": "@every 1h", "jitter": "25h"}, "job.jitter"),
        ({"schedule": "@every 1h", "window": "0s"}, "job.window"),
        ({"schedule": "@every 1h", "pause_on_failure": 0}, "job.pause_on_failure"),
    ],
)
def test_invalid_field_is_refused_by_its_path(still: ClockedDatabase, job: dict[str, object], path: str) -> None:
    assert [found for found, _ in refused(still, **job)] == [path]


def test_identical_submit_of_a_finished_job_changes_nothing(still: ClockedDatabase) -> None:
    end_at = (still.now() + 90 * 60 * SECOND).isoformat()
    still.submit(schedule="@every 1h", end_at=end_at)
    run_for(still, 3)
    again: Reply = still.submit(schedule="@every 1h", end_at=end_at)
    assert (again.unchanged, again.next_run_at) == (True, None)


def test_jitter_delays_publish_at_and_not_the_instant(still: ClockedDatabase) -> None:
    still.stop_clock(datetime.fromisoformat("2031-01-01T00:00:00Z"))
    for number in range(20):
        still.submit(f"job-{number}", schedule={"cron": "0 * * * *"}, jitter="10m")
    still.advance(HOUR - SECOND)
    fire_due(still, lookahead=5 * SECOND)
    runs = still.job_runs()
    assert {run.scheduled_at for run in runs} == {datetime.fromisoformat("2031-01-01T01:00:00Z")}
    delays = {run.publish_at - run.scheduled_at for run in runs}
    assert len(delays) == 20
    assert all(timedelta(0) <= delay < timedelta(minutes=10) for delay in delays)


def test_if_version_guards_an_edit(still: ClockedDatabase) -> None:
    def change(if_version: int, **job: object) -> tuple[str, str | None]:
        [reply] = still.apply_batch(submission("job", **job) | {"if_version": if_version})
        return reply.status.value, reply.code

    assert change(3, schedule="@every 1h") == ("rejected", "version_conflict")
    assert still.count("jobs") == 0
    assert change(0, schedule="@every 1h") == ("accepted", None)
    assert change(0, schedule="@every 2h") == ("rejected", "version_conflict")
    assert change(1, schedule="@every 2h") == ("accepted", None)
    assert change(1, schedule="@every 3h") == ("rejected", "version_conflict")
