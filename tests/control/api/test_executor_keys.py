"""An executor with an API key starts the runs of the key's tenant and queues, and no others."""

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http import HTTPStatus
from pathlib import Path
from typing import TypeAlias
from uuid import UUID

import pytest

from tests.control.api.answering import ApiClient, Executor, answer_of, answering, enter, refusal
from tests.fixtures.acts import HANDLER, submission
from tests.fixtures.database import Database
from tests.fixtures.services import until
from tidewheel.api_keys import Scope
from tidewheel.control.client.client import Client
from tidewheel.control.supervise.dev import executor_token
from tidewheel.errors import Refused
from tidewheel.executor import remote_executors

Entered: TypeAlias = Callable[..., Executor]
TOKEN = "correct-horse-battery"


@pytest.fixture
def door(database: Database) -> Iterator[ApiClient]:
    """An API whose callers need a token or a key, and two tenants; its client shows none."""
    with Client(database.url) as client:
        client.tenants.create("acme")
        client.tenants.create("globex")
    for tenant in ("acme", "globex"):
        database.apply_batch(submission("job", queue="reports") | {"tenant": tenant})
        database.apply_batch(submission("other") | {"tenant": tenant})
    with answering(database, token=TOKEN) as client:
        del client.headers["Authorization"]
        yield client


def created(database: Database, *scopes: str, tenant: str = "acme", **about: object) -> str:
    with Client(database.url, tenant=tenant) as client:
        return client.api_keys.create("executors", scopes or ("execute",), **about).key  # type: ignore[arg-type]


@pytest.fixture
def entered(door: ApiClient) -> Iterator[Entered]:
    """Register an executor with a key for some queues, and return it; its calls show the key."""
    with ExitStack() as stack:

        def enter_with(key: str, *queues: str) -> Executor:
            headers = {"Authorization": f"Bearer {key}"}
            caller = stack.enter_context(ApiClient(base_url=door.base_url, headers=headers, trust_env=False))
            caller.database = door.database
            return enter(caller, queues=queues or ("reports", "default"))

        yield enter_with


def swept(executor: Executor, claim_id: int = 1) -> list[str]:
    return [each["run_id"] for each in answer_of(executor.ask("claim", claim_id=claim_id, sweep=10))["started"]]


def test_executor_of_a_tenant_starts_the_runs_of_its_tenant_and_queues_alone(door: ApiClient, entered: Entered) -> None:
    database = door.database
    runs = {
        (tenant, key): str(database.trigger(key, tenant=tenant))
        for tenant in ("acme", "globex")
        for key in ("job", "other")
    }
    executor = entered(created(database, queues=["reports"]), "reports")
    # A message of another tenant, or of another queue of its own, starts nothing.
    for run in (runs["globex", "job"], runs["acme", "other"]):
        assert executor.claim(UUID(run)) == []
        assert database.open_run(UUID(run)).state == "queued"
    assert swept(executor, 7) == [runs["acme", "job"]]
    assert answer_of(executor.ask("claim", claim_id=7, sweep=10))["started"][0]["run_id"] == runs["acme", "job"]


def test_executor_of_all_tenants_starts_runs_by_message_and_sweep(door: ApiClient, entered: Entered) -> None:
    runs = {str(door.database.trigger("job", tenant=tenant)) for tenant in ("acme", "globex")}
    key = door.database.client.api_keys.create("fleet", ["execute"], all_tenants=True).key
    executor = entered(key)
    first, second = runs
    assert [each["run_id"] for each in executor.claim(UUID(first))] == [first]
    door.database.execute("UPDATE job_runs SET publish_at = publish_at - interval '1 hour'")
    assert swept(executor, 2) == [second]


