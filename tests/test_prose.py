"""The check of prose finds what the rules forbid, and leaves quotations and code alone."""

from collections.abc import Iterable
from textwrap import dedent

from tests.prose import Finding, check_markdown, check_python, check_sql


def kinds(findings: Iterable[Finding]) -> list[tuple[int, str]]:
    return sorted((finding.line, finding.kind) for finding in findings)


def test_forbidden_openings_lines_and_words_of_code_are_found() -> None:
    code = dedent('''\
        """Claim runs.

        Nobody waits. `nobody` and "told" are quoted.

        >>> ask("asked")  # told
        """
        # Whoever wrote it, "whoever".
        told = "asked"
        message = f"{told} stands alone, `asked to`"


        def run():
            """What it is."""
        ''')
    found = [(3, "'nobody'"), (7, "'whoever'"), (9, "'stands'"), (13, "opening")]
    assert kinds(check_python("a/b.py", code)) == found
    assert kinds(check_python("a/b.py", f'"""{"x" * 101}"""\n')) == [(1, "long first line")]
    assert kinds(check_sql("a.sql", "-- Nobody waits, `told`.\nSELECT told FROM asked;\n")) == [(1, "'nobody'")]


def test_forbidden_words_and_long_sentences_of_pages_are_found() -> None:
    page = f"# Told\n\n| told | `told` |\n\n```\ntold\n```\n\n- one\n- asked by\n  whoever\n\n{'word ' * 40}end.\n"
    assert kinds(check_markdown("docs/a.md", page)) == [
        (1, "'told'"),
        (3, "'told'"),
        (10, "'asked'"),
        (11, "'whoever'"),
        (13, "long sentence"),
    ]
