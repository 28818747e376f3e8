"""The fields of a payload in the form of a job, by the model of its handler, without script."""

import html
import json
import re
from datetime import datetime
from enum import IntEnum
from http import HTTPStatus
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from tests.control.api.answering import ApiClient
from tests.control.console.pages import typed_in
from tests.control.console.test_job_form import pressed, stored
from tidewheel.executor.handlers import Handler
from tidewheel.executor.payload_schemas import payload_schemas, record_payload_schemas


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Order(BaseModel):
    to: str = Field(description="Who gets it.")
    copies: int = 1
    price: float | None = None
    urgent: bool = False
    at: datetime | None = None
    colour: Literal["red", "blue"] = "red"
    level: Level = Level.LOW
    items: list[str] = []


def refuse(schema: dict[str, Any]) -> None:
    message = f"no schema of {schema['title']}"
    raise ValueError(message)


class Refusing(BaseModel):
    model_config = ConfigDict(json_schema_extra=refuse)
    to: str


class Listed(BaseModel):
    to: str | None = Field(json_schema_extra={"type": ["string", "null"]})


def has_model(pages: ApiClient, name: str, model: type[BaseModel] | None) -> None:
    """Record what an executor with this handler records when it starts."""
    adapter: TypeAdapter[object] | None = None if model is None else TypeAdapter(model)
    handler = Handler(name, print, is_async=False, payload=adapter)
    pages.database.within(record_payload_schemas, payload_schemas({name: handler}))


@pytest.fixture
def modelled(pages: ApiClient) -> ApiClient:
    has_model(pages, "order", Order)
    return pages


def fields(text: str) -> list[str]:
    """Return the names of the fields of a payload, in the order of a page."""
    return re.findall(r'name="payload\.([^"]+)"', text)


@pytest.mark.parametrize("model", [Refusing, Listed])
def test_model_of_another_kind_of_schema_leaves_the_payload_json(pages: ApiClient, model: type[BaseModel]) -> None:
    has_model(pages, "odd", model)
    page = pressed(pages, "/jobs/new", "check", key="job", schedule="manual", target="handler", target__name="odd")
    assert page.is_success
    assert fields(page.text) == []


def test_typed_values_have_the_types_of_the_model(modelled: ApiClient) -> None:
    page = pressed(modelled, "/jobs/new", "check", key="job", schedule="manual", target="handler", target__name="order")
    assert fields(page.text) == ["to", "copies", "price", "urgent", "at", "colour", "level"]
    assert "Who gets it. Required." in page.text
    saved = pressed(
        modelled, "/jobs/new", "save", page, payload__to="a b", payload__copies="3", payload__price="1.5e2",
        payload__urgent="true", payload__at="2026-11-29T08:00:00+01:00", payload__colour="blue", payload__level="2",
    )  # fmt: skip
    assert saved.status_code == HTTPStatus.SEE_OTHER, saved.text
    assert stored(modelled.database, "job", 1)["payload"] == {
        "to": "a b", "copies": 3, "price": 150.0, "urgent": True, "at": "2026-11-29T08:00:00+01:00", "colour": "blue",
        "level": 2,
    }  # fmt: skip


def test_field_that_nobody_has_changed_keeps_its_value_and_others_stay(modelled: ApiClient) -> None:
    payload = {"to": " a\nb ", "copies": None, "items": ["x"], "level": 7, "further": {"amount": 120.10}}
    modelled.database.submit("job", target="order", payload=payload)
    page = modelled.get("/jobs/job/edit")
    assert "No changes yet" in pressed(modelled, "/jobs/job/edit", "check", page).text
    assert typed_in(page)["payload.level"] == "7"
    pressed(modelled, "/jobs/job/edit", "save", page, payload__colour="blue", payload__level="")
    del payload["level"]
    assert stored(modelled.database, "job", 2)["payload"] == payload | {"colour": "blue"}


def test_json_has_what_no_field_shows_and_each_value_is_written_once(modelled: ApiClient) -> None:
    modelled.database.submit("job", target="order", payload={"to": "a", "copies": None, "items": ["x"]})
    page = modelled.get("/jobs/job/edit")
    assert json.loads(typed_in(page)["payload"]) == {"copies": None, "items": ["x"]}
    assert (typed_in(page)["payload.to"], typed_in(page)["payload.copies"]) == ("a", "")
    page = pressed(modelled, "/jobs/job/edit", "check", page, payload='{"copies": 3}')
    assert (typed_in(page)["payload.to"], typed_in(page)["payload.copies"]) == ("a", "3")
    page = pressed(modelled, "/jobs/job/edit", "save", page, payload='{"to": "b"}')
    assert page.status_code == HTTPStatus.UNPROCESSABLE_ENTITY
    assert "'to': typed into the fields above, too" in html.unescape(page.text)
    assert (typed_in(page)["payload.to"], typed_in(page)["payload"]) == ("a", '{"to": "b"}')
    saved = pressed(modelled, "/jobs/job/edit", "save", page, payload__to="")
    assert saved.status_code == HTTPStatus.SEE_OTHER, saved.text
    assert stored(modelled.database, "job", 2)["payload"] == {"to": "b", "copies": 3}


