"""Completion events of a batch: each has its own headers and ids."""

from dataclasses import replace
from uuid import UUID

import pytest

from tests.fixtures.acts import EXECUTOR, ending
from tests.fixtures.database import Database
from tidewheel.intake.apply import apply_requests
from tidewheel.intake.request import ReceivedRequest
from tidewheel.jobs.parsing import parse_request
from tidewheel.jobs.values import format_timestamp
from tidewheel.runs import RunState
from tidewheel.schemas.codec import decode, encode_json
from tidewheel.schemas.generated.records import RequestOrigin, RunCompleted
from tidewheel.transitions.finish import finish_runs
from tidewheel.transitions.finished import RunEnd

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def headers(database: Database) -> dict[str, dict[bytes, bytes]]:
    """The headers of each completion, by its run."""
    topic = database.installation.topics.completions
    rows = database.rows("SELECT headers, value FROM outbox WHERE topic = %s", [topic])
    return {decode(value, RunCompleted).run_id: dict(zip(h[::2], h[1::2], strict=True)) for h, value in rows}


def test_each_completion_of_a_batch_has_its_own_headers(database: Database) -> None:
    database.submit(retry={"max_attempts": 1})
    plain, second, failed = database.begun(), database.begun(), database.begun()
    traced = database.begin(database.trigger(traceparent=TRACE))
    database.end(
        *(ending(one, RunState.SUCCEEDED) for one in (plain, second, traced)),
        ending(failed, RunState.FAILED, error_type="E"),
    )
    events = {event.run_id: event for event in database.completions()}
    for run_id, told in headers(database).items():
        event = events[run_id]
        expected = {
            b"ce_id": event.event_id.encode(),
            b"ce_type": f"io.tidewheel.run.{event.status}.v1".encode(),
            b"ce_source": database.installation.source.encode(),
            b"ce_time": format_timestamp(event.finished_at).encode(),
            b"ce_subject": run_id.encode(),
            b"ce_specversion": b"1.0",
            b"content-type": b"application/avro",
        }
        assert told == expected | ({b"traceparent": TRACE.encode()} if run_id == str(traced.run_id) else {})
    assert {event.status for event in events.values()} == {"succeeded", "failed"}
    assert len({event.event_id for event in events.values()}) == 4


@pytest.mark.parametrize("state", [RunState.SUCCEEDED, RunState.FAILED])
def test_json_completion_holds_the_same_fields(database: Database, state: RunState) -> None:
    database.submit(labels={"team": "billing"}, retry={"max_attempts": 1})
    started = database.begun()
    in_json = replace(database.installation, content_type="application/json", encode_event=encode_json)
    with database.transaction() as connection:
        finish_runs(connection, in_json, [ending(started, state, result=b"1", error_type="E", reason="so")])
    topic = database.installation.topics.completions
    [(value, parts)] = database.rows("SELECT value, headers FROM outbox WHERE topic = %s", [topic])
    assert value[:1] == b"{"
    assert parts[parts.index(b"content-type") + 1] == b"application/json"
    event = decode(value, RunCompleted)
    assert (event.run_id, event.status, event.executor_id) == (str(started.run_id), state, str(EXECUTOR))
    assert (event.labels, event.reason, event.started_at) == ({"team": "billing"}, "so", started.started_at)
    assert (event.result, event.error is None) == ((b"1", True) if state is RunState.SUCCEEDED else (None, False))


def test_completions_name_the_executor_of_each_run(database: Database) -> None:
    database.submit()
    held, waiting = database.begun(), database.trigger()
    database.end(ending(held, RunState.SUCCEEDED), RunEnd(waiting, 0, RunState.CANCELLED, reason="asked"))
    told = {event.run_id: (event.executor_id, event.started_at, event.reason) for event in database.completions()}
    assert told == {
        str(held.run_id): (str(EXECUTOR), held.started_at, None),
        str(waiting): (None, None, "asked"),
    }


@pytest.mark.parametrize("state", [RunState.SUCCEEDED, RunState.FAILED])
def test_completion_names_the_request_that_created_its_run(database: Database, state: RunState) -> None:
    database.submit()
    origin = RequestOrigin(topic="tidewheel.requests", partition=3, offset=7)
    wanted = parse_request({"type": "job.trigger", "key": "job", "request_id": "r-1"})
    with database.transaction() as connection:
        [reply] = apply_requests(connection, database.installation, [ReceivedRequest(wanted, origin)])
    database.end(ending(database.begin(UUID(reply.run_id)), state))
    own = database.begun()
    database.end(ending(own, state))
    found = {event.run_id: (event.request_id, event.origin) for event in database.completions()}
    assert found == {reply.run_id: ("r-1", origin), str(own.run_id): (None, None)}
