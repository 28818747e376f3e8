"""Generated pages equal the code."""

from pathlib import Path

import pytest

from tests.docs.reference import pages

PAGES = pages()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_generated_page_equals_the_code(page: Path) -> None:
    assert page.read_text(encoding="utf-8") == PAGES[page], "run `python -m tests.docs.reference`"
