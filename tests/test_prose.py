"""The check of prose finds what the rules forbid, and leaves quotations and code alone."""

from collections.abc import Iterable
from textwrap import dedent

import pytest

from tests.prose import Finding, check_markdown, check_python, check_sql, prose_files
from tests.strict_types import ROOT


def kinds(findings: Iterable[Finding]) -> list[tuple[int, str]]:
    return sorted((finding.line, finding.kind) for finding in findings)


@pytest.mark.parametrize("opening", ["What it is.", "Whether it is.", "Where it is.", "How it is.", "Of all.", "Who."])
def test_docstring_that_opens_with_a_clause_is_found(opening: str) -> None:
    assert kinds(check_python("a/b.py", f'def run():\n    """{opening}"""\n')) == [(2, "opening")]


def test_docstring_that_opens_with_a_noun_phrase_passes() -> None:
    assert kinds(check_python("a/b.py", '"""Howitzers of state."""\n\nclass A:\n    """True if open."""\n')) == []


def test_long_first_line_is_found() -> None:
    assert kinds(check_python("a/b.py", f'"""{"x" * 100}"""\n')) == []
    assert kinds(check_python("a/b.py", f'"""{"x" * 101}"""\n')) == [(1, "long first line")]


def test_forbidden_word_is_found_in_docstring_comment_and_message() -> None:
    code = dedent('''\
        """Claim runs.

        Nobody waits. `nobody` and "told" are quoted.

        >>> ask("asked")  # told
        """
        # Whoever wrote it, "whoever".
        told = "asked"
        message = f"{told} stands alone, `asked to`"
        ''')
    found = [(3, "'nobody'"), (7, "'whoever'"), (9, "'stands'")]
    assert kinds(check_python("a/b.py", code)) == found
    assert kinds(check_python("tests/b.py", code)) == found[:2]


def test_forbidden_word_is_found_in_sql_comments_only() -> None:
    assert kinds(check_sql("a.sql", "-- name: a\n-- Nobody waits, `told`.\nSELECT told FROM asked;\n")) == [
        (2, "'nobody'")
    ]


def test_forbidden_word_is_found_on_pages_outside_code() -> None:
    page = "# Told\n\n| told | `told` |\n\n```\ntold\n```\n\n- one\n- asked by\n  whoever\n"
    assert kinds(check_markdown("docs/a.md", page)) == [
        (1, "'told'"),
        (3, "'told'"),
        (10, "'asked'"),
        (11, "'whoever'"),
    ]


def test_sentence_of_more_than_forty_words_is_found_outside_tables() -> None:
    long, short = "word " * 40 + "end.", "word " * 39 + "end."
    assert kinds(check_markdown("docs/a.md", f"{short}\n{short} {short}\n")) == []
    assert kinds(check_markdown("docs/a.md", f"{short}\n{long}\n")) == [(2, "long sentence")]
    assert kinds(check_markdown("docs/a.md", f"- {short[:-1]}\n- {long}\n")) == [(2, "long sentence")]
    assert kinds(check_markdown("docs/a.md", f'`{long}` "{long}"\n\n| {long} |\n')) == []


def test_generated_files_are_left_out() -> None:
    files = {path.relative_to(ROOT).as_posix() for path in prose_files()}
    assert {"README.md", "tidewheel/runs.py", "intake/queries.sql", "tests/prose.py", "docs/adr/README.md"} <= files
    assert not [file for file in files if file.startswith(("schemas/generated/", "tidewheel/intake/"))]
