"""Every field of every request, at and beyond every bound: accepted, or refused under its path."""

import json
from typing import Any, cast, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.bounds import BOUNDS, MISTYPED, Place, places
from tests.fixtures.examples import examples
from tests.strict_types import ROOT
from tidewheel.errors import UndecodableMessage
from tidewheel.jobs.parsing import RequestRefused, parse_request
from tidewheel.jobs.requests import AnyRequest, Request
from tidewheel.jobs.strict_json import read_object
from tidewheel.jobs.validation import MAX_ERRORS

SCHEMA = cast("dict[str, Any]", json.loads((ROOT / "schemas/json/request.json").read_text("utf-8")))
PLACES = list(places(SCHEMA, SCHEMA["$defs"]))


def outcome(document: dict[str, Any]) -> Request | tuple[str, ...]:
    """Return a message as the reader of the topic reads it: the request, or the paths of its refusal."""
    try:
        return parse_request(read_object(json.dumps(document).encode()))
    except RequestRefused as refused:
        errors = refused.errors[:MAX_ERRORS]  # behind them comes a count of the others
    except UndecodableMessage:
        return ()
    assert all(error.problem and error.remedy for error in errors)
    return tuple(error.path for error in errors)


OF_TWO = {("job.retry.max", "job.retry.initial"), ("from", "to")}  # fields that are refused together, under one of them


def is_about(path: str, place: Place) -> bool:
    """Return True if a refusal's path is that of a place, of a part of it, or of what it is in."""
    own = ".".join(map(str, place.path))
    return bool(path) and (path.startswith(own) or own.startswith(path) or (own, path) in OF_TWO)


def test_every_request_and_field_is_tried() -> None:
    assert {place.root for place in PLACES} == {model.__name__ for model in get_args(AnyRequest)}
    fields = {(model.__name__, field.alias or name) for model in get_args(AnyRequest)
              for name, field in model.model_fields.items()}  # fmt: skip
    assert {(place.root, place.path[0]) for place in PLACES} == fields
    assert len(PLACES) > 300


@pytest.mark.parametrize("root", sorted({place.root for place in PLACES}))
def test_document_around_each_field_is_valid(root: str) -> None:
    """Else a value would be refused for another field, and its own bound would stay untried."""
    document = next(place for place in PLACES if place.root == root).document
    assert not isinstance(outcome(dict(document)), tuple)


IDS = [place for place in PLACES if str(place.path[-1]).endswith(("run_id", "backfill_id", "batch_id"))]


@pytest.mark.parametrize("place", IDS, ids=str)
def test_mistyped_id_is_refused(place: Place) -> None:
    """It named another run."""
    assert {str(place.path[-1]) for place in IDS} == {"run_id", "backfill_id", "batch_id", "from_run_id"}
    for text in MISTYPED:
        assert outcome(place.holding(text)) == (".".join(map(str, place.path)),), text


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_value_at_any_bound_is_accepted_or_refused_under_its_path(place: Place) -> None:
    """Issue 39, W8: a number of 400 digits raised OverflowError, and the reply had no path."""
    for value in BOUNDS:
        found = outcome(place.holding(value))
        if isinstance(found, tuple):
            assert all(is_about(path, place) for path in found), (place, str(value)[:80])


@examples(2000)
@given(st.sampled_from(PLACES), st.sampled_from(BOUNDS) | st.integers() | st.floats() | st.text(max_size=40))
def test_any_value_is_accepted_or_refused_under_its_path(place: Place, value: object) -> None:
    found = outcome(place.holding(value))
    assert not isinstance(found, tuple) or all(is_about(path, place) for path in found)
