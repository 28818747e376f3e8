"""The generated pages say what the code says."""

from pathlib import Path

import pytest

from tests.docs.reference import pages

PAGES = pages()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_generated_page_is_what_the_code_says(page: Path) -> None:
    assert page.read_text(encoding="utf-8") == PAGES[page], "run `python -m tests.docs.reference`"
