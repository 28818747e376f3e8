"""docs/guarantees.md promises only what has a test: each test that it names exists."""

from tests.landing import promised
from tests.strict_types import ROOT

PAGE = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")


def test_named_tests_exist_in_their_files() -> None:
    named = promised(PAGE)
    assert len(named) > 30
    split = [name.split("::") for name in named]
    assert [name for name in split if f"def {name[1]}(" not in (ROOT / name[0]).read_text(encoding="utf-8")] == []


def test_every_promise_names_its_tests() -> None:
    promises, _, _ = PAGE.partition("## Never promised")
    paragraphs = [text for text in promises.split("\n\n") if text.startswith("**")]
    assert len(paragraphs) > 15
    assert [text for text in paragraphs if "](../tests/" not in text] == []
