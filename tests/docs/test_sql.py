"""The queries that pages show to operators are planned on the migrated schema."""

import re
from typing import LiteralString, cast

import pytest

from tests.fixtures.database import Database
from tests.strict_types import ROOT

PAGES = (ROOT / "docs" / "operations.md", ROOT / "docs" / "interventions.md")
_BLOCK = re.compile(r"^```sql\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def _queries() -> list[str]:
    """Return the SELECT statements of the pages."""
    blocks = [block for page in PAGES for block in _BLOCK.findall(page.read_text(encoding="utf-8"))]
    without_comments = (re.sub(r"--.*", "", block) for block in blocks)
    statements = (statement.strip() for block in without_comments for statement in block.split(";"))
    return [statement for statement in statements if statement.startswith("SELECT")]


@pytest.mark.parametrize("query", _queries(), ids=lambda query: re.sub(r"\W+", "-", query)[7:60])
def test_query_fits_the_schema(query: str, database: Database) -> None:
    assert database.rows(cast("LiteralString", f"EXPLAIN {query}"))
