"""docs/guarantees*.md promise only what has a test: each test that they name exists."""

from tests.landing import GUARANTEES, promised
from tests.strict_types import ROOT

DOCS = ROOT / "docs"


def test_named_tests_exist_in_their_files() -> None:
    named = promised(DOCS)
    assert len(named) > 30
    split = [name.split("::") for name in named]
    assert [name for name in split if f"def {name[1]}(" not in (ROOT / name[0]).read_text(encoding="utf-8")] == []


def test_every_promise_names_its_tests() -> None:
    pages = (page.read_text(encoding="utf-8") for page in DOCS.glob(GUARANTEES))
    promises = [text for page in pages for text in page.split("\n## ") if "**Promise:**" in text]
    assert len(promises) > 15
    assert [text for text in promises if "](../tests/" not in text] == []