def test_executor_is_served_with_the_key_that_registered_it_alone(door: ApiClient, entered: Entered) -> None:
    database = door.database
    run_id = database.trigger("job", tenant="acme")
    executor = entered(created(database))
    assert swept(executor) == [str(run_id)]
    outcome = {"run_id": str(run_id), "attempt": 1, "status": "succeeded"}
    for other in (created(database), created(database, tenant="globex"), TOKEN):
        stranger = Executor(entered(other).client, executor.executor_id)
        for verb, body in (("heartbeat", {}), ("claim", {"claim_id": 5, "sweep": 1})):
            assert refusal(stranger.ask(verb, **body), HTTPStatus.NOT_FOUND)["code"] == "unknown_executor"
        [answer] = answer_of(stranger.ask("finish", outcomes=[outcome]))["outcomes"]
        assert answer["answer"] == "superseded"
        stranger.ask("leave")
    assert executor.heartbeat() == []
    [answer] = answer_of(executor.ask("finish", outcomes=[outcome]))["outcomes"]
    assert answer["answer"] == "recorded"


def test_key_opens_the_calls_of_executors_by_its_scope_and_queues_until_it_is_revoked(
    door: ApiClient, entered: Entered
) -> None:
    database = door.database
    body = {"name": "here:1", "handlers": [HANDLER], "queues": ["reports"], "slots": 4}
    for scope in (*set(Scope) - {Scope.EXECUTE}, Scope.EXECUTE):
        key = created(database, scope, queues=["billing"] if scope is Scope.EXECUTE else ())
        refused = door.post("/api/v1/executors", json=body, headers={"Authorization": f"Bearer {key}"})
        assert refused.status_code == HTTPStatus.FORBIDDEN, scope
        assert ("queue reports" if scope is Scope.EXECUTE else "scope execute") in refused.json()["detail"]
    assert database.count("executors") == 0
    key = created(database)
    executor = entered(key)
    for path in ("/api/v1/jobs", "/api/v1/keys"):
        assert executor.client.get(path).status_code == HTTPStatus.FORBIDDEN
    with Client(database.url) as client:
        [kept] = [each for each in client.api_keys.list(all_tenants=True) if each.key_id in key]
        assert (kept.scopes, kept.queues) == ((Scope.EXECUTE,), ["*"])
        client.api_keys.revoke(kept.key_id, all_tenants=True)
    until(lambda: executor.ask("heartbeat").status_code == HTTPStatus.UNAUTHORIZED, "the revocation")


def test_token_of_all_executors_works_for_a_release_with_a_warning(
    door: ApiClient, entered: Entered, caplog: pytest.LogCaptureFixture
) -> None:
    run_id = door.database.trigger("job", tenant="acme")
    door.database.execute("UPDATE job_runs SET publish_at = publish_at - interval '1 hour'")
    assert swept(entered(TOKEN)) == [str(run_id)]
    warning = "opens the calls of executors for all tenants"
    with answering(door.database, token=TOKEN):  # begun within the call: a record between two phases is in neither
        until(lambda: any(warning in each.getMessage() for each in caplog.records), "the warning")


def test_token_of_dev_brings_no_warning(database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """`tidewheel dev` warned new users of a setting that they had not set: issue 40."""
    with caplog.at_level(logging.INFO, "tidewheel.api"), answering(database, token=executor_token(tmp_path)):
        until(lambda: any("listening on" in each.getMessage() for each in caplog.records), "the start")
    assert not [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


@pytest.mark.parametrize("of", ["key", "token"])
def test_executors_of_a_key_and_of_the_token_are_limited_in_number(
    door: ApiClient, entered: Entered, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    monkeypatch.setattr(remote_executors, "MAX_EXECUTORS", 2)
    key = created(door.database) if of == "key" else TOKEN
    other = created(door.database, tenant="globex")
    executors = [entered(key) for _ in range(2)]
    body = {"name": "here:1", "handlers": [HANDLER], "slots": 4}
    refused = executors[0].client.post("/api/v1/executors", json=body)
    [error] = refusal(refused)["errors"]
    assert error["problem"].startswith("2 executors are registered with this key")
    entered(other)
    executors[1].ask("leave")
    entered(key)


def test_queues_without_the_scope_are_refused(database: Database) -> None:
    database.submit()
    with Client(database.url) as client:
        with pytest.raises(Refused, match="queues: need the scope execute"):
            client.api_keys.create("n", ["read"], queues=["reports"])
        with pytest.raises(Refused, match=r"queues\.0: "):
            client.api_keys.create("n", ["execute"], queues=["not a queue"])
