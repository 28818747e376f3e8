"""A quarantined job is released by any submit and by `release`; what passed meanwhile has its record."""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import LiteralString

import pytest
from psycopg import sql

from tests.fixtures.acts import about, submission
from tests.fixtures.database import ClockedDatabase
from tests.scheduler.firing import fire_due
from tidewheel.control.client.client import Client
from tidewheel.control.explain.explain import explain
from tidewheel.errors import InvalidInput, UnknownJob
from tidewheel.ids import job_id
from tidewheel.jobs.strict_json import as_object

SECOND = timedelta(seconds=1)
HELD_FOR = timedelta(minutes=30)
POISON: LiteralString = "UPDATE job_versions SET lane = 'nonsense' WHERE job_id = %s"
HEAL: LiteralString = "UPDATE job_versions SET lane = 'standard' WHERE job_id = %s"
HELD: LiteralString = "SELECT count(*) FROM timers WHERE hold_reason = 'quarantine'"
JOB = job_id("default", "job")


def spec(**fields: object) -> dict[str, object]:
    return {"schedule": "@every 10s", "overlap": "allow_all"} | fields


def quarantine(database: ClockedDatabase, *keys: str) -> None:
    """Poison jobs until firing has set them aside, then mend what was wrong and let time pass."""
    for key in keys:
        database.execute(POISON, [job_id("default", key)])
    database.advance(timedelta(seconds=10))
    fire_due(database)
    assert database.value(HELD) == len(keys)
    for key in keys:
        database.execute(HEAL, [job_id("default", key)])
    database.advance(HELD_FOR)


def fire_all_due(database: ClockedDatabase) -> None:
    while fire_due(database):
        pass


def recorded(database: ClockedDatabase) -> list[datetime]:
    """Return each occurrence of the job that has fired or is in a skip's span, as often as it is recorded."""
    fired = [at for (at,) in database.rows("SELECT scheduled_at FROM runs WHERE job_id = %s", [JOB])]
    spans = database.rows("SELECT first_at, last_at, occurrences FROM skips WHERE job_id = %s", [JOB])
    skipped = [first + n * timedelta(seconds=10) for first, _, occurrences in spans for n in range(occurrences)]
    assert all(first + (n - 1) * timedelta(seconds=10) == last for first, last, n in spans)
    return sorted([*fired, *skipped])


def by_identical_submit(database: ClockedDatabase, document: Mapping[str, object]) -> None:
    [reply] = database.apply_batch(document)
    assert (reply.status, reply.unchanged) == ("accepted", False), reply.errors
    [again] = database.apply_batch(document)
    assert again.unchanged


def by_edit(database: ClockedDatabase, document: Mapping[str, object]) -> None:
    job = as_object(document["job"]) or {}
    [reply] = database.apply_batch({**document, "job": {**job, "payload": 2}})
    assert reply.status == "accepted", reply.errors


def by_release(database: ClockedDatabase, document: Mapping[str, object]) -> None:
    del document
    with Client(database.url) as client:
        assert client.release("job").released == 1


@pytest.mark.parametrize("catch_up", ["fire_once", "fire_all", "skip"])
@pytest.mark.parametrize("way", [by_identical_submit, by_edit, by_release])
def test_occurrences_of_a_quarantine_follow_catch_up(
    still: ClockedDatabase, way: Callable[[ClockedDatabase, Mapping[str, object]], None], catch_up: str
) -> None:
    document = submission("job", **spec(catch_up=catch_up))
    still.apply_batch(document)
    fire_due(still)
    first = still.value("SELECT scheduled_at FROM timers")
    quarantine(still, "job")
    way(still, document)
    assert still.value(HELD) == 0
    fire_all_due(still)
    passed = (still.now() - first) // timedelta(seconds=10) + 1
    assert recorded(still) == [first + n * timedelta(seconds=10) for n in range(passed)]
    missed = still.value("SELECT count(*) FROM runs WHERE scheduled_at <= tidewheel_now() - interval '60 s'")
    assert missed == {"fire_once": 1, "skip": 0}.get(catch_up, missed)
    assert missed > 100 or catch_up != "fire_all"


