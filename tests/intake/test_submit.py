"""`job.submit` upserts: an identical spec changes nothing, any other is the next version."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from tests.fixtures.acts import HANDLER, about, submission
from tests.fixtures.database import ClockedDatabase, Database
from tests.intake.minutes import kinds
from tests.scheduler.firing import fire_due
from tidewheel.errors import Refused
from tidewheel.ids import bucket_of, job_id, shard_of
from tidewheel.intake.apply import apply_requests
from tidewheel.intake.request import ReceivedRequest
from tidewheel.jobs.parsing import parse_request
from tidewheel.schemas.codec import decode
from tidewheel.schemas.generated.records import JobDefinition, Reply, ReplyStatus, RequestOrigin, RequestType

SECOND = timedelta(seconds=1)


def test_new_job_is_version_1_and_reports_its_next_run(clocked: ClockedDatabase) -> None:
    now = clocked.stop_clock()
    assert clocked.apply(submission(schedule="@every 10s") | {"request_id": "r-1"}) == Reply(
        request_id="r-1",
        type=RequestType.JOB_SUBMIT,
        tenant="default",
        key="job",
        status=ReplyStatus.ACCEPTED,
        job_id=str(job_id("default", "job")),
        job_version=1,
        next_run_at=now + timedelta(seconds=10),
        unchanged=False,
        errors=(),
    )
    bucket = bucket_of(job_id("default", "job"))
    [row] = clocked.rows("SELECT bucket, shard, version, interval_anchor, created_at, finished_at FROM jobs")
    assert row == (bucket, shard_of(bucket, 64), 1, now, now, None)
    assert kinds(clocked) == ["job.created"]


def test_an_identical_spec_changes_nothing_and_reports_the_current_version(still: ClockedDatabase) -> None:
    first = still.submit(schedule="@every 60s", retry={"initial": "2s"})
    still.advance(timedelta(seconds=30))
    again = still.submit(schedule={"interval": "1m"}, retry={"initial": 2})
    assert (again.job_version, again.unchanged, again.next_run_at) == (1, True, first.next_run_at)
    assert still.count("job_versions") == 1
    assert kinds(still) == ["job.created"]


def test_changed_spec_is_the_next_version_and_keeps_the_earlier_one(database: Database) -> None:
    database.submit(payload={"to": "ann"})
    edited = database.submit(payload={"to": "bob"})
    assert (edited.job_version, edited.unchanged) == (2, False)
    stored = database.rows("SELECT definition FROM job_versions ORDER BY version")
    definitions = [decode(definition, JobDefinition) for (definition,) in stored]
    assert [(d.job_version, d.payload) for d in definitions] == [(1, b'{"to":"ann"}'), (2, b'{"to":"bob"}')]
    assert kinds(database) == ["job.created", "job.updated"]


def test_explicit_default_is_a_changed_spec(with_job: Database) -> None:
    """A later release may change a default: who wrote the value meant the value."""
    assert with_job.submit(lane="standard").job_version == 2


def test_submit_neither_pauses_nor_resumes(database: Database) -> None:
    database.submit(schedule="@every 1h")
    assert database.submit(schedule="@every 1h", paused=True).unchanged
    assert database.value("SELECT paused FROM jobs") is False
    database.apply_batch(about("job.pause"))
    assert database.submit(schedule="@every 1h", paused=False).unchanged
    edited = database.submit(schedule="@every 2h", paused=False)
    assert (edited.job_version, edited.next_run_at) == (2, None)
    assert database.value("SELECT paused FROM jobs") is True
    assert database.value("SELECT due_at = 'infinity' FROM timers") is True


def test_a_job_that_is_created_paused_fires_nothing(clocked: ClockedDatabase) -> None:
    assert clocked.submit(schedule="@every 1s", paused=True).next_run_at is None
    clocked.advance(timedelta(seconds=10))
    assert fire_due(clocked) == 0


def test_recreated_job_continues_its_versions(database: Database) -> None:
    database.submit(payload=1)
    database.submit(payload=2)
    database.apply_batch(about("job.delete"))
    again = database.submit(payload=2)
    assert (again.job_version, again.unchanged) == (3, False)
    assert database.rows("SELECT version, deleted_at FROM jobs") == [(3, None)]
    assert kinds(database) == ["job.created", "job.updated", "job.deleted", "job.created"]


def test_job_without_a_key_is_named_by_request_id_or_offset(database: Database) -> None:
    """A topic that is created again has its topic, partition and offset once more, with another timestamp."""
    document = {"type": "job.submit", "job": {"schedule": "manual", "target": HANDLER}}
    keyless, origin = parse_request(document), RequestOrigin(topic="tidewheel.requests", partition=3, offset=17)
    batch = [ReceivedRequest(parse_request(document | {"request_id": "r-9"})), ReceivedRequest(keyless, origin)]
    batch += [ReceivedRequest(keyless, origin, sent_ms=sent) for sent in (1_700, 1_800, 1_800)]
    replies = database.within(apply_requests, database.installation, batch)
    place = "tidewheel.requests/3/17"
    assert [reply.key for reply in replies] == ["r-9", place, f"{place}@1700", f"{place}@1800", f"{place}@1800"]
    assert {reply.key for reply in replies} == {key for (key,) in database.rows("SELECT key FROM jobs")}


@pytest.mark.parametrize("key", [" a", "a ", "a\t", "\u3000a", "a\x00", "a\nb"])
@pytest.mark.parametrize("field", ["key", "request_id"])
def test_name_with_a_blank_at_an_end_or_a_control_character_is_refused(key: str, field: str) -> None:
    """No HTTP header could carry it."""
    job = {"key": key if field == "key" else "a", "schedule": "manual", "target": "a"}
    document = {"type": "job.submit", "job": job} | ({"request_id": key} if field == "request_id" else {})
    with pytest.raises(Refused) as raised:
        parse_request(document)
    [error] = raised.value.errors
    assert error.path == ("job.key" if field == "key" else "request_id")
    assert error.remedy


def test_payload_is_stored_in_the_definition_only(database: Database) -> None:
    database.submit(payload={"secret": "of the customer"})
    assert b"of the customer" in database.value("SELECT definition FROM job_versions")
    assert "customer" not in str(database.value("SELECT spec FROM job_versions"))


def test_a_job_that_becomes_manual_loses_its_timer_and_is_not_finished(database: Database) -> None:
    database.submit(schedule="@every 1h")
    assert database.submit(schedule="manual").next_run_at is None
    assert database.count("timers") == 0
    assert database.value("SELECT finished_at FROM jobs") is None


def test_interval_keeps_its_anchor_across_edits_of_other_fields(clocked: ClockedDatabase) -> None:
    accepted_at = clocked.stop_clock()
    clocked.submit(schedule="@every 1h")
    clocked.advance(timedelta(minutes=100))
    edited = clocked.submit(schedule="@every 1h", payload=1)
    assert edited.next_run_at == accepted_at + timedelta(hours=2)
    moved_at = clocked.now()
    assert clocked.submit(schedule="@every 2h").next_run_at == moved_at + timedelta(hours=2)
    assert clocked.submit(schedule="@every 1h").next_run_at == moved_at + timedelta(hours=1)


def test_explicit_anchor_is_an_occurrence(clocked: ClockedDatabase) -> None:
    now = clocked.stop_clock()
    anchor = (now + timedelta(minutes=5)).isoformat()
    reply = clocked.submit(schedule={"interval": "1h", "anchor": anchor})
    assert reply.next_run_at == now + timedelta(minutes=5)


def test_past_once_fires_at_once_and_only_once(clocked: ClockedDatabase) -> None:
    now = clocked.stop_clock()
    past = (now - timedelta(days=3)).isoformat()
    clocked.submit(schedule={"once": past})
    fire_due(clocked)
    [run] = clocked.job_runs()
    assert (run.scheduled_at, run.publish_at) == (now - timedelta(days=3), now)
    # An edit that leaves the instant alone does not fire it again; another instant is another occurrence.
    assert clocked.submit(schedule={"once": past}, payload=1).next_run_at is None
    fire_due(clocked)
    assert len(clocked.job_runs()) == 1
    later = (now + timedelta(days=1)).isoformat()
    assert clocked.submit(schedule={"once": later}).next_run_at == now + timedelta(days=1)
    assert clocked.value("SELECT finished_at FROM jobs") is None


def test_edit_of_an_overdue_once_fires_it_once(clocked: ClockedDatabase) -> None:
    now = clocked.stop_clock()
    due = (now + SECOND).isoformat()
    clocked.submit(schedule={"once": due})
    clocked.advance(5 * SECOND)
    assert clocked.submit(schedule={"once": due}, payload=1).next_run_at is None
    fire_due(clocked)
    assert [(run.scheduled_at, run.job_version) for run in clocked.job_runs()] == [(now + SECOND, 1)]


def test_the_same_key_in_two_tenants_is_two_jobs(database: Database) -> None:
    database.execute("INSERT INTO tenants (tenant) VALUES ('acme')")
    ours, theirs = database.submit(), database.accept(submission() | {"tenant": "acme"})
    assert UUID(ours.job_id) != UUID(theirs.job_id)
    assert [theirs.tenant, theirs.job_version] == ["acme", 1]
    assert database.count("jobs") == 2


@pytest.mark.parametrize("between", [about("job.delete"), submission(schedule="@every 1h")], ids=["deleted", "edited"])
def test_once_whose_instant_has_a_run_is_refused(clocked: ClockedDatabase, between: dict[str, object]) -> None:
    """It could never fire: the run of an instant has one id."""
    now = clocked.stop_clock()
    once: dict[str, Any] = {"schedule": {"once": now.isoformat()}}
    clocked.submit(**once)
    fire_due(clocked)
    assert clocked.submit(**once).unchanged, "a deploy submits again what it always submits"
    clocked.submit(**once, description="the same instant")
    clocked.apply_batch(between)
    clocked.advance(SECOND)
    error = clocked.refuse(submission(**once))
    assert (error.path, error.remedy) == ("job.schedule.once", "trigger the job, or write another time")
    clocked.submit(schedule={"once": clocked.now().isoformat()})
    fire_due(clocked)
    assert clocked.count("runs") == 2


def test_recreated_recurring_job_continues_after_its_earlier_runs(still: ClockedDatabase) -> None:
    every: dict[str, Any] = {"schedule": "@every 1s", "overlap": "allow_all"}
    still.submit(**every)
    still.advance(2 * SECOND)
    fire_due(still)
    still.apply_batch(about("job.delete"))
    still.submit(**every)
    still.advance(SECOND)
    fire_due(still)
    assert still.count("runs") == 3
