"""Redrives of processes of the release before: adopted from `redrives`, and written there for them."""

import math
from collections.abc import Iterator
from contextlib import closing
from uuid import UUID, uuid4

import pytest

from tests.control.client.test_dead_letters import fail, redriven, work_off
from tests.fixtures.database import Database
from tidewheel.control.client.client import Client
from tidewheel.postgres.session import Session
from tidewheel.scheduler.work_loop import WorkLoop, do_batch

# As `add_redrive`, `advance_redrive` and `set_redrive_state` of 0.2.0.dev0 write them.
ADD = """
    INSERT INTO redrives (redrive_id, tenant, state, kind, ids, job_id, status, error_type, queue, lane, since_at,
                          until_at, rate, matched_count, rejections, after_at, after_id, next_at, reason, created_at,
                          finished_at)
    SELECT %s, 'default', 'running', 'run', NULL, job_id, NULL, 'ValueError', NULL, NULL, 'epoch', tidewheel_now(),
           1000, 3, '[]', 'epoch', 0, tidewheel_now(), 'old', tidewheel_now(), NULL
      FROM jobs
     WHERE key = 'job'
"""
ADVANCE = """
    UPDATE redrives
       SET redriven_count = redriven_count + 1, after_at = d.created_at, after_id = d.id
      FROM dead_letters AS d
     WHERE redrive_id = %s AND d.run_id = %s
"""
SET_STATE = """
    UPDATE redrives SET state = %s, finished_at = CASE WHEN %s THEN tidewheel_now() END WHERE redrive_id = %s
"""
SHOWN = "SELECT state, redriven_count, after_id > 0, finished_at IS NOT NULL FROM redrives WHERE redrive_id = %s"


@pytest.fixture
def client(database: Database) -> Iterator[Client]:
    database.submit("job")
    with Client(database.url) as made:
        yield made


def old_redrive(database: Database) -> UUID:
    redrive_id = uuid4()
    database.execute(ADD, [redrive_id])
    return redrive_id


def test_redrive_of_an_old_process_is_adopted_and_finished_for_both(client: Client, database: Database) -> None:
    failed = [fail(database) for _ in range(3)]
    fail(database, error="Other")
    redrive_id = old_redrive(database)
    work_off(database)
    assert set(redriven(database)) == set(failed), "its filter holds"
    done = client.works.get(redrive_id)
    assert (done.kind, done.state, done.done_count, done.filter["job"]) == ("redrive", "finished", 3, "job")
    assert database.rows(SHOWN, [redrive_id]) == [("finished", 3, True, True)]


def test_adopted_redrive_goes_on_after_the_letters_that_old_schedulers_redrove(
    client: Client, database: Database
) -> None:
    first, *rest = [fail(database) for _ in range(3)]
    redrive_id = old_redrive(database)
    with closing(Session(database.url, "scheduler")) as session:
        assert do_batch(session, database.installation, redrive_id, most=1) == 1
        client.runs.retry(rest[0])  # as an old scheduler does in the transaction of the next statement
        database.execute(ADVANCE, [redrive_id, rest[0]])
        assert do_batch(session, database.installation, redrive_id, most=1) == 1
    assert set(redriven(database)) == {first, *rest}
    work_off(database)
    assert client.works.get(redrive_id).done_count == 3, "it counts what both have done"
    assert len(database.job_runs()) == 3


def test_new_redrive_is_continued_by_old_schedulers_and_again_by_new_ones(client: Client, database: Database) -> None:
    failed = [fail(database) for _ in range(3)]
    work_id = client.dead_letters.redrive(key="job", rate=1000).work_id
    assert work_id is not None
    with closing(Session(database.url, "scheduler")) as session:
        assert do_batch(session, database.installation, work_id, most=1) == 1
    assert database.rows(SHOWN, [work_id]) == [("running", 1, True, False)]
    client.runs.retry(failed[1])
    database.execute(ADVANCE, [work_id, failed[1]])
    work_off(database)
    assert client.works.get(work_id).done_count == 3
    assert database.rows(SHOWN, [work_id]) == [("finished", 3, True, True)]


@pytest.mark.parametrize(("state", "ended"), [("paused", False), ("cancelled", True)])
def test_change_of_state_by_an_old_process_is_followed(
    client: Client, database: Database, state: str, *, ended: bool
) -> None:
    fail(database)
    work_id = client.dead_letters.redrive(key="job").work_id
    assert work_id is not None
    database.execute(SET_STATE, [state, ended, work_id])
    work_off(database)
    assert (redriven(database), client.works.get(work_id).state) == ({}, state)
    if not ended:
        database.execute(SET_STATE, ["running", False, work_id])
        work_off(database)
        assert client.works.get(work_id).state == "finished"


@pytest.mark.parametrize(("state", "ended"), [("paused", False), ("finished", True)])
def test_redrive_that_an_old_process_pauses_or_ends_before_any_pass_is_listed(
    client: Client, database: Database, state: str, *, ended: bool
) -> None:
    redrive_id = old_redrive(database)
    database.execute(SET_STATE, [state, ended, redrive_id])
    work_off(database)  # by a scheduler that has just started
    assert [(each.work_id, each.state) for each in client.works.list()] == [(redrive_id, state)]


def test_pause_and_cancellation_are_written_for_old_schedulers(client: Client, database: Database) -> None:
    fail(database)
    work_id = old_redrive(database)
    assert client.works.pause(work_id).status == "paused", "before any scheduler has adopted it"
    assert database.rows(SHOWN, [work_id]) == [("paused", 0, False, False)]
    client.works.cancel(work_id)
    assert database.rows(SHOWN, [work_id]) == [("cancelled", 0, False, True)]
    with closing(Session(database.url, "scheduler")) as session:
        assert WorkLoop(session, database.installation).step() == (0, math.inf)


def test_repeated_request_finds_the_redrive_that_an_old_process_has_cancelled(
    client: Client, database: Database
) -> None:
    fail(database)
    first = client.dead_letters.redrive(everything=True, request_id="night").work_id
    assert first is not None
    database.execute("DELETE FROM works")  # an old process writes none
    database.execute(SET_STATE, ["cancelled", True, first])
    assert client.dead_letters.redrive(everything=True, request_id="night").work_id == first
    assert (client.works.get(first).state, redriven(database)) == ("cancelled", {})
