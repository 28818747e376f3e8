"""A request's trace context and coordinates reach the runs that it makes."""

from collections.abc import Mapping
from uuid import UUID

import pytest

from tests.fixtures.database import Database
from tests.intake.running import Requests
from tests.scheduler.backfills import make_batch
from tidewheel.local.stack import StackInfo
from tidewheel.schemas.generated.records import Reply, RequestOrigin, RunRequest

pytestmark = pytest.mark.kafka

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


def test_traceparent_header_is_the_trace_of_the_run_unless_the_request_names_one(requests: Requests) -> None:
    with requests.running():
        sent, _ = ask(requests, TRIGGER, traceparent=SENT)
        own, _ = ask(requests, {**TRIGGER, "traceparent": OWN}, traceparent=SENT)
        wrong = [
            ask(requests, TRIGGER, traceparent=text)[0] for text in (b"\xff\xfe", "00-1-2-01", SENT.replace("a", "0"))
        ]
    assert (trace_of(requests, sent.run_id), trace_of(requests, own.run_id)) == (SENT, OWN)
    assert {trace_of(requests, reply.run_id) for reply in wrong} == {None}


def test_request_that_is_sent_again_in_another_trace_is_the_same_request(requests: Requests) -> None:
    with requests.running():
        first, origin = ask(requests, {**TRIGGER, "request_id": "r"}, traceparent=SENT)
        [offset] = requests.send({**TRIGGER, "request_id": "r"}, headers={"traceparent": OWN})
        requests.until_read(offset)
    assert [(reply.run_id, reply.origin) for reply in requests.replies()] == [(first.run_id, origin)] * 2
    assert trace_of(requests, first.run_id) == SENT


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
