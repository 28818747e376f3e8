"""The HTTP API: authorization, early refusals and problem documents."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from threading import Event

import httpx
import pytest
from psycopg.conninfo import make_conninfo

from tests.control.api.answering import ApiClient, answering, enter, refusal
from tests.fixtures.database import Database
from tests.fixtures.services import until
from tidewheel.control.api.app import Api
from tidewheel.control.api.workers import WorkerState
from tidewheel.errors import SettingsError
from tidewheel.process.service import Shutdown
from tidewheel.schemas.codec import all_schemas
from tidewheel.settings.services import ApiSettings

TOKEN = "correct-horse-battery"
REGISTRATION = {"name": "here:1", "handlers": ["a"], "slots": 1}


def test_without_database_healthz_is_200_and_readyz_names_the_database(database: Database) -> None:
    nowhere = Database(make_conninfo(database.url, dbname="there_is_none"), database.installation)
    with answering(nowhere) as client:
        assert client.get("/healthz").status_code == HTTPStatus.OK
        for answer in (client.get("/readyz"), client.post("/api/v1/executors", json=REGISTRATION)):
            assert refusal(answer, HTTPStatus.SERVICE_UNAVAILABLE)["code"] == "unavailable"
            assert answer.headers["retry-after"] == "1"


def test_schema_is_found_by_the_fingerprint_of_a_message(client: httpx.Client, database: Database) -> None:
    database.submit()
    database.trigger()
    message = database.value("SELECT value FROM outbox WHERE topic LIKE '%%runs%%'")
    answer = client.get(f"/api/v1/schemas/{message[2:10].hex()}")
    assert answer.json()["name"] == "RunRequest"
    for nothing in ("00" * 8, "c301", "zz", message[2:10].hex(" ")):
        refusal(client.get(f"/api/v1/schemas/{nothing}"), HTTPStatus.NOT_FOUND)


@pytest.mark.landing
def test_schemas_of_other_releases_are_read_one_at_a_time(database: Database, fresh_database: Database) -> None:
    newer = b"\x01" * 8
    own = all_schemas()[0]
    nowhere = Database(make_conninfo(database.url, dbname="there_is_none"), database.installation)
    with answering(nowhere) as client:
        assert client.get(f"/api/v1/schemas/{own.fingerprint.hex()}").text == own.text
    fresh_database.execute("INSERT INTO schemas VALUES (%s, 'x.New', '9.0.0', '\"string\"')", [newer])
    with answering(fresh_database) as client, ThreadPoolExecutor(2) as askers:
        path = f"/api/v1/schemas/{newer.hex()}"
        with fresh_database.transaction() as held:
            held.execute("LOCK TABLE schemas")
            asked = [askers.submit(client.get, path) for _ in range(2)]
            until(lambda: any(each.done() for each in asked), "none waits for as long as the lock")
            [refused, *_] = [each.result() for each in asked if each.done()]
            assert refusal(refused, HTTPStatus.SERVICE_UNAVAILABLE)["code"] == "busy"
            assert client.get("/readyz").status_code == HTTPStatus.OK
        assert client.get(path).text == '"string"'


def test_every_invalid_field_is_named(shared_client: ApiClient) -> None:
    client = shared_client
    told = refusal(client.post("/api/v1/executors", json={"name": "", "handler": "a", "slots": 0}))
    assert told["code"] == "invalid"
    problems = {error["path"]: error for error in told["errors"]}
    assert set(problems) == {"name", "handler", "handlers", "slots"}
    assert problems["handler"]["remedy"] == "did you mean 'handlers'?"


@pytest.mark.parametrize(
    ("outcome", "path", "problem"),
    [
        ({"status": "succeeded", "error_type": "E"}, "outcomes.0.error_type", "is not allowed with 'succeeded'"),
        ({"status": "failed"}, "outcomes.0.error_type", "is required with 'failed'"),
        ({"status": "snoozed"}, "outcomes.0.delay", "is required with 'snoozed'"),
        ({"status": "succeded"}, "outcomes.0.status", "'succeded' is not valid"),
        ({"status": "succeeded", "result": "x" * 70_000}, "outcomes.0.result", "has 70002 bytes"),
        ({"status": "waiting", "within": "0s"}, "outcomes.0.within", "'0s' is not valid"),
    ],
)
def test_fields_must_fit_the_status(
    shared_client: ApiClient, outcome: dict[str, object], path: str, problem: str
) -> None:
    client = shared_client
    body = {"outcomes": [{"run_id": "019d3a1c-7f00-8123-8456-789abcdef012", "attempt": 1, **outcome}]}
    told = refusal(client.post(f"/api/v1/executors/{enter(client).executor_id}:finish", json=body))
    [error] = told["errors"]
    assert error["path"] == path
    assert error["problem"].startswith(problem)


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b'{"name": "a", "name": "b"}', "application/json", HTTPStatus.UNPROCESSABLE_ENTITY),
        (b'{"name":', "application/json", HTTPStatus.BAD_REQUEST),
        (b"[]", "application/json", HTTPStatus.BAD_REQUEST),
        (b"\xff", "application/json", HTTPStatus.BAD_REQUEST),
        (b"[" * 100_000, "application/json", HTTPStatus.BAD_REQUEST),
        (b"{}", "text/plain", HTTPStatus.UNSUPPORTED_MEDIA_TYPE),
        (b" " * (1 << 20) + b"{}", "application/json", HTTPStatus.REQUEST_ENTITY_TOO_LARGE),
    ],
)
def test_invalid_body_is_refused(shared_client: ApiClient, body: bytes, kind: str, status: HTTPStatus) -> None:
    refusal(shared_client.post("/api/v1/executors", content=body, headers={"Content-Type": kind}), status)


def test_without_token_other_host_names_are_refused(shared_client: ApiClient) -> None:
    client = shared_client
    told = refusal(client.get("/healthz", headers={"Host": "evil.example"}), HTTPStatus.MISDIRECTED_REQUEST)
    assert "evil.example" in told["detail"]
    assert client.get("/healthz", headers={"Host": "localhost:8080"}).status_code == HTTPStatus.OK


def test_without_token_a_wrong_authorization_is_refused_and_none_is_needed(shared_client: ApiClient) -> None:
    client = shared_client
    for wrong in ("Bearer wrong", "Basic dXNlcjpwYXNz", "Bearer", "wrong"):
        for method, path in (("GET", "/api/v1/jobs"), ("POST", "/api/v1/executors"), ("GET", "/api/v1/openapi.json")):
            told = refusal(client.request(method, path, headers={"Authorization": wrong}), HTTPStatus.UNAUTHORIZED)
            assert "leave the header out" in told["detail"]
        assert client.get("/readyz", headers={"Authorization": wrong}).status_code == HTTPStatus.OK
    assert client.get("/api/v1/jobs").status_code == HTTPStatus.OK
    assert client.get("/api/v1/jobs", headers={"Authorization": ""}).status_code == HTTPStatus.OK


def test_executors_must_send_the_configured_token(database: Database) -> None:
    with answering(database, token=TOKEN) as client:
        enter(client)
        for wrong in ("", "Bearer wrong", f"Basic {TOKEN}", "Bearer"):
            answer = client.post("/api/v1/executors", json=REGISTRATION, headers={"Authorization": wrong})
            assert refusal(answer, HTTPStatus.UNAUTHORIZED)["code"] == "unauthorized"
            assert answer.headers["www-authenticate"] == "Bearer"
        refusal(client.get("/api/v1/nothing", headers={"Authorization": ""}), HTTPStatus.UNAUTHORIZED)
        assert client.get("/readyz", headers={"Authorization": ""}).status_code == HTTPStatus.OK
    assert database.count("executors") == 1


@pytest.mark.parametrize(
    ("told", "remedy"),
    [
        ({"api_host": "0.0.0.0"}, "TIDEWHEEL_API_TOKEN: is required when TIDEWHEEL_API_HOST is 0.0.0.0"),  # noqa: S104
        ({"api_token": "short"}, "TIDEWHEEL_API_TOKEN: is not a bearer token"),
        ({"api_token": ""}, "TIDEWHEEL_API_TOKEN: is not a bearer token"),
    ],
)
def test_missing_or_malformed_api_token_is_refused(told: dict[str, object], remedy: str) -> None:
    with pytest.raises(SettingsError) as raised:
        ApiSettings.load(**told)
    assert str(raised.value).startswith(remedy)
    assert "short" not in str(raised.value)


def test_address_in_use_is_reported_at_start(client: httpx.Client, database: Database) -> None:
    taken = client.base_url.port
    with pytest.raises(SettingsError, match=f"cannot listen on 127.0.0.1 port {taken}"):
        Api(ApiSettings.load(api_port=taken), database.url, database.installation, Shutdown())


def test_full_queue_is_answered_with_503(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    free, do = Event(), WorkerState.do

    def do_later(state: WorkerState, work: Callable[[WorkerState], object], *, may_block_claims: bool) -> object:
        assert free.wait(60)
        return do(state, work, may_block_claims=may_block_claims)

    with answering(database, api_threads=1) as client, ThreadPoolExecutor(18) as askers:
        path = f"/api/v1/executors/{enter(client).executor_id}:heartbeat"
        monkeypatch.setattr(WorkerState, "do", do_later)  # a request that meets a lock gives its thread back
        try:
            asked = [askers.submit(client.post, path) for _ in range(18)]  # one is worked on, 16 wait
            until(lambda: any(each.done() for each in asked), "one too many is refused")
            [refused] = [each.result() for each in asked if each.done()]
            assert refusal(refused, HTTPStatus.SERVICE_UNAVAILABLE)["code"] == "overloaded"
        finally:
            free.set()
        assert sorted(each.result().status_code for each in asked) == [HTTPStatus.OK] * 17 + [503]
