"""A run's priority: from each door to its row and its messages, and in the line of a concurrency key."""

from datetime import timedelta
from uuid import UUID

import psycopg
import pytest

from tests.fixtures.acts import submission
from tests.fixtures.database import ClockedDatabase, Database
from tests.scheduler.firing import fire_due
from tidewheel.control.client.enqueue import enqueue
from tidewheel.errors import Refused
from tidewheel.runs import AttemptOutcome, RunState


def priorities(database: Database, run_id: UUID) -> list[object]:
    """Return the priority of an open run, then of its messages in the order in which they were written."""
    row = database.value("SELECT priority FROM job_runs WHERE run_id = %s", [run_id])
    read = "SELECT tenant, priority FROM outbox WHERE key = convert_to(%s::text, 'UTF8') ORDER BY publish_at, id"
    messages = database.rows(read, [run_id])
    assert {tenant for tenant, _ in messages} == {"default"}
    return [row, *(priority for _, priority in messages)]


def test_run_has_its_jobs_priority_or_its_triggers(database: Database) -> None:
    database.submit("plain")
    database.submit(priority=2)
    assert priorities(database, database.trigger("plain")) == [5, 5]
    assert priorities(database, database.trigger()) == [2, 2]
    assert priorities(database, database.trigger(priority=0)) == [0, 0]
    with psycopg.connect(database.url) as own:
        run = enqueue(own, "job", priority=9)
    assert priorities(database, run) == [9, 9]


def test_next_attempt_keeps_the_priority(database: Database) -> None:
    database.submit(priority=8, retry={"max_attempts": 3})
    run = database.trigger()
    database.requeue(database.begin(run), AttemptOutcome.FAILED)
    assert priorities(database, run) == [8, 8, 8]


def test_occurrence_has_its_jobs_priority(clocked: ClockedDatabase) -> None:
    clocked.submit(schedule={"interval": "1h"}, priority=7)
    clocked.advance(timedelta(hours=1))
    fire_due(clocked)
    [(run,)] = clocked.rows("SELECT run_id FROM job_runs")
    assert priorities(clocked, run) == [7, 7]


@pytest.mark.parametrize("priority", [-1, 10, "high", True, 1.5])
def test_other_values_are_refused(database: Database, priority: object) -> None:
    with pytest.raises(Refused, match=r"job\.priority.*write 0 to 9: 9 goes first"):
        database.apply_batch(submission(priority=priority))
    with pytest.raises(Refused, match=r"priority.*write 0 to 9: 9 goes first"):
        database.apply_batch({"type": "job.trigger", "key": "job", "priority": priority})


def test_higher_priority_gets_the_next_place_of_a_key(database: Database) -> None:
    database.submit(concurrency_key="acme", priority=0)
    first = database.begin(database.trigger())
    low, high = database.trigger(), database.trigger(priority=9)
    database.claim(low, high)
    assert {database.open_run(run).state for run in (low, high)} == {RunState.BUFFERED}
    database.succeed(first)
    assert [database.open_run(run).state for run in (low, high)] == [RunState.BUFFERED, RunState.QUEUED]
    assert priorities(database, high) == [9, 9, 9]
    database.succeed(database.begin(high))
    assert database.open_run(low).state == RunState.QUEUED


def test_waiting_run_ages(clocked: ClockedDatabase) -> None:
    """A run of priority 0 goes before one of priority 9 that is due more than 270 s later."""
    clocked.submit(concurrency_key="acme", priority=0)
    first = clocked.begin(clocked.trigger())
    low = clocked.trigger()
    clocked.claim(low)
    clocked.advance(timedelta(seconds=271))
    high = clocked.trigger(priority=9)
    clocked.claim(high)
    clocked.succeed(first)
    assert [clocked.open_run(run).state for run in (low, high)] == [RunState.QUEUED, RunState.BUFFERED]
