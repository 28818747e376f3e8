"""`make matrix`: its page has what is recorded, and it refuses a cell that cannot run here."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.strict_types import ROOT
from tools.matrix.__main__ import PAGE, current_page

ANOTHER = "3.13" if sys.version_info < (3, 13) else "3.12"


def test_page_equals_the_records() -> None:
    assert PAGE.read_text(encoding="utf-8") == current_page(), "run `make matrix`"


@pytest.mark.landing
@pytest.mark.process
@pytest.mark.parametrize(
    ("cell", "refusal"),
    [
        ("postgres-9", "CELL: there is no cell postgres-9; name some of base, "),
        (f"python-{ANOTHER}", f"needs Python {ANOTHER}: put python{ANOTHER} on the PATH, or name other cells by CELL="),
    ],
)
def test_cell_that_cannot_run_is_refused_with_a_remedy(cell: str, refusal: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tools.matrix", cell]
    environment = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: ")
    assert refusal in done.stderr
