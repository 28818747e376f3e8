"""The audit log: each change has an entry, a bulk load one for the batches of a minute."""

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from tests.fixtures.acts import about, submission
from tests.fixtures.database import ClockedDatabase, Database
from tests.transitions.stepping import behind
from tidewheel.audit import process_user
from tidewheel.control.client.bulk_load import BulkLoader, JobText
from tidewheel.control.client.client import Client
from tidewheel.control.client.own_runs import cancel
from tidewheel.intake.apply import apply_requests
from tidewheel.intake.new_jobs import Loaded, load_jobs
from tidewheel.intake.request import ReceivedRequest
from tidewheel.jobs.parsing import parse_request
from tidewheel.postgres.session import Conn
from tidewheel.schemas.generated.records import RequestOrigin


def entries(database: Database) -> list[tuple[Any, ...]]:
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


def test_cancel_in_the_callers_transaction_is_recorded_with_its_role(with_job: Database) -> None:
    run = with_job.trigger()
    for _ in range(2):  # the second one finds the first, which no scheduler has applied
        with_job.within(cancel, run)
    role = with_job.value("SELECT session_user::text")
    found = with_job.rows("SELECT door, actor_kind, actor, object FROM audit_log WHERE action = 'run.cancel'")
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
def test_entries_are_neither_changed_nor_deleted(with_job: Database, statement: Any) -> None:  # noqa: ANN401 - a literal
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="audit_log"):
        with_job.execute(statement)
    assert with_job.count("audit_log") == 1


def load(database: Database, *documents: dict[str, Any], emit_events: bool = False) -> Loaded:
    batch = [ReceivedRequest(parse_request(document)) for document in documents]
    return database.within(load_jobs, database.installation, batch, emit_events=emit_events)


def test_bulk_load_creates_missing_jobs_and_keeps_existing_ones(database: Database) -> None:
    database.submit("there", schedule="@daily", payload=1)
    database.submit("gone")
    database.apply_batch(about("job.delete", "gone"))
    before = database.rows("SELECT to_jsonb(j) FROM jobs AS j ORDER BY key")
    loaded = load(database, submission("there"), submission("new"), submission("gone"), submission("new", payload=2))
    assert (loaded.created, loaded.existing, loaded.refused) == (1, 3, {})
    rows = database.rows("SELECT to_jsonb(j) FROM jobs AS j WHERE key <> 'new' ORDER BY key")
    assert rows == before
    [(version, payload)] = database.rows(
        "SELECT j.version, v.spec FROM jobs AS j JOIN job_versions AS v USING (job_id) WHERE j.key = 'new'"
    )
    assert (version, payload["key"]) == (1, "new")


def test_refused_job_of_a_load_is_reported_and_does_not_stop_others(database: Database) -> None:
    bad = [
        submission("never", schedule="0 0 30 2 *"),
        submission("zone", schedule={"cron": "@daily", "timezone": "Mars/Olympus"}),
        submission("calendar", schedule="@daily", exclude_calendars=["none"]),
        submission("tenant") | {"tenant": "nobody"},
    ]
    loaded = load(database, submission("good"), *bad, submission("better", schedule="H H * * *"))
    assert (loaded.created, loaded.existing, sorted(loaded.refused)) == (2, 0, [1, 2, 3, 4])
    for position, document in enumerate(bad, start=1):
        assert loaded.refused[position].errors == database.apply(document).errors
    assert database.rows("SELECT key FROM jobs ORDER BY key") == [("better",), ("good",)]


def test_bulk_load_writes_events_only_if_requested(database: Database) -> None:
    load(database, submission("a"), submission("b", schedule="@every 5m", max_runs=3))
    assert database.count("outbox") == 0
    load(database, submission("c"), submission("d", schedule="@every 5m", max_runs=3), emit_events=True)
    assert sorted(event.job_key for event in database.lifecycle()) == ["c", "d"]


