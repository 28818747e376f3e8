"""A job that cannot be fired is quarantined; all others fire, and an edit releases it."""

import logging
from datetime import timedelta
from typing import LiteralString

import pytest
from psycopg import sql

from tests.fixtures.acts import about, submission
from tests.fixtures.database import ClockedDatabase
from tests.scheduler.firing import fire_due
from tidewheel.ids import job_id
from tidewheel.schemas.generated.records import ReplyStatus

SECOND = timedelta(seconds=1)
EACH_SECOND = {"schedule": "@every 1s", "overlap": "allow_all"}
POISON = job_id("default", "poison")

POISONS: dict[str, LiteralString] = {
    "no JSON": "schedule_json = '{'",
    "no kind of schedule": """schedule_json = '{"kind": "nonsense"}'""",
    "a zone that is gone": """schedule_json = '{"kind": "cron", "expressions": ["* * * * *"], "timezone": "Mars/O"}'""",
    "a lane that is none": "lane = 'nonsense'",
    "a definition that is none": "definition = 'garbage'",
}


@pytest.fixture
def due(clocked: ClockedDatabase) -> ClockedDatabase:
    """Three jobs that fire each second, one of which will be poisoned, and a stopped clock."""
    clocked.stop_clock()
    clocked.apply_batch(*(submission(key, **EACH_SECOND) for key in ("before", "poison", "zzz")))
    return clocked


def poison(database: ClockedDatabase, change: LiteralString) -> None:
    statement = sql.SQL("UPDATE job_versions SET {} WHERE job_id = %s").format(sql.SQL(change))
    database.execute(statement, [POISON])


def keys_fired(database: ClockedDatabase) -> set[str]:
    return {key for (key,) in database.rows("SELECT DISTINCT key FROM runs JOIN jobs USING (job_id)")}


@pytest.mark.parametrize("change", POISONS.values(), ids=POISONS)
def test_poisoned_job_is_quarantined_and_others_fire(due: ClockedDatabase, change: LiteralString) -> None:
    poison(due, change)
    due.advance(timedelta(hours=1))
    fire_due(due)
    assert keys_fired(due) == {"before", "zzz"}
    [(kind, tenant, job, error)] = due.rows("SELECT kind, tenant, job_id, error FROM quarantine")
    assert (kind, tenant, job) == ("job", "default", POISON)
    assert error
    [event] = [event for event in due.lifecycle() if event.type == "io.tidewheel.job.quarantined.v1"]
    assert (event.job_key, event.job_version, event.reason) == ("poison", 1, error)
    # It is out of the way: the next look finds the others alone.
    due.advance(SECOND)
    assert fire_due(due) == 2
    assert due.count("quarantine") == 1


@pytest.mark.parametrize("change", POISONS.values(), ids=POISONS)
def test_edit_releases_job_from_quarantine(due: ClockedDatabase, change: LiteralString) -> None:
    poison(due, change)
    due.advance(timedelta(hours=1))
    fire_due(due)
    [reply] = due.apply_batch(submission("poison", **EACH_SECOND, payload=1))
    assert (reply.status, reply.job_version) == (ReplyStatus.ACCEPTED, 2), reply.errors
    due.advance(SECOND)
    fire_due(due)
    assert "poison" in keys_fired(due)
    assert {run.job_version for run in due.job_runs() if run.job_id == POISON} == {2}


def test_quarantined_job_can_be_paused_and_deleted(due: ClockedDatabase) -> None:
    poison(due, "schedule_json = '{'")
    due.advance(SECOND)
    fire_due(due)
    replies = due.apply_batch(*(about(kind, "poison") for kind in ("job.pause", "job.resume", "job.delete")))
    assert [reply.status for reply in replies] == ["accepted"] * 3


def test_log_names_poisoned_job_only(due: ClockedDatabase, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "tidewheel.scheduler"):
        due.advance(SECOND)
        fire_due(due)
        assert caplog.text == ""
        poison(due, "lane = 'nonsense'")
        due.advance(SECOND)
        fire_due(due)
    assert f"job {POISON} is quarantined: CheckViolation" in caplog.text


def test_poisoned_job_does_not_repeat_written_runs(due: ClockedDatabase) -> None:
    """The batch is rolled back before it fires job by job: no duplicate, no loss."""
    poison(due, "lane = 'nonsense'")
    due.advance(5 * SECOND)
    fire_due(due)
    made = due.rows("SELECT key, count(*) FROM runs JOIN jobs USING (job_id) GROUP BY key ORDER BY key")
    assert made == [("before", 5), ("zzz", 5)]
    assert len(due.job_runs()) == 10
    due.submit("before", schedule="manual")
