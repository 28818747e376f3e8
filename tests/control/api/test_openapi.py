"""The OpenAPI document: complete, with an example of each body, and true of what the API answers."""

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, cast

import httpx
import jsonschema_rs
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import checks
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi import checks as openapi_checks

from tests.control.api.answering import ApiClient, answer_of, answering, enter
from tests.fixtures.acts import ending
from tests.fixtures.database import Database
from tidewheel.api_keys import Scope
from tidewheel.control.api.app import NOUNS
from tidewheel.doors.rest import routes_of
from tidewheel.runs import RunState

BY_HAND = {
    "createJob", "putJob", "patchJob", "submitJobs", "previewJob",  # whole jobs as bodies
    "triggerJob", "releaseJobs", "retryRun",  # methods of the client that differ in their arguments or results
    "deleteTenant",  # a body that repeats the name
    "getDiagnosis", "runDoctor", "getDocument", "getHealth", "getReadiness",  # state of the process
    "streamRunEvents", "getSchema",  # no JSON document
    "registerExecutor", "heartbeatExecutor", "claimRuns", "finishAttempts", "unregisterExecutor",
    "completeRun", "heartbeatRun",  # task tokens
}  # fmt: skip
"""The routes that no operation declares: 25 at most (ADR 0088)."""
_TOKEN = "token-of-this-test-only"
_METHODS = {"get", "head", "post", "put", "patch", "delete"}


@pytest.fixture
def client(client: ApiClient) -> ApiClient:
    client.database.submit()
    return client


def operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert method in _METHODS
            yield f"{method} {path}", operation


def test_routes_that_no_operation_declares_are_few_and_listed(client: httpx.Client) -> None:
    document = answer_of(client.get("/api/v1/openapi.json"))
    every = {each["operationId"] for _, each in operations(document)}
    declared = [each.name for noun, routes in NOUNS for each in routes_of(noun, routes)]
    derived = {re.sub(r"_(\w)", lambda found: found[1].upper(), name) for name in declared}
    assert len(derived) == len(declared)
    assert every - derived == BY_HAND
    assert len(BY_HAND) <= 25


def test_each_route_has_its_scope_and_an_example_of_its_body(client: httpx.Client) -> None:
    document = answer_of(client.get("/api/v1/openapi.json"))
    assert document["openapi"].startswith("3.1")
    seen: set[str] = set()
    for name, operation in operations(document):
        assert operation["summary"], name
        assert operation["operationId"] not in seen, name
        assert re.fullmatch(r"[a-z]+([A-Z][a-z]+)*", operation["operationId"]), name
        seen.add(operation["operationId"])
        assert operation.get("x-tidewheel-scope", "read") in set(Scope), name
        assert len(operation["tags"]) == 1
        for media, each in operation.get("requestBody", {}).get("content", {}).items():
            assert "example" in each, (name, media)
            schema = {**each["schema"], "components": document["components"]}
            jsonschema_rs.Draft202012Validator(schema).validate(each["example"])


def test_bodies_and_answers_have_names_and_all_their_fields(client: httpx.Client) -> None:
    """So that a generated client has a type for each, and no field of an answer may be undefined."""
    document = answer_of(client.get("/api/v1/openapi.json"))
    sent: set[str] = set()
    for name, operation in operations(document):
        bodies = [operation["requestBody"]] if "requestBody" in operation else []
        answers = [each for code, each in operation["responses"].items() if code.startswith("2")]
        for each in (*bodies, *answers):
            for media, content in each.get("content", {}).items():
                if "json" in media and not name.endswith(("/openapi.json", "/schemas/{fingerprint}")):
                    assert list(content["schema"]) == ["$ref"], (name, content["schema"])
                    sent |= {content["schema"]["$ref"]} if each in bodies else set()
    for name, schema in document["components"]["schemas"].items():
        if "additionalProperties" not in schema and "properties" in schema and name != "Problem":
            assert f"#/components/schemas/{name}" in sent or set(schema["required"]) == set(schema["properties"]), name
            assert "Args:" not in schema.get("description", "")


def test_examples_of_bodies_are_accepted(client: httpx.Client, database: Database) -> None:
    """Those of executors, task tokens and ids need rows that exist, a reschedule needs an ended run."""
    database.submit("nightly", schedule="0 2 * * *")
    document = answer_of(client.get("/api/v1/openapi.json"))
    for path, methods in document["paths"].items():
        if "/jobs" not in path or path.endswith((":release", ":reschedule")):
            continue
        for method, operation in methods.items():
            if method in {"post", "put", "patch"}:
                body = operation["requestBody"]["content"]["application/json"]["example"]
                answer = client.request(method, path.replace("{key}", "nightly"), json=body)
                assert answer.is_success, (method, path, answer.text)


@pytest.mark.slow
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=str)
def test_generated_requests_find_nothing(database: Database, mode: GenerationMode) -> None:
    """No internal error, no undocumented answer, no accepted request that the document forbids."""
    database.submit()
    started = database.begun()
    database.end(ending(started, RunState.FAILED, error_type="ValueError", error_message="no"))
    database.succeed(database.begun())
    database.trigger(delay="1h")
    names = ["status_code_conformance", "content_type_conformance", "response_schema_conformance", "unsupported_method"]
    if mode is GenerationMode.NEGATIVE:
        names.append("negative_data_rejection")
    verified: list[Any] = [cast("Any", checks).not_a_server_error, *(getattr(openapi_checks, name) for name in names)]
    asked = operated = 0
    key = database.client.api_keys.create("ops", ["admin"], all_tenants=True, rate=10_000).key
    with answering(database, token=_TOKEN) as client:
        enter(client)
        client.headers["Authorization"] = f"Bearer {key}"
        base_url = str(client.base_url).rstrip("/")
        document = answer_of(client.get("/api/v1/openapi.json"))
        del document["paths"]["/api/v1/run-events"]  # its answer does not end
        for _, operation in operations(document):
            operation.pop("security", None)  # each request has what its route needs: without it all answers are 401
        schema: Any = schemathesis.openapi.from_dict(document)
        for result in schema.get_all_operations():
            operation = result.ok()
            operated += 1

            @settings(
                max_examples=25, deadline=None, database=None, derandomize=True, phases=[Phase.generate],
                suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
            )  # fmt: skip
            @given(case=operation.as_strategy(generation_mode=mode))
            def ask(case: Any) -> None:  # noqa: ANN401 - generic in types that it does not export
                nonlocal asked
                asked += 1
                case.call_and_validate(base_url, checks=verified, headers=authorization(case, key), timeout=60)

            with suppress(Unsatisfiable):  # a route without parameters, of which nothing can be wrong
                ask()
    print("GENERATED", mode, f"{operated} operations, {asked} requests")  # noqa: T201 - for docs/rest.md
    assert asked > 500


def authorization(case: Any, key: str) -> dict[str, str]:  # noqa: ANN401 - as above
    """Return the headers of a call: the token for executors, a key where a scope is needed, else none."""
    if "x-tidewheel-scope" in case.operation.definition.raw:
        return {"Authorization": f"Bearer {key}"}
    return {"Authorization": f"Bearer {_TOKEN}"} if case.operation.path.startswith("/api/v1/executors") else {}