# Some are loaded as a pattern, others one by one.
SPREAD: list[dict[str, Any]] = [
    {}, {"end_at": "2099-01-01T00:00:00Z"}, {"max_runs": 9}, {"exclude_calendars": ["holidays"]},
    {"payload_base64": "AAEC"}, {"description": "d" * 4096},
]  # fmt: skip


@pytest.mark.parametrize("mark", ["", "é"], ids=["", "key"])
@pytest.mark.parametrize("job", SPREAD, ids=lambda job: next(iter(job), "plain"))
def test_intervals_without_an_anchor_are_spread_and_keep_their_phase(
    clocked: ClockedDatabase, job: dict[str, Any], mark: str
) -> None:
    now, hour = clocked.stop_clock(), timedelta(hours=1)
    clocked.apply({"type": "calendar.put", "name": "holidays", "days": ["2099-01-01"]})
    jobs = [submission(f"job-{n}{mark}", schedule="@every 1h", **job) for n in range(100)]
    assert load(clocked, *jobs).created == 100
    due = [at for (at,) in clocked.rows("SELECT due_at FROM timers")]
    assert all(now < at <= now + hour for at in due)
    assert len({(at - now) // timedelta(minutes=10) for at in due}) == 6
    edited = clocked.submit(f"job-0{mark}", schedule="@every 1h", **job, labels={"edited": "yes"})
    [(anchor, at)] = clocked.rows(
        "SELECT interval_anchor, due_at FROM jobs JOIN timers USING (job_id) WHERE key LIKE 'job-0%%'"
    )
    assert (edited.job_version, edited.next_run_at) == (2, at)
    assert (at - anchor) % hour == timedelta(0)


def test_spread_interval_is_validated_from_its_spread_anchor(clocked: ClockedDatabase) -> None:
    end = clocked.stop_clock() + timedelta(minutes=30)
    jobs = [submission(f"job-{n}", schedule="@every 1h", end_at=end.isoformat()) for n in range(50)]
    loaded = load(clocked, *jobs)
    assert 0 < loaded.created == clocked.count("timers") == 50 - len(loaded.refused) < 50
    assert clocked.value("SELECT max(due_at) FROM timers") <= end


def test_explicit_anchor_is_kept(clocked: ClockedDatabase) -> None:
    now = clocked.stop_clock()
    schedule = {"interval": "1h", "anchor": "2026-01-01T00:00:07Z"}
    load(clocked, *(submission(f"job-{n}", schedule=schedule) for n in range(20)))
    [(due_at, anchor)] = clocked.rows(
        "SELECT DISTINCT t.due_at, j.interval_anchor FROM timers AS t JOIN jobs AS j USING (job_id)"
    )
    assert (due_at.minute, due_at.second, anchor) == (0, 7, now)


@pytest.mark.parametrize("job", [{"schedule": "H H * * *"}, {"schedule": "@every 1h", "max_runs": 3}], ids=["H", "max"])
@pytest.mark.parametrize("deleted", [False, True], ids=["there", "deleted"])
def test_job_created_concurrently_is_reported_as_existing(
    database: Database, job: dict[str, Any], *, deleted: bool
) -> None:
    before: list[tuple[object, ...]] = []

    def create(connection: Conn) -> None:
        database.apply_batch_within(connection, submission("twin", **job), *[about("job.delete", "twin")] * deleted)
        before.extend(connection.execute("SELECT to_jsonb(j) FROM jobs AS j WHERE key = 'twin'"))

    batch = [ReceivedRequest(parse_request(submission(key, payload=2, **job))) for key in ("a", "twin")]
    loaded = behind(database, create, lambda connection: load_jobs(connection, database.installation, batch))
    assert (loaded.created, loaded.existing, loaded.refused) == (1, 1, {})
    assert database.rows("SELECT to_jsonb(j) FROM jobs AS j WHERE key = 'twin'") == before
    assert database.rows("SELECT j.key, v.version FROM job_versions AS v JOIN jobs AS j USING (job_id) ORDER BY 1") == [
        ("a", 1), ("twin", 1),
    ]  # fmt: skip
