"""Each kind of target is on the pages about targets and has a case in the target matrix."""

import ast
import re

import pytest

from tests.strict_types import ROOT
from tidewheel.jobs.targets import TARGETS

DOCS = ROOT / "docs"
CASES = ROOT / "tests" / "system" / "target_cases.py"


@pytest.mark.parametrize("kind", TARGETS)
def test_kind_has_its_rows_on_the_targets_page(kind: str) -> None:
    promises, *matrices = (DOCS / "targets.md").read_text(encoding="utf-8").split("| at_")
    rows = [re.findall(rf"^\| {kind}\b", table, re.MULTILINE) for table in (promises, *matrices)]
    assert len(rows) == 3
    assert all(rows)


@pytest.mark.parametrize("kind", TARGETS)
def test_kind_has_a_case_in_the_target_matrix(kind: str) -> None:
    tree = ast.parse(CASES.read_text(encoding="utf-8"))
    [body] = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "targets"]
    [table] = [node.value for node in body.body if isinstance(node, ast.Return)]
    assert isinstance(table, ast.Dict)
    names = [key.value for key in table.keys if isinstance(key, ast.Constant)]
    assert [name for name in names if re.match(rf"{kind}\b", str(name))]
