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
SCHEDULERS = (
    "airflow", "apscheduler", "celery-beat", "eventbridge", "kubernetes-cronjob", "quartz", "river-and-oban",
    "temporal",
)  # fmt: skip
PARTS = ["Words", "A job", "What behaves differently", "What Tidewheel lacks"]
ROWS = ("overlap", "catch-up", "time zones", "retries", "guarantee")
# The other blocks in Python are those of the other scheduler.
_PYTHON = re.compile(r"^```python\n(import tidewheel\n.*?)^```$", re.MULTILINE | re.DOTALL)
_LIST = "import page; from tidewheel.executor.handlers import registered; print(*registered())"
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def test_there_is_a_page_for_each_scheduler() -> None:
    assert tuple(page.stem for page in PAGES) == SCHEDULERS


@each_page
def test_page_compares_words_and_behaviour_and_names_what_is_lacking(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == PARTS
    behaviour = text.partition("## What behaves differently")[2]
    assert [row for row in ROWS if not re.search(rf"^\| {row}", behaviour, re.MULTILINE)] == []
    assert re.search(r"^We checked the rows that link to .+ in \w+ \d{4}\.", behaviour, re.MULTILINE)
    assert len(re.findall(r"^\|.*\]\(https://", behaviour, re.MULTILINE)) >= 5


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
