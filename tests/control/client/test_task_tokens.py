"""Requests of `Client` and `AsyncClient` by an attempt's task token."""

from collections.abc import Iterator

import pytest

from tests.fixtures.database import Database
from tests.intake.waiting import token_of, waiting
from tidewheel import Client
from tidewheel.errors import InvalidInput, Refused, StaleToken
from tidewheel.runs import RunState


@pytest.fixture
def client(database: Database) -> Iterator[Client]:
    database.submit()
    with Client(database.url) as made:
        yield made


def test_success_is_recorded_once_with_its_result(database: Database, client: Client) -> None:
    started = waiting(database)
    token = token_of(database, started)
    assert client.task_tokens.complete(token, {"rows": 7}) is RunState.SUCCEEDED
    run = client.runs.wait(started.run_id)
    assert (run.state, run.result) == ("succeeded", b'{"rows":7}')
    with pytest.raises(StaleToken, match="is over: the run is succeeded") as refused:
        client.task_tokens.fail(token)
    assert (refused.value.run_id, refused.value.state) == (str(started.run_id), "succeeded")


def test_failure_is_retried_by_policy_unless_permanent(database: Database, client: Client) -> None:
    started = waiting(database)
    assert client.task_tokens.fail(token_of(database, started), "NoPaper", "the tray is empty") is RunState.RETRYING
    database.execute("UPDATE job_runs SET publish_at = tidewheel_now()")
    again = database.begin(started.run_id)
    ended = client.task_tokens.fail(token_of(database, again), "NoPaper", "still empty", permanent=True)
    assert ended is RunState.FAILED
    run = client.runs.get(started.run_id)
    assert (run.state, run.error_type, run.error_message) == ("failed", "NoPaper", "still empty")
    assert database.attempts(started.run_id) == [(1, "failed"), (2, "failed")]


def test_heartbeat_returns_the_state_of_the_run(database: Database, client: Client) -> None:
    started = database.begun()
    token = token_of(database, started)
    assert client.task_tokens.heartbeat(token, progress={"done": 1}, checkpoint=[3]) is RunState.RUNNING
    assert database.rows("SELECT progress, checkpoint FROM run_inputs") == [(b'{"done":1}', b"[3]")]
    database.apply_batch({"type": "run.cancel", "run_id": str(started.run_id)})
    assert client.task_tokens.heartbeat(token) is RunState.CANCELLING
    assert client.task_tokens.complete(token) is RunState.CANCELLED
    with pytest.raises(StaleToken):
        client.task_tokens.heartbeat(token)


def test_invalid_token_is_refused_by_its_field(client: Client) -> None:
    for token in ("A" * 48, "short"):
        with pytest.raises(Refused) as refused:
            client.task_tokens.complete(token)
        assert refused.value.code == InvalidInput.code
        assert [error.path for error in refused.value.errors] == ["token"]
