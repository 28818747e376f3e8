"""The generated modules equal the .avsc files; fingerprints; types that are not supported."""

import json
import re

import pytest

from tidewheel.schemas.avro import Shape, current, fingerprint, single_object_header, snake
from tidewheel.schemas.codec import FORMS
from tools.schemas import generate

FILES = generate.generated_files()


@pytest.mark.parametrize("name", FILES)
def test_committed_file_equals_the_generated_one(name: str) -> None:
    assert (generate.FOLDER / name).read_text() == FILES[name]


def test_every_file_of_the_generated_folders_is_generated() -> None:
    paths = *generate.FOLDER.glob("generated/*.py"), *generate.FOLDER.glob("json/*")
    found = {str(path.relative_to(generate.FOLDER)) for path in paths}
    assert found - {"generated/__init__.py"} == FILES.keys() - {"request.avsc"}


def test_field_of_a_job_or_a_target_that_the_schema_of_requests_lacks_is_added_last() -> None:
    text = current()["request"]
    [start, _, end] = re.split(r",\n +(\{\s+\"name\": \"pause_on_failure\".*?\})", text, flags=re.DOTALL)
    lacking = start + end.replace('"name": "qualifier"', '"name": "other"')
    added = generate.completed(lacking)
    json.loads(added)
    assert re.findall(r'"name": "(pause_on_failure|qualifier)",\s+"type": \[\s*"null",\s*"(\w+)"', added) == [
        ("qualifier", "string"), ("pause_on_failure", "long")
    ]  # fmt: skip
    assert generate.completed(text) == text


def test_schema_file_is_named_after_its_record_and_has_a_codec() -> None:
    for stem, text in current().items():
        schema = json.loads(text)
        assert schema["namespace"] == "io.tidewheel"
        assert snake(schema["name"]) == stem
        assert FORMS[schema["name"]].schema == text
        assert FORMS[schema["name"]].header == single_object_header(text)


def test_fingerprint_equals_the_reference_implementation() -> None:
    # Known from the Java implementation's test suite: CRC-64-AVRO of "null" is 0x63dd24e7cc258f8a.
    assert fingerprint('"null"') == (0x63DD24E7CC258F8A).to_bytes(8, "little")


def test_one_name_for_two_types_is_refused() -> None:
    schema = {"type": "record", "name": "R", "doc": "d"}
    schemas = [schema | {"fields": [{"name": "f", "type": type_, "doc": "d"}]} for type_ in ("int", "long")]
    with pytest.raises(ValueError, match="R: names two different types"):
        Shape(schemas)
