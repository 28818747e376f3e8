"""The audit log: a row for each change, in its transaction, by whichever door; and for nothing else."""

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from tests.fixtures.acts import about, submission
from tests.fixtures.database import ClockedDatabase, Database
from tidewheel.audit import process_user
from tidewheel.control.client.bulk_load import BulkLoader, JobText
from tidewheel.control.client.client import Client
from tidewheel.control.client.own_runs import cancel
from tidewheel.intake.apply import apply_requests
from tidewheel.intake.request import ReceivedRequest
from tidewheel.jobs.parsing import parse_request
from tidewheel.schemas.generated.records import RequestOrigin


def entries(database: Database) -> list[tuple[Any, ...]]:
    """The action, the object and the result of each entry, in order."""
    return database.rows("SELECT action, object, result FROM audit_log ORDER BY id")


def test_changes_and_refusals_are_recorded_and_triggers_and_repeats_are_not(database: Database) -> None:
    database.submit("a")
    database.submit("a")  # unchanged
    database.submit("a", payload=2)
    run = database.trigger("a")
    database.apply_batch(about("job.trigger", "none"))
    database.apply_batch(about("job.pause", "a", reason="migration") | {"request_id": "r-1"})
    database.apply_batch(about("job.pause", "a") | {"request_id": "r-1"})  # the first reply again
    database.apply_batch(about("job.pause", "a"))  # paused already
    database.apply_batch(about("job.rollback", "a", version=1))
    database.apply_batch(about("job.delete", "none"))
    database.apply_batch({"type": "run.cancel", "run_id": str(run)})
    database.apply_batch({"type": "freeze", "queue": "q"})
    database.apply_batch({"type": "calendar.put", "name": "days", "days": ["2026-12-24"]})
    database.apply_batch(about("job.delete", "a"))
    assert entries(database) == [
        ("job.submit", "job/a", "accepted"),
        ("job.submit", "job/a", "accepted"),
        ("job.pause", "job/a", "accepted"),
        ("job.rollback", "job/a", "accepted"),
        ("job.delete", "job/none", "unknown_job"),
        ("run.cancel", f"run/{run}", "accepted"),
        ("freeze", "freeze/queue=q", "accepted"),
        ("calendar.put", "calendar/days", "accepted"),
        ("job.delete", "job/a", "accepted"),
    ]
    versions = database.rows("SELECT version_before, version_after FROM audit_log WHERE object = 'job/a' ORDER BY id")
    assert versions == [(None, 1), (1, 2), (2, 2), (2, 3), (3, None)]
    [found] = database.rows(
        "SELECT door, actor_kind, actor, request_id, reason FROM audit_log WHERE action = 'job.pause'"
    )
    assert found == ("client", "user", process_user(), "r-1", "migration")


def test_change_that_is_rolled_back_leaves_no_entry(database: Database) -> None:
    with database.session().transaction() as connection:
        apply_requests(connection, database.installation, [ReceivedRequest(parse_request(submission("a")))])
        assert connection.execute("SELECT count(*) FROM audit_log").fetchone() == (1,)
        connection.rollback()
    assert entries(database) == []


def test_message_is_recorded_by_its_coordinates_with_the_unverified_person_that_it_names(database: Database) -> None:
    origin = RequestOrigin(topic="tidewheel.requests", partition=3, offset=17)
    documents = (submission("a"), {"type": "freeze", "scope": "tenant", "by": "bob"})
    with database.transaction() as connection:
        for document, named in zip(documents, ("anna", None), strict=True):
            received = ReceivedRequest(parse_request(document), origin, named=named)
            apply_requests(connection, database.installation, [received])
    found = database.rows("SELECT door, actor_kind, actor, named FROM audit_log ORDER BY id")
    place = "tidewheel.requests/3/17"
    assert found == [("kafka", "message", place, "anna"), ("kafka", "message", place, "bob")]
    with Client(database.url) as client:
        assert {entry.verified for entry in client.audit_log.list().entries} == {False}


def test_refusals_of_one_minute_are_counted_in_one_entry(clocked: ClockedDatabase) -> None:
    clocked.stop_clock(datetime(2026, 3, 6, 9, tzinfo=UTC))
    pause = about("job.pause", "none")
    with clocked.transaction() as connection:
        for offset in range(0, 50, 10):  # batches of ten messages
            batch = [
                ReceivedRequest(parse_request(pause), RequestOrigin(topic="t", partition=0, offset=number))
                for number in range(offset, offset + 10)
            ]
            apply_requests(connection, clocked.installation, batch)
    for _ in range(3):
        clocked.apply_batch(pause)  # by another actor
    counted = "SELECT door, actor, result, objects FROM audit_log ORDER BY id"
    user = ("client", process_user(), "unknown_job", 3)
    assert clocked.rows(counted) == [("kafka", "t/0/0", "unknown_job", 50), user]
    with clocked.transaction() as connection:  # holds the entry
        connection.execute("SELECT FROM audit_log FOR UPDATE")
        clocked.apply_batch(pause)
    assert clocked.value("SELECT sum(objects) FROM audit_log") == 54
    clocked.advance(timedelta(minutes=1))
    clocked.apply_batch(pause)
    assert clocked.value("SELECT count(*) FROM audit_log") == 4


def test_bulk_load_writes_one_entry_for_the_batches_of_a_minute(database: Database) -> None:
    jobs = [JobText(f"line {n}", {"key": f"job-{n}", "schedule": "manual", "target": "a"}) for n in range(50)]
    with BulkLoader(database.url) as loader:
        loader.load(jobs[:20])
        loader.load(jobs)
        loader.load(jobs)  # creates nothing
    assert database.rows("SELECT action, object, objects, door FROM audit_log") == [("job.load", "jobs", 50, "cli")]


def test_cancel_in_the_callers_transaction_is_recorded_with_its_role(database: Database) -> None:
    database.submit()
    run = database.trigger()
    for _ in range(2):  # the second one finds the first, which no scheduler has applied
        with database.transaction() as connection:
            cancel(connection, run)
    role = database.value("SELECT session_user::text")
    found = database.rows("SELECT door, actor_kind, actor, object FROM audit_log WHERE action = 'run.cancel'")
    assert found == [("client", "role", role, f"run/{run}")]


def test_keys_are_recorded_when_they_are_created_and_revoked(database: Database) -> None:
    with Client(database.url) as client:
        made = client.api_keys.create("ci", ["write"]).summary
        assert client.api_keys.revoke(made.key_id)
        assert not client.api_keys.revoke(made.key_id)
        page = client.audit_log.list(object=f"key/{made.key_id}")
    assert [entry.action for entry in page.entries] == ["key.revoke", "key.create"]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE audit_log SET actor = 'x'",
        "UPDATE audit_log SET objects = 0",
        "UPDATE audit_log SET objects = 2, actor = 'x'",
        "DELETE FROM audit_log",
        "DELETE FROM audit_log WHERE at < now()",
    ],
)
def test_entries_are_neither_changed_nor_deleted(database: Database, statement: Any) -> None:  # noqa: ANN401 - a literal
    database.submit()
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="audit_log"):
        database.execute(statement)
    assert database.count("audit_log") == 1
