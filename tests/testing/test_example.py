"""The example that users copy: its tests pass, on servers that the environment names, and leave nothing there."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.services import admin_of
from tests.strict_types import ROOT
from tidewheel.local.stack import StackInfo
from tidewheel.postgres.session import connect
from tidewheel.testing.plugin import DATABASE_VARIABLE, KAFKA_VARIABLE

_PATIENCE_SECONDS = 300


@pytest.mark.kafka
@pytest.mark.slow
def test_the_examples_tests_pass_and_leave_nothing_behind(info: StackInfo, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples" / "shop", tmp_path / "shop")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TIDEWHEEL_", "PG"))}
    environment |= {DATABASE_VARIABLE: info.database_url, KAFKA_VARIABLE: info.bootstrap}
    before = there(info)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-W",
            "error",
            "-p",
            "tidewheel.testing.plugin",
            "-p",
            "no:cacheprovider",
        ],
        cwd=tmp_path / "shop",
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "5 passed" in done.stdout
    assert there(info) == before


def there(info: StackInfo) -> tuple[set[str], set[str]]:
    """The databases and topics that the kit would make."""
    with connect(info.database_url, "test") as connection:
        rows = connection.execute("SELECT datname FROM pg_database WHERE datname LIKE 'tidewheel_test_%'").fetchall()
    topics = admin_of(info.bootstrap).list_topics(timeout=30).topics
    return {str(name) for (name,) in rows}, {name for name in topics if name.startswith("test-")}
