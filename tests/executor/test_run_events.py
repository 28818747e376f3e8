"""Starts and retries of runs are events where `events.runs` is `all`, and cost nothing elsewhere."""

from dataclasses import replace

import pytest

from tests.executor.running import Executing

pytestmark = pytest.mark.kafka

TRACE = f"00-{'a' * 32}-{'b' * 16}-01"
RETRIES = {"retry": {"max_attempts": 4, "intervals": ["1ms"]}}


def test_starts_and_retries_are_events_in_the_order_of_the_run(executing: Executing) -> None:
    database = executing.database
    database.installation = replace(database.installation, run_events=True)
    database.submit("fails-twice", target="acts.fail-until", **RETRIES)
    run = database.trigger("fails-twice", payload=3, traceparent=TRACE)
    with executing.running():
        assert executing.ended(run).state == "succeeded"
    events = [event for event in database.lifecycle() if event.run_id is not None]
    assert {event.run_id for event in events} == {str(run)}
    [completion] = database.completions()
    assert [(event.type.split(".")[3], event.attempt, event.sequence, event.reason) for event in events] == [
        ("started", 1, 1, None),
        ("retrying", 1, 2, "failed"),
        ("started", 2, 3, None),
        ("retrying", 2, 4, "failed"),
        ("started", 3, 5, None),
    ]
    assert completion.sequence == 6
    assert {(event.job_id, event.job_key, event.job_version) for event in events} == {
        (completion.job_id, completion.job_key, 1)
    }
    started, retrying = events[0], events[1]
    assert started.detail == {"executor_id": completion.executor_id, "queue": "default", "lane": "standard"}
    assert retrying.detail.keys() == {"next_attempt_at", "error_type", "error_message"}
    assert len({event.event_id for event in events}) == 5
    headers = database.rows("SELECT headers FROM outbox WHERE headers @> ARRAY[%s]::bytea[]", [str(run).encode()])
    traces = [dict(zip(parts[::2], parts[1::2], strict=True))[b"traceparent"].decode() for (parts,) in headers]
    assert traces == [TRACE] * 6  # of the completion too


def test_runs_have_no_events_before_their_end_by_default(executing: Executing) -> None:
    with executing.running():
        assert executing.run("acts.fail-until", 2, **RETRIES).state == "succeeded"
    assert [event for event in executing.database.lifecycle() if event.run_id is not None] == []