def test_largest_payload_is_saved_from_its_fields(modelled: ApiClient) -> None:
    """A form that sent a payload as JSON and in its fields exceeded the limit of a request."""
    text = "\u00e9" * 130_000
    modelled.database.submit("job", target="order", payload={"to": text})
    saved = pressed(modelled, "/jobs/job/edit", "save", payload__copies="2")
    assert saved.status_code == HTTPStatus.SEE_OTHER, saved.text
    assert stored(modelled.database, "job", 2)["payload"] == {"to": text, "copies": 2}


@pytest.mark.parametrize("instant", ["2026-11-29T08:00:00", "2026-11-29T08:00:00+01:00", "2026-11-29"])
def test_instant_is_what_the_model_of_the_handler_reads(modelled: ApiClient, instant: str) -> None:
    assert Order(to="a", at=instant)  # type: ignore[arg-type]
    modelled.database.submit("job", target="order", payload={"to": "a"})
    saved = pressed(modelled, "/jobs/job/edit", "save", payload__at=instant)
    assert saved.status_code == HTTPStatus.SEE_OTHER, saved.text
    assert stored(modelled.database, "job", 2)["payload"] == {"to": "a", "at": instant}


@pytest.mark.parametrize(
    ("name", "wrong", "problem"),
    [
        ("copies", "1.5", "'1.5' is not a whole number"),
        ("price", "much", "'much' is not a number"),
        ("at", "tomorrow", "'tomorrow' is not an instant"),
    ],
)
def test_value_of_another_type_is_refused_at_its_field_and_kept_as_typed(
    modelled: ApiClient, name: str, wrong: str, problem: str
) -> None:
    modelled.database.submit("job", target="order", payload={"to": "a"})
    answer = pressed(modelled, "/jobs/job/edit", "save", None, **{f"payload__{name}": wrong, "payload__to": "b"})
    assert answer.status_code == HTTPStatus.UNPROCESSABLE_ENTITY
    [said] = re.findall(rf'id="h-payload\.{name}"><p class="wrong">(.*?)</p>', answer.text)
    assert problem in html.unescape(re.sub("<[^>]+>", "", said))
    kept = typed_in(answer)
    assert (kept[f"payload.{name}"], kept["payload.to"]) == (wrong, "b")
    saved = pressed(modelled, "/jobs/job/edit", "save", answer, **{f"payload__{name}": ""})
    assert saved.status_code == HTTPStatus.SEE_OTHER, saved.text
    assert stored(modelled.database, "job", 2)["payload"] == {"to": "b"}


def test_unreadable_json_keeps_what_was_typed_into_the_fields(modelled: ApiClient) -> None:
    modelled.database.submit("job", target="order", payload={"to": "a"})
    answer = pressed(modelled, "/jobs/job/edit", "save", payload='{"to": ', payload__copies="2")
    assert answer.status_code == HTTPStatus.UNPROCESSABLE_ENTITY
    assert (typed_in(answer)["payload"], typed_in(answer)["payload.copies"]) == ('{"to": ', "2")
    pressed(modelled, "/jobs/job/edit", "save", answer, payload='{"items": []}')
    assert stored(modelled.database, "job", 2)["payload"] == {"to": "a", "copies": 2, "items": []}


def test_list_as_json_beside_a_typed_field_is_refused(modelled: ApiClient) -> None:
    modelled.database.submit("job", target="order", payload={"to": "a"})
    answer = pressed(modelled, "/jobs/job/edit", "save", payload="[1]")
    assert answer.status_code == HTTPStatus.UNPROCESSABLE_ENTITY
    assert "s no object, and has fields" in html.unescape(answer.text)
    assert (typed_in(answer)["payload.to"], typed_in(answer)["payload"]) == ("a", "[1]")
    assert pressed(modelled, "/jobs/job/edit", "save", answer, payload__to="").status_code == HTTPStatus.SEE_OTHER
    assert stored(modelled.database, "job", 2)["payload"] == [1]


def test_payload_without_a_known_object_has_json_alone(modelled: ApiClient) -> None:
    for key, target, payload in (("none", "other", {"to": "a"}), ("list", "order", [1])):
        modelled.database.submit(key, target=target, payload=payload)
        assert fields(modelled.get(f"/jobs/{key}/edit").text) == [], key
    http = pressed(modelled, "/jobs/none/edit", "check", target="http", target__url="https://example.org/a")
    assert fields(http.text) == []
    modelled.database.submit("job", target="order")
    assert "to" in fields(modelled.get("/jobs/job/edit").text)
    has_model(modelled, "order", None)
    assert fields(modelled.get("/jobs/job/edit").text) == [], "the handler has dropped its model"
