"""Jobs on the pages for users of other schedulers are accepted, and their handlers exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.json_blocks import documents
from tests.fixtures.database import Database
from tests.strict_types import ROOT
from tidewheel.schemas.generated.records import ReplyStatus

PAGES = sorted((ROOT / "docs/coming-from").glob("*.md"))
# The other blocks in Python are those of the other scheduler.
_PYTHON = re.compile(r"^```python\n(import tidewheel\n.*?)^```$", re.MULTILINE | re.DOTALL)
_LIST = "import page; from tidewheel.executor.handlers import registered; print(*registered())"
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


@each_page
def test_requests_of_a_page_are_accepted(page: Path, database: Database) -> None:
    requests = documents(page)
    assert requests
    for each in requests:
        [reply] = database.apply_batch(each)
        assert reply.status is ReplyStatus.ACCEPTED, reply.errors


@pytest.mark.process
@each_page
def test_handlers_of_a_page_are_those_that_its_jobs_name(page: Path, tmp_path: Path) -> None:
    targets = [each["job"]["target"] for each in documents(page) if "job" in each]
    blocks = _PYTHON.findall(page.read_text(encoding="utf-8"))
    (tmp_path / "page.py").write_text("\n".join(blocks), encoding="utf-8")
    printed = subprocess.run([sys.executable, "-c", _LIST], cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=True)
    assert {*printed.stdout.split()} == {target for target in targets if isinstance(target, str)}