@pytest.mark.parametrize("poison", ["lane = 'nonsense'", "schedule_json = '{'", "definition = 'garbage'"])
def test_new_schedule_of_quarantined_job_records_what_passed(still: ClockedDatabase, poison: LiteralString) -> None:
    still.apply_batch(submission("job", **spec()))
    first = still.value("SELECT scheduled_at FROM timers")
    still.execute(sql.SQL("UPDATE job_versions SET {}").format(sql.SQL(poison)))
    still.advance(HELD_FOR)
    fire_due(still)
    assert still.value(HELD) == 1
    [reply] = still.apply_batch(submission("job", **spec(schedule="@every 1h")))
    assert reply.status == "accepted", reply.errors
    [(reason, first_at, last_at)] = still.rows("SELECT reason, first_at, last_at FROM skips")
    assert (reason, first_at) == ("misfire", first)
    assert last_at > still.now() - timedelta(seconds=10)
    fire_due(still)
    assert still.value(HELD) == 0


def test_deleted_quarantined_job_has_a_record_of_what_passed(still: ClockedDatabase) -> None:
    still.apply_batch(submission("job", **spec()))
    first = still.value("SELECT scheduled_at FROM timers")
    quarantine(still, "job")
    [reply] = still.apply_batch(about("job.delete", "job"))
    assert reply.status == "accepted"
    assert recorded(still)[0] == first
    assert recorded(still)[-1] > still.now() - timedelta(seconds=10)


def test_once_of_a_quarantine_fires_when_released(still: ClockedDatabase) -> None:
    at = still.now() + 5 * SECOND
    document = submission("job", schedule={"once": at.isoformat()})
    still.apply_batch(document)
    quarantine(still, "job")
    by_identical_submit(still, document)
    fire_due(still)
    assert still.rows("SELECT scheduled_at FROM runs") == [(at,)]


def test_release_selects_by_error_and_can_be_repeated(still: ClockedDatabase) -> None:
    still.apply_batch(*(submission(key, **spec()) for key in ("one", "two", "other", "sound")))
    still.execute("UPDATE job_versions SET schedule_json = '{' WHERE job_id = %s", [job_id("default", "other")])
    still.execute("UPDATE jobs SET paused = true WHERE key = 'two'")
    for key in ("one", "two"):
        still.execute(POISON, [job_id("default", key)])
    still.advance(timedelta(seconds=10))
    fire_due(still)
    assert still.value(HELD) == 3
    with Client(still.url) as client:
        with pytest.raises(InvalidInput, match="no job is selected"):
            client.release()
        with pytest.raises(UnknownJob):
            client.release("nonsense")
        found = client.release(error="CheckViolation", dry_run=True)
        assert (found.matched, found.released, {job.key for job in found.first}) == (2, 0, {"one", "two"})
        assert still.value(HELD) == 3
        assert client.release(error="CheckViolation").released == 2
        assert client.release(error="CheckViolation").released == 0
        assert client.release("sound").released == 0
        assert client.release(everything=True).released == 1
    holds = dict(still.rows("SELECT key, hold_reason FROM timers JOIN jobs USING (job_id)"))
    assert holds == {"one": None, "two": "pause", "other": None, "sound": None}
    released = [event.job_key for event in still.lifecycle() if event.type == "io.tidewheel.job.released.v1"]
    assert sorted(released) == ["one", "other", "two"]


def test_explanation_names_the_quarantine_of_a_skipped_occurrence(still: ClockedDatabase) -> None:
    document = submission("job", **spec())
    still.apply_batch(document)
    quarantine(still, "job")
    by_identical_submit(still, document)
    fire_all_due(still)
    at = still.value("SELECT first_at FROM skips") + timedelta(seconds=100)
    words = still.within(explain, "default", "job", at).words
    assert "The job was quarantined at" in words
    assert "CheckViolation" in words
