"""The header `traceparent` of a call over HTTP reaches the runs that it creates."""

from uuid import UUID

import pytest

from tests.control.api.answering import ApiClient, answer_of
from tests.control.api.test_conventions import a_past_day
from tests.fixtures.database import Database
from tests.scheduler.backfills import make_batch
from tests.transitions.test_after_end import headers

SENT, OTHER = f"00-{'a' * 32}-{'b' * 16}-01", f"00-{'c' * 32}-{'d' * 16}-01"
TRIGGER = "/api/v1/jobs/job:trigger"


@pytest.fixture
def client(client: ApiClient) -> ApiClient:
    client.database.submit(schedule="0 * * * *")
    return client


def trace_of(client: ApiClient, run_id: str) -> str | None:
    """Return the trace of a run, which its message, its completion and the API have alike."""
    [message] = [each for each in client.database.requests() if each.run_id == run_id]
    assert answer_of(client.get(f"/api/v1/runs/{run_id}"))["traceparent"] == message.traceparent
    started = client.database.begin(UUID(run_id))
    client.database.succeed(started)
    sent = headers(client.database)[run_id].get(b"traceparent")
    assert (sent and sent.decode()) == message.traceparent
    return message.traceparent


def test_trigger_retry_and_backfill_carry_the_trace_of_the_call(client: ApiClient, database: Database) -> None:
    traced = {"traceparent": SENT}
    run_id = client.post(TRIGGER, headers=traced).json()["run_id"]
    assert trace_of(client, run_id) == SENT
    retried = client.post(f"/api/v1/runs/{run_id}:retry", headers={"traceparent": OTHER}).json()["run_id"]
    assert trace_of(client, retried) == OTHER
    backfill = client.post("/api/v1/jobs/job:backfill", json=a_past_day(), headers=traced).json()["backfill_id"]
    assert make_batch(database, UUID(backfill)) > 0
    before = {run_id, retried}
    assert {each.traceparent for each in database.requests() if each.run_id not in before} == {SENT}


def test_repeated_call_in_another_trace_is_the_same_call_and_later_calls_have_no_trace(client: ApiClient) -> None:
    first, again = (
        client.post(TRIGGER, headers={"Idempotency-Key": "r", "traceparent": trace}) for trace in (SENT, OTHER)
    )
    assert first.json() == again.json()
    assert trace_of(client, first.json()["run_id"]) == SENT
    for none in ({}, {"traceparent": "00-1-2-01"}, {"traceparent": SENT.replace("a", "0")}):
        assert trace_of(client, client.post(TRIGGER, headers=none).json()["run_id"]) is None
