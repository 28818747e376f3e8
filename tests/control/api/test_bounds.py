"""Every field and parameter of the HTTP API, at and beyond every bound: no internal error."""

import json
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.control.api.answering import ApiClient, answer_of, answering
from tests.fixtures.bounds import BOUNDS, Place, places
from tests.fixtures.database import Database
from tests.fixtures.examples import examples

_TEXTS = [text for text in BOUNDS if isinstance(text, str) and text.isascii() and len(text) < 5000]
_VERBS = {"get", "post", "put", "patch", "delete"}
_ENDLESS = {"/api/v1/run-events"}
_OF_PATH = {"key": "job", "version": "1", "tenant": "default", "name": "name"}  # others are ids


class Call(NamedTuple):
    """A request with one field of its body to vary, or one parameter: its name and its place."""

    verb: str
    path: str
    field: Place | None = None
    name: str = ""
    where: str = ""


def calls(document: dict[str, Any]) -> Iterator[Call]:
    """Yield a call for each field of each body, and for each parameter."""
    definitions = document["components"]["schemas"]
    for path, operations in document["paths"].items():
        for verb, operation in operations.items():
            if verb not in _VERBS or path in _ENDLESS:
                continue
            for kind in operation.get("requestBody", {}).get("content", {}).values():
                for place in places(kind["schema"], definitions):
                    yield Call(verb, path, place)
            for parameter in operation.get("parameters", ()):
                yield Call(verb, path, None, parameter["name"], parameter["in"])


def send(client: ApiClient, call: Call, value: object) -> tuple[HTTPStatus, str]:
    """Send a call with this value; return the answer."""
    text, path = str(value), call.path
    if call.where == "path":
        path = path.replace(f"{{{call.name}}}", quote(text, safe="") or "%20")
    while "{" in path:
        name = path[path.index("{") + 1 : path.index("}")]
        path = path.replace(f"{{{name}}}", _OF_PATH.get(name, "01890000-0000-7000-8000-000000000000"))
    headers = {call.name: text.replace("\0", "?").strip()} if call.where == "header" else {}
    query = {call.name: text} if call.where == "query" else {}
    body = None
    if call.field is not None:
        body, headers = json.dumps(call.field.holding(value)).encode(), {"content-type": "application/json"}
    try:
        answer = client.request(call.verb, path, content=body, params=query, headers=headers)
    except httpx.ReadError:  # a request that is refused before it is read may lose its answer to a reset
        return HTTPStatus.BAD_REQUEST, ""
    return HTTPStatus(answer.status_code), answer.text


@pytest.mark.slow
def test_value_at_any_bound_is_answered_without_an_internal_error(database: Database) -> None:
    """Issue 39, W8: a delay of 400 digits was answered by 500."""
    database.submit()
    database.trigger(delay="1h")
    with answering(database) as client:
        found = list(calls(answer_of(client.get("/api/v1/openapi.json"))))
        assert len(found) > 300
        bodies = [call for call in found if call.field is not None]
        parameters = [call for call in found if call.field is None]
        faults = set[tuple[str, str, str, str, str]]()

        def judge(call: Call, value: object) -> None:
            status, text = send(client, call, value)
            if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                faults.add((call.verb, call.path, str(call.field or call.name), ascii(value)[:60], text[:200]))

        for call in bodies:
            for value in (10**400, 2**31, 2**63, "9" * 400, "\ud800", "\0", "9999-12-31T23:59:59.999999999Z", [["x"]]):
                judge(call, value)
        for call in parameters:
            for text in (
                "9" * 400,
                str(2**31),
                str(2**63),
                "\0",
                "1_0",
                "0001-01-01T00:00:00+14:00",
                "9999-12-31",
                "-1",
            ):
                judge(call, text)

        @examples(4000)
        @given(st.sampled_from(bodies), st.sampled_from(BOUNDS), st.sampled_from(parameters), st.sampled_from(_TEXTS))
        def vary(body: Call, value: object, parameter: Call, text: str) -> None:
            judge(body, value)
            judge(parameter, text)

        vary()
    assert faults == set()
