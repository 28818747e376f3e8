"""The table of exit codes on the page of the command line."""

import ast
import inspect
import re

from tests.strict_types import ROOT
from tidewheel.control.cli import exit_codes
from tidewheel.control.cli.exit_codes import ExitCode


def test_page_lists_every_exit_code_with_its_meaning() -> None:
    page = (ROOT / "docs/command-line.md").read_text(encoding="utf-8").partition("## Exit codes")[2]
    listed = {int(code): meaning for code, meaning in re.findall(r"^\| (\d+) \| (.+) \|$", page, re.MULTILINE)}
    assert listed == {code.value: meaning for code, meaning in meanings().items()}


def meanings() -> dict[ExitCode, str]:
    """Return the text below each member of the enum."""
    [table] = [node for node in ast.parse(inspect.getsource(exit_codes)).body if isinstance(node, ast.ClassDef)]
    texts = [
        node.value.value
        for node in table.body[1:]
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]
    return dict(zip(ExitCode, texts, strict=True))
