"""The requests that pages show are accepted by the parser, and their tables name real fields."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from tests.docs.json_blocks import documents
from tests.strict_types import ROOT
from tidewheel.jobs.parsing import parse_request
from tidewheel.jobs.requests import Freeze, JobBackfill, RunComplete, RunsCancel
from tidewheel.jobs.spec import JobSpec
from tidewheel.runs import Overlap

DOCS = ROOT / "docs"
SUBMIT = DOCS / "requests-submit.md"
PAGES = (*sorted(DOCS.glob("requests*.md")), ROOT / "README.md", DOCS / "quickstart.md")
TABLES = {
    "job.submit": (SUBMIT, JobSpec),
    "job.backfill": (DOCS / "requests-trigger.md", JobBackfill),
    "runs.cancel": (DOCS / "requests-runs.md", RunsCancel),
    "freeze, thaw": (DOCS / "requests-change.md", Freeze),
    "run.complete": (DOCS / "requests-runs.md", RunComplete),
}
_SCHEMA = jsonschema_rs.Draft202012Validator(json.loads((ROOT / "schemas/json/request.json").read_text("utf-8")))
_FIELD = re.compile(r"`(\w+)`")


def _requests() -> Iterator[Any]:
    for page in PAGES:
        for document in documents(page):
            if "type" in document and "status" not in document:
                yield pytest.param(document, id=f"{page.name}-{document.get('request_id', document['type'])}")


@pytest.mark.parametrize("document", [*_requests()])
def test_request_of_a_page_fits_the_published_schema(document: dict[str, Any]) -> None:
    assert parse_request(document).type == document["type"]
    _SCHEMA.validate(document)


@pytest.mark.parametrize("section", TABLES)
def test_table_of_a_request_names_real_fields(section: str) -> None:
    page, model = TABLES[section]
    known = {field.alias or name for name, field in model.model_fields.items()}
    shown = _first_column(page, section)
    assert shown
    assert shown - known - {"payload_base64"} == set()


def test_row_of_overlap_names_every_policy() -> None:
    row, *_ = (line for line in SUBMIT.read_text(encoding="utf-8").splitlines() if line.startswith("| `overlap` |"))
    assert {policy.value for policy in Overlap} <= {*_FIELD.findall(row)}


def _first_column(page: Path, section: str) -> set[str]:
    text = page.read_text(encoding="utf-8").partition(f"## {section}\n")[2].partition("\n## ")[0]
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    return {field for row in rows for field in _FIELD.findall(row.split("|")[1])}
