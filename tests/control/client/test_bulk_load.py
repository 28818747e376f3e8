"""BulkLoader in processes: batches of a bounded size, and the error when a process dies."""

import json
import multiprocessing
import os
import signal
from collections.abc import Iterator

import pytest
from psycopg import sql

from tests.fixtures.database import Database
from tests.fixtures.services import until
from tidewheel.control.client.bulk_load import (
    BATCH_BYTES,
    LOAD_BATCH,
    BulkLoader,
    JobText,
    LoadResult,
    batches,
    load_in_processes,
)
from tidewheel.errors import InvalidInput, Unavailable, refuse
from tidewheel.postgres.notify import Channel


def job(number: int) -> JobText:
    return JobText(f"jobs:{number}", json.dumps({"key": f"job-{number}", "schedule": "manual", "target": "x"}).encode())


def end_workers(by: signal.Signals) -> None:
    workers = multiprocessing.active_children()
    assert workers
    for worker in workers:
        os.kill(worker.pid or 0, by)


def test_batch_is_limited_in_jobs_and_bytes() -> None:
    assert [len(batch) for batch in batches(map(job, range(25)), 10)] == [10, 10, 5]
    long = JobText("jobs:1", b"x" * (BATCH_BYTES // 3))
    assert [len(batch) for batch in batches([long] * 9, 10)] == [4, 4, 1]


def signalled(database: Database, by: signal.Signals) -> Iterator[JobText]:
    """Two batches, between which the loading process, once it has loaded the first, is sent a signal."""
    yield from map(job, range(LOAD_BATCH + 1))
    until(lambda: database.count("jobs") >= LOAD_BATCH, "the first batch is loaded")
    end_workers(by)
    yield from map(job, range(LOAD_BATCH + 1, 2 * LOAD_BATCH))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_killed_process_is_reported_and_the_load_can_be_repeated(database: Database) -> None:
    """A broken pool of CPython 3.11 may close one pipe in two threads, and print what the second reports."""
    dying = signalled(database, signal.SIGKILL)
    with pytest.raises(Unavailable, match="a loading process died; load the same files again"):
        list(load_in_processes(dying, processes=1, database_url=database.url, tenant="default"))
    again = map(job, range(2 * LOAD_BATCH))
    parts = list(load_in_processes(again, processes=1, database_url=database.url, tenant="default"))
    assert [(done.created, done.unchanged) for done in parts] == [(0, LOAD_BATCH), (LOAD_BATCH, 0)]


def test_begun_batches_are_counted_if_the_rest_is_unreadable(database: Database) -> None:
    def cut_off() -> Iterator[JobText]:
        yield from map(job, range(LOAD_BATCH + 1))
        until(lambda: database.count("jobs") > 0, "the first batch is loaded")
        refuse("FILE", "it ends here", "")

    parts = list[LoadResult]()
    with pytest.raises(InvalidInput, match="it ends here"):
        parts.extend(load_in_processes(cut_off(), processes=1, database_url=database.url, tenant="default"))
    assert [done.created for done in parts] == [LOAD_BATCH]


def test_job_that_the_database_refuses_is_reported_and_the_others_are_loaded(
    fresh_database: Database,
) -> None:
    """A constraint simulates an internal error, which another process reports."""
    fresh_database.execute("ALTER TABLE jobs ADD CONSTRAINT poison CHECK (key NOT IN ('job-3', 'job-1999'))")
    given = map(job, range(LOAD_BATCH + 1))
    parts = list(load_in_processes(given, processes=1, database_url=fresh_database.url, tenant="default"))
    assert [(done.created, done.rejected) for done in parts] == [(LOAD_BATCH - 2, 2), (1, 0)]
    assert [place for place, _ in parts[0].problems] == ["jobs:3", "jobs:1999"]
    told = {(error.path, error.remedy) for _, error in parts[0].problems}
    assert told == {("", "correct the job, or report this")}
    assert parts[0].problems[0][1].problem.startswith("the job could not be applied: new row for relation")
    assert fresh_database.count("job_versions") == LOAD_BATCH - 1


def test_only_the_parent_process_handles_an_interrupt(database: Database) -> None:
    given = signalled(database, signal.SIGINT)
    parts = load_in_processes(given, processes=1, database_url=database.url, tenant="default")
    assert sum(done.created for done in parts) == 2 * LOAD_BATCH


def test_reason_of_a_failed_start_is_reported() -> None:
    nobody = "postgresql://127.0.0.1:1/none"
    with pytest.raises(Unavailable, match="refused"):
        list(load_in_processes([job(1)], processes=1, database_url=nobody, tenant="default"))


@pytest.mark.parametrize("told", [False, True])
def test_events_wake_the_relay(database: Database, *, told: bool) -> None:
    ear = database.connection(autocommit=True)
    for channel in Channel:
        ear.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
    with BulkLoader(database.url) as door:
        door.load([job(1)], emit_events=told)
        wanted = {Channel.TIMERS.value, *([Channel.OUTBOX.value] if told else [])}
        heard = set[str]()
        until(
            lambda: heard.update(n.channel for n in ear.notifies(timeout=0)) or heard >= wanted, "what is new is told"
        )
    assert heard == wanted
