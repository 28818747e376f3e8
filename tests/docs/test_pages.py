"""README, quickstart and other pages: every marked block runs and prints the text that is shown."""

import os
import sys
from pathlib import Path

import pytest

from tests.docs.pages import Shell, fits, follow
from tests.strict_types import ROOT
from tidewheel.local.daemon import free_port
from tidewheel.local.stack import LocalStack, StackInfo
from tidewheel.local.state import locked
from tidewheel.settings.sources import client_variables
from tidewheel.testing.plugin import DATABASE_VARIABLE, KAFKA_VARIABLE

PAGES = (
    "README.md", "docs/quickstart.md", "docs/occurrences.md", "docs/testing.md", "docs/rest.md", "docs/tasks.md",
    "docs/workflows.md", "docs/tenants.md",
)  # fmt: skip
SHORT = ("README.md", "docs/quickstart.md", "docs/testing.md")  # what a newcomer follows; the others take a minute


@pytest.mark.kafka
@pytest.mark.parametrize("page", [pytest.param(each, marks=[pytest.mark.slow] * (each not in SHORT)) for each in PAGES])
def test_blocks_of_a_page_run_and_print_the_shown_output(
    page: str, stack: LocalStack, info: StackInfo, tmp_path: Path
) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TIDEWHEEL_", "PG"))}
    environment |= {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}",
        "TIDEWHEEL_HOME": str(stack.home),
        "TIDEWHEEL_API_PORT": str(free_port()),  # the default one may be another program's
        # A reader's tests start a stack of their own; these use the running one.
        DATABASE_VARIABLE: info.database_url,
        KAFKA_VARIABLE: info.bootstrap,
        **{name: value for name, value in client_variables(info.kafka).items() if "BOOTSTRAP" not in name},
    }
    # Pages in other workers have the same stack, on which one `tidewheel dev` may run.
    with locked(stack.home / "tests.lock"):
        for block, printed, _ in follow(ROOT / page, Shell(tmp_path, environment)):
            if block.what == "output":
                assert fits(block.text, printed), f"{page}:{block.line} shows\n{block.text}\nand got\n{printed}"
