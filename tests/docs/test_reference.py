"""Generated pages equal the code."""

from pathlib import Path

import pytest

from tests.docs.reference import PAGES
from tests.docs.reference_tables import PAGE, tables_page
from tests.fixtures.database import Database


@pytest.mark.landing
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_generated_page_equals_the_code(page: Path) -> None:
    assert page.read_text(encoding="utf-8") == PAGES[page](), "run `python -m tests.docs.reference`"


def test_page_of_tables_equals_the_catalog(shared_database: Database) -> None:
    with shared_database.transaction() as connection:
        assert PAGE.read_text(encoding="utf-8") == tables_page(connection), "run `python -m tests.docs.reference`"
