"""No route of the OpenAPI document lets a key of one tenant act on another."""

import re
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any, NamedTuple
from uuid import uuid4

import pytest

from tests.control.api.answering import ApiClient, answer_of, answering
from tests.control.api.test_keys import TOKEN, add_tenant, created, with_key
from tests.fixtures.database import Database
from tidewheel.api_keys import Scope
from tidewheel.control.client.client import Client

_MINE, _OTHER = "acme", "rival"
_IN_PATH = {"tenant": _OTHER, "key": "theirs", "number": "1", "key_id": "k3v9x0a1bc"}


class Address(NamedTuple):
    """An operation and a call of it that concerns another tenant."""

    method: str
    path: str
    body: Any


@pytest.fixture
def door(database: Database) -> Iterator[ApiClient]:
    """An API that needs a key; its client shows one of a tenant with every scope."""
    for name in (_MINE, _OTHER):
        add_tenant(database, name)
    with answering(database, token=TOKEN) as client:
        client.headers.update(with_key(created(database, *Scope, tenant=_MINE)))
        yield client


def addresses(client: ApiClient) -> Iterator[Address]:
    """Yield a call for each way in which an operation names a tenant: its path, its query, its body."""
    for path, operations in answer_of(client.get("/api/v1/openapi.json"))["paths"].items():
        filled = re.sub(r"\{(\w+)\}", lambda found: _IN_PATH.get(found[1]) or str(uuid4()), path)
        for method, operation in operations.items():
            asked = {each["name"] for each in operation["parameters"] if each["in"] == "query"}
            contents = operation.get("requestBody", {}).get("content", {}).values()
            sent = next((each.get("example") for each in contents), None)
            if "{tenant}" in path:
                yield Address(method, filled, {**(sent or {}), "tenant": _OTHER} if "tenant" in (sent or {}) else sent)
            if "tenant" in asked:
                yield Address(method, f"{filled}?tenant={_OTHER}", sent)
            if "all_tenants" in asked:
                yield Address(method, f"{filled}?all_tenants=true", sent)
            for name, value in (("tenant", _OTHER), ("all_tenants", True)):
                if any(name in _fields(each["schema"], client) for each in contents):
                    yield Address(method, filled, {**(sent or {}), name: value})


def _fields(schema: dict[str, Any], client: ApiClient) -> set[str]:
    """Return the fields of a body, whose schema may stand elsewhere."""
    if "$ref" in schema:
        document = answer_of(client.get("/api/v1/openapi.json"))
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return set(schema.get("properties", {}))


@pytest.mark.landing
def test_no_route_reads_or_changes_another_tenant_than_that_of_the_key(door: ApiClient) -> None:
    with Client(door.database.url, tenant=_OTHER) as owner:
        owner.submit({"key": "theirs", "schedule": "@every 400d", "target": "a"})
    tried = list(addresses(door))
    before = _entries(door.database)
    for address in tried:
        answer = door.request(address.method, address.path, json=address.body)
        assert answer.status_code in {HTTPStatus.NOT_FOUND, HTTPStatus.FORBIDDEN}, (address, answer.text)
    assert _entries(door.database) == before, "a refused call has changed nothing"
    of_path = [each for each in tried if f"/tenants/{_OTHER}" in each.path]
    assert (len(of_path) > 15, len(tried) > 90) == (True, True), (len(of_path), len(tried))


def _entries(database: Database) -> int:
    return database.count("audit_log") + database.count("outbox")
