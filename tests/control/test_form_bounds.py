"""Every field of every form of the console, at and beyond every bound: no internal error."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser
from http import HTTPStatus
from itertools import cycle, islice
from urllib.parse import urlencode

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.control.api.answering import ApiClient, answering
from tests.control.console.pages import HTML
from tests.control.console.seeded import paths, seed
from tests.control.every_field import bring_into_every_state
from tests.control.test_every_view import Places, page_paths
from tests.fixtures.bounds import BOUNDS
from tests.fixtures.database import ClockedDatabase
from tests.fixtures.examples import examples
from tidewheel.testing.databases import Template

TEXTS = [text for text in BOUNDS if isinstance(text, str)]
NO_NUMBERS = ("1_000", "+5", "\uff11", "0x10", "1e400", "NaN")  # most of which Python reads as one
_EACH = 4  # texts of every field, beside those that are drawn
_LAST = ("delete", "purge", "revoke")  # what these forms remove, the others need


@dataclass
class Form:
    """A form of a page, as a browser would send it."""

    page: str
    method: str
    action: str
    fields: dict[str, str] = field(default_factory=dict[str, str])
    numbers: set[str] = field(default_factory=set[str])


class _Reader(HTMLParser):
    """Collects the forms of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.page, self.forms, self.within, self.choice = page, list[Form](), False, ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        name = given.get("name", "")
        if tag == "form":
            self.within = True
            action = given.get("action") or self.page
            self.forms.append(Form(self.page, given.get("method", "get").lower(), action))
        elif self.within and tag in {"input", "textarea", "select", "button"} and name:
            form = self.forms[-1]
            form.fields.setdefault(name, given.get("value", ""))
            form.numbers |= {name} if "number" in (given.get("type"), given.get("inputmode")) else set()
            self.choice = name
        elif self.within and tag == "option" and "selected" in given:
            self.forms[-1].fields[self.choice] = given.get("value", "")

    def handle_endtag(self, tag: str) -> None:
        self.within = self.within and tag != "form"


def forms(client: ApiClient, pages: Iterable[str]) -> list[Form]:
    """Return one form of each kind: those of one address pattern with the same fields are alike."""
    found: dict[object, Form] = {}
    for page in pages:
        answer = client.get(page, headers=HTML)
        if answer.status_code == HTTPStatus.OK:
            reader = _Reader(page)
            reader.feed(answer.text)
            for each in reader.forms:
                found.setdefault((each.action.rpartition("/")[2].partition("?")[0], frozenset(each.fields)), each)
    return sorted(found.values(), key=lambda form: any(word in form.action for word in _LAST))


def send(client: ApiClient, form: Form, changed: Mapping[str, str]) -> httpx.Response:
    """Send a form with these values of its fields; return the answer."""
    pairs = [(name.encode("utf-8", "surrogatepass"), value.encode("utf-8", "surrogatepass"))
             for name, value in {**form.fields, **changed}.items()]  # fmt: skip
    text = urlencode(pairs)
    if form.method == "post":
        headers = {**HTML, "Content-Type": "application/x-www-form-urlencoded"}
        return client.post(form.action, content=text, headers=headers)
    return client.get(f"{form.action.partition('?')[0]}?{text}", headers=HTML)


class Trial:
    """Tries each field of the forms of these pages; notes internal errors and texts read as numbers."""

    def __init__(self, client: ApiClient, pages: Iterable[str]) -> None:
        found = forms(client, pages)
        self.client = client
        self.fields = [(form, name) for form in found for name in form.fields if name not in {"token", "request_id"}]
        self.faults, self.misread = set[tuple[str, str, str, str]](), set[tuple[str, str, str]]()
        assert len(self.fields) > 200
        assert {form.method for form in found} == {"get", "post"}

    def send(self, form: Form, name: str, value: str) -> HTTPStatus:
        """Send a form with this value of a field; return the answer's status."""
        try:
            answer = send(self.client, form, {name: value})
        # Refused before it is read, an answer may be lost to a reset. The client itself refuses addresses above 64 KiB.
        except (httpx.ReadError, httpx.WriteError, httpx.InvalidURL):
            return HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        if answer.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
            self.faults.add((form.action, name, ascii(value)[:60], answer.text[-300:]))
        return HTTPStatus(answer.status_code)

    def send_some(self, numbers: int, texts: int, *always: str) -> None:
        """Send each field with so many texts and these; each one of numbers with so many texts that are none."""
        wrong, bounds = cycle(NO_NUMBERS), cycle([text for text in TEXTS if len(text) < 8000])
        for form, name in self.fields:
            for value in islice(wrong, numbers if name in form.numbers else 0):
                if self.send(form, name, value) is HTTPStatus.SEE_OTHER:
                    self.misread.add((form.action, name, value))
            for value in (*always, *islice(bounds, texts)):
                self.send(form, name, value)


@pytest.mark.landing
def test_field_of_a_form_at_some_bounds_is_answered_without_an_internal_error(clocked: ClockedDatabase) -> None:
    """Each with NUL and another text in turn, on the pages of a console with some of everything."""
    ids = seed(clocked)
    with answering(clocked, api_key_rate=1000) as client:
        trial = Trial(client, paths(ids).values())
        trial.send_some(1, 1, "\0")
    assert (trial.faults, trial.misread) == (set(), set())


@pytest.fixture(scope="module")
def places(clocked_template: Template) -> Iterator[Places]:
    database = ClockedDatabase(clocked_template.copy(), clocked_template.installation)
    ids = seed(database)
    made = bring_into_every_state(database)
    with answering(database, api_key_rate=1000) as client:
        yield Places(made, ids, client)
    database.close()


@pytest.mark.slow
def test_field_of_a_form_at_any_bound_is_answered_without_an_internal_error(places: Places) -> None:
    trial = Trial(places.client, page_paths(places))
    trial.send_some(numbers=len(NO_NUMBERS), texts=_EACH)

    @examples(3000)
    @given(st.sampled_from(trial.fields), st.sampled_from(TEXTS))
    def vary(place: tuple[Form, str], text: str) -> None:
        trial.send(*place, text)

    vary()
    assert (trial.faults, trial.misread) == (set(), set())
