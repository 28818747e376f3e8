"""Every kind of token at every door: each opens what its declaration names, and nothing else.

The routes are those of the OpenAPI document with the scopes that it declares, the pages those of the console: a new one
is tried by itself.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.control.api.answering import NO_ROOTS, ApiClient, answer_of, answering
from tests.control.console.pages import HTML, TOKEN, fields_of, key_of, signed_in
from tests.fixtures.database import Database
from tests.intake.waiting import token_of, waiting
from tidewheel.api_keys import Scope
from tidewheel.control.console.urls import PATHS
from tidewheel.nouns.api_keys.sign_ins import COOKIE, add_sign_in

IN_PATH = {"key": "a", "key_id": "0123456789", "number": "1", "tenant": "acme", "fingerprint": "00" * 8, "name": "acme"}
IN_PAGES = {"ref": "a", "kind": "redrive", "digest": "x", "name": "app.css"}
REFUSED = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})
DOCUMENT = "/api/v1/openapi.json"  # any key opens it, and the token of executors
OPEN_PAGES = frozenset({"sign_in", "sign_out", "theme", "static"})
OTHERS = frozenset({"api"})  # no page


@dataclass(frozen=True)
class Door:
    """A route, what opens it, and its method and address."""

    method: str
    path: str
    opens: frozenset[str]


@dataclass
class Tokens:
    """An API that needs keys, and a token of each kind."""

    client: ApiClient
    kinds: Mapping[str, str]
    link: str

    def doors(self) -> Iterator[Door]:
        """Yield the documented routes, each with the kinds that it declares."""
        headers = {"Authorization": f"Bearer {self.kinds['read']}"}
        document = answer_of(self.client.get(DOCUMENT, headers=headers))
        for path, operations in document["paths"].items():
            at = re.sub(r"\{(\w+)\}", lambda found: IN_PATH.get(found[1], str(uuid4())), path)
            for method, operation in operations.items():
                opens = {*Scope, "the token of executors"} if path == DOCUMENT else self._opens(operation)
                yield Door(method, at, frozenset(opens))

    def _opens(self, operation: Mapping[str, Any]) -> set[str]:
        if (scope := operation.get("x-tidewheel-scope")) is not None:
            return {scope, Scope.ADMIN}
        declared = {name for each in operation.get("security", ()) for name in each}
        return {
            frozenset(): {"none", *self.kinds},
            frozenset({"executorToken"}): {Scope.EXECUTE, "the token of executors"},
            frozenset({"taskToken"}): {"a task token"},
        }[frozenset(declared)]


@pytest.fixture
def tokens(database: Database) -> Iterator[Tokens]:
    database.submit()
    kinds: dict[str, str] = {scope: key_of(database, scope, all_tenants=True) for scope in Scope}
    kinds |= {"the token of executors": TOKEN, "a task token": token_of(database, waiting(database))}
    [(_, signature)] = database.signed("t", b"k", b"v")
    with database.transaction() as connection:
        link = add_sign_in(connection, kinds["admin"].split("_")[1], None, is_link=True)
        cookie = add_sign_in(connection, kinds["admin"].split("_")[1], None)
    assert link is not None
    assert cookie is not None
    kinds |= {"a signature": bytes(signature).decode(), "a link": link.text, "a sign-in": cookie.text}  # type: ignore[arg-type]
    with answering(database, token=TOKEN, api_key_rate=1000) as client:
        del client.headers["Authorization"]
        yield Tokens(client, kinds, link.text)


def asked(client: httpx.Client, method: str, path: str, headers: Mapping[str, str]) -> httpx.Response:
    """Return the head of an answer, whose body may not end."""
    with client.stream(method.upper(), path, headers=dict(headers)) as answer:
        return answer


@pytest.mark.slow
def test_each_kind_of_token_opens_the_routes_that_declare_it_and_no_other(tokens: Tokens) -> None:
    wrong: list[object] = []
    doors = list(tokens.doors())
    shown: dict[str, Mapping[str, str]] = {
        name: {"Authorization": f"Bearer {text}"} for name, text in tokens.kinds.items()
    }
    shown |= {"none": {}, "a cookie": {"Cookie": f"{COOKIE}={tokens.kinds['a sign-in']}"}}
    for kind, headers in shown.items():
        for door in doors:
            opened = asked(tokens.client, door.method, door.path, headers).status_code not in REFUSED
            expected = "none" if kind == "a cookie" else kind
            if opened != (expected in door.opens):
                wrong.append((kind, door, opened))
    assert len(doors) > 100
    assert not wrong, "\n".join(map(str, wrong))


@pytest.mark.slow
def test_sign_in_alone_opens_pages_and_one_that_reads_changes_nothing(tokens: Tokens) -> None:
    database, client = tokens.client.database, tokens.client
    shown: list[Mapping[str, str]] = [{}, {"Cookie": f"{COOKIE}={tokens.link}"}]
    shown += [{"Authorization": f"Bearer {text}"} for text in tokens.kinds.values()]
    shown += [{"Cookie": f"{COOKIE}={text}"} for name, text in tokens.kinds.items() if name != "a sign-in"]
    wrong: list[object] = []
    with httpx.Client(base_url=client.base_url, headers=HTML, timeout=60, trust_env=False, verify=NO_ROOTS) as browser:
        signed_in(browser, key_of(database, "read", all_tenants=True))
        token = fields_of(browser.get("/"))["token"]
        for name, path in PATHS.items():
            if name in OTHERS | OPEN_PAGES:
                continue
            at = re.sub(r"\{(\w+)\}", lambda found: (IN_PATH | IN_PAGES).get(found[1], str(uuid4())), path)
            for headers in shown:
                answer = asked(client, "GET", at, {**HTML, **headers})
                if not answer.headers.get("location", "").startswith("/sign-in"):
                    wrong.append((name, headers, answer.status_code))
            posted = browser.post(at, data={"token": token})
            if posted.status_code not in {HTTPStatus.FORBIDDEN, HTTPStatus.METHOD_NOT_ALLOWED}:
                wrong.append((name, posted.status_code))
            read = asked(browser, "GET", at, HTML)
            if read.headers.get("location", "").startswith("/sign-in"):
                wrong.append((name, "is not opened by a sign-in"))
    assert not wrong, "\n".join(map(str, wrong))
