"""BulkLoader: batches of a bounded size, and the jobs beside one that the database refuses."""

import json

import pytest
from psycopg import sql

from tests.fixtures.database import Database
from tests.fixtures.services import until
from tidewheel.control.client.bulk_load import BATCH_BYTES, LOAD_BATCH, BulkLoader, JobText, batches
from tidewheel.postgres.notify import Channel


def job(number: int) -> JobText:
    return JobText(f"jobs:{number}", json.dumps({"key": f"job-{number}", "schedule": "manual", "target": "x"}).encode())


def test_batch_is_limited_in_jobs_and_bytes() -> None:
    assert [len(batch) for batch in batches(map(job, range(25)), 10)] == [10, 10, 5]
    long = JobText("jobs:1", b"x" * (BATCH_BYTES // 3))
    assert [len(batch) for batch in batches([long] * 9, 10)] == [4, 4, 1]


@pytest.mark.landing
def test_job_that_the_database_refuses_is_reported_and_the_others_are_loaded(fresh_database: Database) -> None:
    """A constraint simulates an internal error."""
    fresh_database.execute("ALTER TABLE jobs ADD CONSTRAINT poison CHECK (key NOT IN ('job-3', 'job-1999'))")
    with BulkLoader(fresh_database.url) as loader:
        parts = [loader.load(batch) for batch in batches(map(job, range(LOAD_BATCH + 1)), LOAD_BATCH)]
    assert [(done.created, done.rejected) for done in parts] == [(LOAD_BATCH - 2, 2), (1, 0)]
    assert [place for place, _ in parts[0].problems] == ["jobs:3", "jobs:1999"]
    told = {(error.path, error.remedy) for _, error in parts[0].problems}
    assert told == {("", "correct the job, or report this")}
    assert parts[0].problems[0][1].problem.startswith("the job could not be applied: new row for relation")
    assert fresh_database.count("job_versions") == LOAD_BATCH - 1


@pytest.mark.parametrize("told", [False, True])
def test_events_wake_the_relay(database: Database, *, told: bool) -> None:
    ear = database.connection(autocommit=True)
    for channel in Channel:
        ear.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
    with BulkLoader(database.url) as door:
        door.load([job(1)], emit_events=told)
        wanted = {Channel.TIMERS.value, *([Channel.OUTBOX.value] if told else [])}
        heard = set[str]()
        until(lambda: heard.update(n.channel for n in ear.notifies(timeout=0)) or heard >= wanted, "what is new")
    assert heard == wanted
