"""External completions and heartbeats by an attempt's task token."""

from collections.abc import Iterator
from http import HTTPStatus
from uuid import uuid4

import httpx
import pytest
from psycopg.conninfo import make_conninfo

from tests.control.api.answering import answering, refusal
from tests.fixtures.database import Database
from tests.intake.waiting import token_of, waiting
from tidewheel.task_tokens import task_token
from tidewheel.transitions.claim import Started


@pytest.fixture
def client(database: Database) -> Iterator[httpx.Client]:
    with answering(database, token="correct-horse-battery") as made:
        yield made


def a_waiting_run(database: Database) -> Started:
    database.submit()
    return waiting(database)


@pytest.mark.parametrize("in_header", [True, False])
def test_task_token_alone_authorizes(client: httpx.Client, database: Database, in_header: bool) -> None:  # noqa: FBT001
    started = a_waiting_run(database)
    token = token_of(database, started)
    body: dict[str, object] = {"status": "failed", "error_type": "Broken", "error_message": "no", "permanent": True}
    headers = {"Authorization": f"Bearer {token}"} if in_header else {"Authorization": ""}
    answer = client.post(
        f"/api/v1/runs/{started.run_id}:complete", json=body if in_header else body | {"token": token}, headers=headers
    )
    assert answer.json() == {"run_id": str(started.run_id), "run_status": "failed"}
    assert database.final_state(started.run_id)[0] == "failed"


def test_a_heartbeat_keeps_progress_and_checkpoint(client: httpx.Client, database: Database) -> None:
    started = a_waiting_run(database)
    answer = client.post(
        f"/api/v1/runs/{started.run_id}:heartbeat",
        json={"token": token_of(database, started), "progress": {"done": 3}, "checkpoint": [1, 2]},
        headers={"Authorization": ""},
    )
    assert answer.json() == {"run_id": str(started.run_id), "run_status": "waiting"}
    assert database.rows("SELECT progress, checkpoint FROM run_inputs") == [(b'{"done":3}', b"[1,2]")]
    assert database.open_run(started.run_id).state == "waiting"


def test_repeated_request_id_gets_the_first_reply_and_another_completion_changes_nothing(
    client: httpx.Client, database: Database
) -> None:
    started = a_waiting_run(database)
    bearer = {"Authorization": f"Bearer {token_of(database, started)}"}
    path, body = f"/api/v1/runs/{started.run_id}:complete", {"request_id": "c-1", "result": 7}
    first, again = (client.post(path, json=body, headers=bearer) for _ in range(2))
    assert (again.status_code, again.json()) == (HTTPStatus.OK, first.json())
    told = refusal(client.post(path, json={"status": "failed"}, headers=bearer), HTTPStatus.CONFLICT)
    assert told["code"] == "attempt_over"
    assert len(database.completions()) == 1


@pytest.mark.landing
@pytest.mark.parametrize("verb", ["complete", "heartbeat"])
@pytest.mark.parametrize("in_header", [True, False])
def test_forged_token_is_refused_without_a_transaction_and_uses_up_no_request_id(
    database: Database, *, verb: str, in_header: bool
) -> None:
    started = a_waiting_run(database)
    path, honest = f"/api/v1/runs/{started.run_id}:{verb}", {"request_id": "order-7"}
    nowhere = Database(make_conninfo(database.url, dbname="there_is_none"), database.installation)
    forged, genuine = task_token(b"another key", started.run_id, 1), token_of(database, started)
    altered = (f"{genuine}=", f"{genuine}====", f"{genuine[:5]}!{genuine[5:]}", f"{genuine}\u00e9")
    with answering(nowhere, token="correct-horse-battery") as client:  # a transaction would be answered with 503
        for token in (forged, forged[:-1], "nonsense", "\u00fc", *altered):
            shown: list[tuple[bytes, bytes]] = [(b"Authorization", f"Bearer {token}".encode() if in_header else b"")]
            body = honest if in_header else honest | {"token": token}
            answer = client.post(path, headers=shown, json=body)
            assert refusal(answer, HTTPStatus.UNAUTHORIZED)["code"] == "unauthorized"
            assert answer.headers["www-authenticate"] == "Bearer"
    with answering(database, token="correct-horse-battery") as client:
        client.post(path, headers={"Authorization": f"Bearer {forged}"}, json=honest)
        assert database.count("requests") == 0
        bearer = {"Authorization": f"Bearer {token_of(database, started)}"}
        assert client.post(path, headers=bearer, json=honest).status_code == HTTPStatus.OK


def test_token_of_another_run_and_request_of_another_kind_are_refused(client: httpx.Client, database: Database) -> None:
    started = a_waiting_run(database)
    others = database.installation.task_tokens.sign(uuid4(), 1)
    answer = client.post(f"/api/v1/runs/{started.run_id}:complete", headers={"Authorization": f"Bearer {others}"})
    [error] = refusal(answer)["errors"]
    assert error["path"] == "token"
    body = {"type": "run.heartbeat", "token": token_of(database, started)}
    answer = client.post(f"/api/v1/runs/{started.run_id}:complete", json=body, headers={"Authorization": ""})
    assert refusal(answer)["errors"][0]["path"] == "type"
    assert database.open_run(started.run_id).state == "waiting"
