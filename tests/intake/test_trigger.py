"""Triggers, with their origin and their trace."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from tests.fixtures.acts import about, cancelling, refusal, submission
from tests.fixtures.database import ClockedDatabase, Database
from tests.fixtures.run_ids import run_instant
from tests.intake.running import Requests
from tests.scheduler.backfills import make_batch
from tests.transitions.stepping import batch_behind
from tidewheel.errors import InvalidInput
from tidewheel.ids import job_id, run_id
from tidewheel.local.stack import StackInfo
from tidewheel.runs import Cause
from tidewheel.schemas.generated.records import Reply, RequestOrigin, RunRequest


@pytest.fixture
def still(clocked: ClockedDatabase) -> ClockedDatabase:
    clocked.stop_clock()
    clocked.submit(payload={"to": "everybody"})
    return clocked


def test_trigger_runs_now_and_reports_its_run_id(still: ClockedDatabase) -> None:
    [reply] = still.apply_batch(about("job.trigger", request_id="r-1"))
    now = still.now()
    expected = run_id(job_id("default", "job"), now, Cause.TRIGGER, b"r-1")
    assert (reply.status, reply.run_id, reply.next_run_at, reply.job_version) == ("accepted", str(expected), now, 1)
    [run] = still.job_runs()
    assert (run.run_id, run.cause, run.scheduled_at, run.publish_at) == (expected, "trigger", now, now)
    assert len(still.claim(run.run_id).started) == 1


def _in_90_seconds(now: datetime) -> str:
    return (now + timedelta(seconds=90)).isoformat()


@pytest.mark.parametrize("wanted", [{"delay": "90s"}, {"delay": 90}, {"run_at": _in_90_seconds}])
def test_delayed_trigger_is_stored_at_once_and_published_later(still: ClockedDatabase, wanted: dict[str, Any]) -> None:
    now = still.now()
    fields: dict[str, Any] = {name: value(now) if callable(value) else value for name, value in wanted.items()}
    run = still.open_run(still.trigger(**fields))
    assert run.scheduled_at == run.publish_at == now + timedelta(seconds=90)
    [(leaves_at,)] = still.rows("SELECT publish_at FROM outbox WHERE topic LIKE '%.runs.%'")
    assert leaves_at == run.publish_at
    assert abs(run_instant(run.run_id) - run.scheduled_at) < timedelta(milliseconds=1)


def test_past_trigger_instant_runs_now(still: ClockedDatabase) -> None:
    past = (still.now() - timedelta(days=500)).isoformat()
    assert still.open_run(still.trigger(run_at=past)).scheduled_at == still.now()


def test_distant_trigger_instant_is_refused_with_a_remedy(still: ClockedDatabase) -> None:
    limit = still.now() + timedelta(days=400)
    assert still.trigger(run_at=limit.isoformat())
    error = still.refuse(about("job.trigger", run_at=(limit + timedelta(seconds=1)).isoformat()))
    assert (error.path, error.remedy) == ("run_at", "submit a job with a `once` schedule instead")
    with pytest.raises(InvalidInput):
        still.apply_batch(about("job.trigger", delay="401d"))


def test_triggers_payload_replaces_the_jobs(still: ClockedDatabase) -> None:
    still.trigger()
    still.advance(timedelta(seconds=1))
    still.trigger(payload={"to": "ann"}, labels={"one": "1"})
    plain, own = still.requests()
    assert (plain.payload, plain.labels) == (None, None)
    assert (own.payload, own.payload_content_type, own.labels) == (b'{"to":"ann"}', "application/json", {"one": "1"})
    assert still.count("run_inputs") == 1


def test_a_trigger_writes_no_job_row(still: ClockedDatabase) -> None:
    before = still.rows("SELECT xmin, * FROM jobs")
    still.trigger()
    assert still.rows("SELECT xmin, * FROM jobs") == before


def test_every_request_for_an_unknown_tenant_is_refused(still: ClockedDatabase) -> None:
    documents = [about("job.trigger"), submission(), about("job.pause"), cancelling(UUID(int=1))]
    for reply in still.apply_batch(*(each | {"tenant": "acme"} for each in documents)):
        assert refusal(reply).path == "tenant"


def test_batch_of_triggers_creates_one_run_each_in_order(still: ClockedDatabase) -> None:
    still.submit("other")
    keys = ["job", "other", "missing", "job"]
    replies = still.apply_batch(*(about("job.trigger", key) for key in keys))
    assert [reply.key for reply in replies] == keys
    assert [reply.status for reply in replies] == ["accepted", "accepted", "rejected", "accepted"]
    assert {str(run.run_id) for run in still.job_runs()} == {reply.run_id for reply in replies if reply.run_id}
    assert len(still.job_runs()) == 3


def test_trigger_does_not_wait_for_a_concurrent_firing(database: Database) -> None:
    database.submit(schedule="@every 1h")
    firing = database.connection()
    firing.execute("SELECT FROM timers FOR UPDATE")
    assert database.trigger()
    firing.rollback()


def test_trigger_waits_for_a_concurrent_deletion_and_finds_no_job(with_job: Database) -> None:
    deletion = about("job.delete")
    [reply] = batch_behind(
        with_job, lambda connection: with_job.apply_batch_within(connection, deletion), about("job.trigger")
    )
    assert reply.code == "unknown_job"
    assert with_job.job_runs() == []


SENT, OWN = f"00-{'a' * 32}-{'b' * 16}-01", f"00-{'c' * 32}-{'d' * 16}-01"
TRIGGER = {"type": "job.trigger", "key": "job"}


@pytest.fixture
def requests(database: Database, info: StackInfo) -> Requests:
    database.submit(schedule="0 * * * *")
    made = Requests(database, info.kafka)
    database.installation = made.installation
    return made


def ask(requests: Requests, request: Mapping[str, object], **headers: str | bytes) -> tuple[Reply, RequestOrigin]:
    """Let a running intake apply a request; return its reply and its coordinates."""
    [offset] = requests.send(request, headers=headers)
    requests.until_read(offset)
    origin = RequestOrigin(topic=requests.topics.requests, partition=0, offset=offset)
    [reply] = [reply for reply in requests.replies() if reply.origin == origin]
    assert reply.status == "accepted", reply.errors
    return reply, origin


def trace_of(requests: Requests, run_id: str | None) -> str | None:
    topic = requests.topics.runs("default", "standard")
    [message] = [each for each in requests.database.messages(topic, RunRequest) if each.run_id == run_id]
    return message.traceparent


@pytest.mark.kafka
def test_traceparent_header_is_the_trace_of_the_run_unless_the_request_names_one(requests: Requests) -> None:
    with requests.running():
        sent, _ = ask(requests, TRIGGER, traceparent=SENT)
        own, _ = ask(requests, {**TRIGGER, "traceparent": OWN}, traceparent=SENT)
        wrong = [
            ask(requests, TRIGGER, traceparent=text)[0] for text in (b"\xff\xfe", "00-1-2-01", SENT.replace("a", "0"))
        ]
    assert (trace_of(requests, sent.run_id), trace_of(requests, own.run_id)) == (SENT, OWN)
    assert {trace_of(requests, reply.run_id) for reply in wrong} == {None}


@pytest.mark.kafka
def test_request_that_is_sent_again_in_another_trace_is_the_same_request(requests: Requests) -> None:
    with requests.running():
        first, origin = ask(requests, {**TRIGGER, "request_id": "r"}, traceparent=SENT)
        [offset] = requests.send({**TRIGGER, "request_id": "r"}, headers={"traceparent": OWN})
        requests.until_read(offset)
    assert [(reply.run_id, reply.origin) for reply in requests.replies()] == [(first.run_id, origin)] * 2
    assert trace_of(requests, first.run_id) == SENT


@pytest.mark.kafka
def test_runs_of_triggers_retries_and_backfills_name_their_request_in_their_completions(requests: Requests) -> None:
    database = requests.database
    [(last,)] = database.rows("SELECT date_trunc('hour', tidewheel_now()) - interval '3 hours'")
    span = {"from": last.isoformat(), "to": last.isoformat()}
    backfill = {"type": "job.backfill", "key": "job", "versions": "current", **span}
    with requests.running():
        trigger, triggered = ask(requests, TRIGGER, traceparent=SENT)
        database.succeed(database.begin(UUID(trigger.run_id)))
        retry, retried = ask(requests, {"type": "run.retry", "run_id": trigger.run_id})
        database.succeed(database.begin(UUID(retry.run_id)))
        filled, asked = ask(requests, backfill, traceparent=OWN)
    assert make_batch(database, UUID(filled.backfill_id)) == 1
    [(run_id,)] = database.rows("SELECT run_id FROM job_runs WHERE cause = 'backfill'")
    assert trace_of(requests, str(run_id)) == OWN
    database.succeed(database.begin(run_id))
    origins = {event.run_id: event.origin for event in database.completions()}
    assert origins == {trigger.run_id: triggered, retry.run_id: retried, str(run_id): asked}
