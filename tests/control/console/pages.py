"""A console on a real API, its keys, and the pages that every test of all pages opens."""

import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from html import unescape
from html.parser import HTMLParser
from http import HTTPStatus
from typing import Any

import httpx

from tests.control.api.answering import ApiClient, answering
from tests.fixtures.database import Database
from tidewheel.control.client.client import Client

TOKEN = "correct-horse-battery"
HTML = {"Accept": "text/html"}


@contextmanager
def console(database: Database, **settings: object) -> Generator[ApiClient]:
    """A console that needs a key; its client has shown none."""
    with answering(database, token=TOKEN, **settings) as client:
        del client.headers["Authorization"]
        client.headers.update(HTML)
        yield client


def key_of(database: Database, *scopes: str, tenant: str = "default", all_tenants: bool = False) -> str:
    """Create a key; return it."""
    with Client(database.url, tenant=tenant) as client:
        return client.api_keys.create("ops", scopes or ("read",), all_tenants=all_tenants).key


def form_of(page: httpx.Response) -> dict[str, str]:
    """Return the hidden fields of the first form of a page."""
    found = re.search(r'name="token" value="([0-9a-f]+)"><input type="hidden" name="next" value="([^"]*)"', page.text)
    assert found, page.text
    return {"token": found[1], "next": found[2]}


def sign_in(client: httpx.Client, key: str, path: str = "/sign-in", **fields: str) -> httpx.Response:
    """Type a key into the sign-in page; return the answer."""
    page = client.get(path)
    assert page.status_code == HTTPStatus.OK
    sent: Mapping[str, str] = form_of(page) | {"key": key, "next": ""} | fields
    return client.post(path.partition("?")[0], data=dict(sent))


def shown(client: httpx.Client, path: str, *words: str, without: str | tuple[str, ...] = ()) -> str:
    """Return the text of a page, which has some words and lacks others."""
    answer = client.get(path, follow_redirects=True)
    assert answer.status_code == HTTPStatus.OK, (path, answer.text)
    assert_has(answer.text, *words, without=without)
    return answer.text


def assert_has(text: str, *words: str, without: str | tuple[str, ...] = ()) -> None:
    """Fail unless a text has some words, and lacks others."""
    missing = [each for each in words if each not in text]
    found = [each for each in ((without,) if isinstance(without, str) else without) if each in text]
    assert (missing, found) == ([], []), text


def found_on(text: str, pattern: str) -> str:
    """Return what the group of a pattern finds in the text of a page."""
    found = re.search(pattern, text)
    assert found, text
    return unescape(found[1])


def assert_refused(answer: httpx.Response, *words: str) -> None:
    """Fail unless a form or an address is refused with some words."""
    assert answer.status_code == HTTPStatus.UNPROCESSABLE_ENTITY, answer.text
    assert_has(answer.text, *words)


def done(answer: httpx.Response) -> str:
    """Return the address that an action has led on to."""
    assert answer.status_code == HTTPStatus.SEE_OTHER, answer.text
    return answer.headers["location"]


def next_page(page: str) -> str | None:
    """Return the address of the page that follows a list's page."""
    following = re.search(r'rel="next" href="([^"]+)"', page)
    return unescape(following[1]) if following else None


def every_row(client: httpx.Client, path: str, pattern: str) -> list[str]:
    """Return what a pattern finds on a list's page and on each page that follows it."""
    page = shown(client, path)
    found: list[str] = re.findall(pattern, page)
    following = next_page(page)
    return found + (every_row(client, following, pattern) if following else [])


def posted(client: httpx.Client, path: str, **fields: str) -> httpx.Response:
    """Open a dialog, fill it, and press its button."""
    page = client.get(path)
    assert page.status_code == HTTPStatus.OK, page.text
    return client.post(path, data=fields_of(page) | fields)


def fields_of(page: httpx.Response) -> dict[str, str]:
    """Return the token of a page's forms, and what its dialog has: request_id and the state that it shows."""
    token = re.search(r'name="token" value="([0-9a-f]+)"', page.text)
    assert token, page.text
    found = re.findall(r'name="(request_id|shown|below|attempt)" value="([^"]*)"', page.text)
    return {"token": token[1]} | {name: unescape(value) for name, value in found}


def signed_in(client: httpx.Client, key: str, path: str = "/sign-in", **fields: str) -> None:
    """Sign in; fail unless the key is accepted."""
    assert sign_in(client, key, path, **fields).status_code == HTTPStatus.SEE_OTHER


@contextmanager
def signed_console(database: Database, *scopes: str, name: str = "", **about: Any) -> Generator[ApiClient]:  # noqa: ANN401 - as of `key_of`
    """A console that needs a key; its client is signed in with a new one."""
    with console(database) as client:
        signed_in(client, key_of(database, *scopes, **about), name=name)
        yield client


class _Typed(HTMLParser):
    """The fields of the forms that have a given id, or none, as a browser would send them."""

    def __init__(self, form_id: str | None) -> None:
        super().__init__()
        self.form_id, self.within, self.fields = form_id, False, dict[str, str]()
        self._long: str | None = None
        self._choice: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        name = given.get("name") or ""
        if tag == "form":
            self.within = given.get("id") == self.form_id
        elif not self.within:
            return
        elif tag == "input" and (given.get("type") not in {"radio", "checkbox"} or "checked" in given):
            self.fields[name] = given.get("value") or ""
        elif tag == "textarea":
            self._long, self.fields[name] = name, ""
        elif tag == "select":
            self._choice, self.fields[name] = name, ""
        elif tag == "option" and "selected" in given and self._choice is not None:
            self._long = self._choice if "value" not in given else None
            self.fields[self._choice] = given.get("value") or ""

    def handle_endtag(self, tag: str) -> None:
        if tag in {"textarea", "option"}:
            self._long = None
        elif tag == "form":
            self.within = False

    def handle_data(self, data: str) -> None:
        if self._long is not None:
            self.fields[self._long] = (self.fields[self._long] + data).removeprefix("\n").replace("\n", "\r\n")


def typed_in(page: httpx.Response, form_id: str | None = "spec") -> dict[str, str]:
    """Return what a browser would send of a form; of all forms without an id if that is None."""
    reader = _Typed(form_id)
    reader.feed(page.text)
    assert reader.fields, page.text
    return reader.fields
