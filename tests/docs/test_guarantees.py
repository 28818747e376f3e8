"""docs/guarantees.md promises only what has a test: each test that it names exists."""

import re

from tests.strict_types import ROOT

PAGE = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
NAMED = re.compile(r"\]\(\.\./(?P<file>tests/\S+?\.py)\)|`(?P<test>test_\w+)`")


def test_named_tests_exist_in_their_files() -> None:
    file, missing, named = "", list[str](), 0
    for found in NAMED.finditer(PAGE):
        file = found["file"] or file
        if found["test"]:
            named += 1
            text = (ROOT / file).read_text(encoding="utf-8")
            if f"def {found['test']}(" not in text:
                missing.append(f"{file}::{found['test']}")
    assert named > 30
    assert not missing


def test_every_promise_names_its_tests() -> None:
    promises, _, _ = PAGE.partition("## Never promised")
    paragraphs = [text for text in promises.split("\n\n") if text.startswith("**")]
    assert len(paragraphs) > 15
    assert [text for text in paragraphs if "](../tests/" not in text] == []
