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
# A process of its own for each page: two pages may have a handler of one name.
_LIST = """
import os, runpy, sys
from tidewheel.executor.handlers import registered
for path in sys.argv[1:]:
    if not os.fork():
        runpy.run_path(path)
        print(path, *registered(), flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_requests_of_a_page_are_accepted(page: Path, database: Database) -> None:
    requests = documents(page)
    assert requests
    for each in requests:
        [reply] = database.apply_batch(each)
        assert reply.status is ReplyStatus.ACCEPTED, reply.errors


@pytest.mark.process
def test_handlers_of_a_page_are_those_that_its_jobs_name(tmp_path: Path) -> None:
    named: dict[str, set[str]] = {}
    for page in PAGES:
        path = tmp_path / f"{page.stem}.py"
        path.write_text("\n".join(_PYTHON.findall(page.read_text(encoding="utf-8"))), encoding="utf-8")
        targets = [each["job"]["target"] for each in documents(page) if "job" in each]
        named[str(path)] = {target for target in targets if isinstance(target, str)}
    done = subprocess.run([sys.executable, "-c", _LIST, *named], stdout=subprocess.PIPE, text=True, check=True)
    lines = [line.split() for line in done.stdout.splitlines()]
    assert {path: {*names} for path, *names in lines} == named
