"""The published JSON Schema files describe exactly what the JSON form writes."""

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.schemas.strategies import any_message
from tidewheel.schemas import avro
from tidewheel.schemas.avro import snake
from tidewheel.schemas.codec import encode_json
from tidewheel.schemas.generated.records import DeadLetter, LifecycleEvent, Reply, RunCompleted

FOLDER = Path(avro.__file__).parent / "json"
RECORDS = (RunCompleted, LifecycleEvent, DeadLetter, Reply)


def schema_of(stem: str) -> dict[str, Any]:
    return json.loads((FOLDER / f"{stem}.json").read_text("utf-8"))


VALIDATORS = {
    kind: jsonschema_rs.Draft202012Validator(schema_of(snake(kind.__name__)), validate_formats=True)
    for kind in RECORDS
}  # fmt: skip


@pytest.mark.parametrize("kind", RECORDS)
@given(st.data())
def test_any_record_fits_its_schema(kind: type, data: st.DataObject) -> None:
    VALIDATORS[kind].validate(json.loads(encode_json(data.draw(any_message(kind.__name__)))))


@pytest.mark.parametrize("kind", RECORDS)
@given(st.data())
def test_record_that_lacks_a_field_or_has_another_type_of_value_does_not_fit(kind: type, data: st.DataObject) -> None:
    document = json.loads(encode_json(data.draw(any_message(kind.__name__))))
    name = data.draw(st.sampled_from(schema_of(snake(kind.__name__))["required"]))
    assert not VALIDATORS[kind].is_valid({each: value for each, value in document.items() if each != name})
    assert not VALIDATORS[kind].is_valid({**document, name: [None]})


def test_reader_of_a_schema_accepts_fields_of_later_releases(a_completion: RunCompleted) -> None:
    document = json.loads(encode_json(a_completion))
    VALIDATORS[RunCompleted].validate({**document, "weather": "fine"})


@pytest.mark.parametrize("path", sorted(FOLDER.iterdir()), ids=lambda path: path.stem)
def test_file_is_a_schema_whose_id_names_it_and_its_release(path: Path) -> None:
    schema = schema_of(path.stem)
    jsonschema_rs.meta.validate(schema)
    assert schema["$id"] == avro.json_schema_uri(path.stem)
