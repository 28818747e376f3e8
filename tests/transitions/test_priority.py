"""A run's priority: from each door to its row and its messages, and in the line of a concurrency key."""

from datetime import timedelta
from uuid import UUID

import psycopg
import pytest

from tests.fixtures.database import ClockedDatabase, Database
from tests.scheduler.firing import fire_due
from tests.transitions.acts import apply_batch, begin, claim, open_run, requeue, submission, submit, succeed, trigger
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
    submit(database, "plain")
    submit(database, priority=2)
    assert priorities(database, trigger(database, "plain")) == [5, 5]
    assert priorities(database, trigger(database)) == [2, 2]
    assert priorities(database, trigger(database, priority=0)) == [0, 0]
    with psycopg.connect(database.url) as own:
        run = enqueue(own, "job", priority=9)
    assert priorities(database, run) == [9, 9]


def test_next_attempt_keeps_the_priority(database: Database) -> None:
    submit(database, priority=8, retry={"max_attempts": 3})
    run = trigger(database)
    requeue(database, begin(database, run), AttemptOutcome.FAILED)
    assert priorities(database, run) == [8, 8, 8]


def test_occurrence_has_its_jobs_priority(clocked: ClockedDatabase) -> None:
    submit(clocked, schedule={"interval": "1h"}, priority=7)
    clocked.advance(timedelta(hours=1))
    fire_due(clocked)
    [(run,)] = clocked.rows("SELECT run_id FROM job_runs")
    assert priorities(clocked, run) == [7, 7]


@pytest.mark.parametrize("priority", [-1, 10, "high", True, 1.5])
def test_other_values_are_refused(database: Database, priority: object) -> None:
    with pytest.raises(Refused, match=r"job\.priority.*write 0 to 9: 9 goes first"):
        apply_batch(database, submission(priority=priority))
    with pytest.raises(Refused, match=r"priority.*write 0 to 9: 9 goes first"):
        apply_batch(database, {"type": "job.trigger", "key": "job", "priority": priority})


def test_higher_priority_gets_the_next_place_of_a_key(database: Database) -> None:
    submit(database, concurrency_key="acme", priority=0)
    first = begin(database, trigger(database))
    low, high = trigger(database), trigger(database, priority=9)
    claim(database, low, high)
    assert {open_run(database, run).state for run in (low, high)} == {RunState.BUFFERED}
    succeed(database, first)
    assert [open_run(database, run).state for run in (low, high)] == [RunState.BUFFERED, RunState.QUEUED]
    assert priorities(database, high) == [9, 9, 9]
    succeed(database, begin(database, high))
    assert open_run(database, low).state == RunState.QUEUED


def test_waiting_run_ages(clocked: ClockedDatabase) -> None:
    """A run of priority 0 goes before one of priority 9 that is due more than 270 s later."""
    submit(clocked, concurrency_key="acme", priority=0)
    first = begin(clocked, trigger(clocked))
    low = trigger(clocked)
    claim(clocked, low)
    clocked.advance(timedelta(seconds=271))
    high = trigger(clocked, priority=9)
    claim(clocked, high)
    succeed(clocked, first)
    assert [open_run(clocked, run).state for run in (low, high)] == [RunState.QUEUED, RunState.BUFFERED]
