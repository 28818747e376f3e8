"""The example for users: its tests pass on given servers and leave nothing behind."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.services import admin_of, until
from tests.strict_types import ROOT
from tidewheel.local.stack import StackInfo
from tidewheel.postgres.session import connect
from tidewheel.testing.plugin import DATABASE_VARIABLE, KAFKA_VARIABLE

_PATIENCE_SECONDS = 300
# The other worker's tests use the same servers: what these tests have made is known by name.
NOTING = '''"""Notes what the kit makes."""

import json
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

MADE = set()


@pytest.fixture(autouse=True)
def noted(tidewheel, tidewheel_stack):
    MADE.update({conninfo_to_dict(tidewheel.url)["dbname"], tidewheel_stack.template.name})
    made = {"prefix": tidewheel_stack.topics.prefix, "databases": sorted(MADE)}
    Path("made.json").write_text(json.dumps(made))
'''


@pytest.mark.kafka
@pytest.mark.slow
def test_tests_of_the_example_pass_and_leave_nothing_behind(info: StackInfo, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples" / "shop", tmp_path / "shop")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TIDEWHEEL_", "PG"))}
    environment |= {DATABASE_VARIABLE: info.database_url, KAFKA_VARIABLE: info.bootstrap}
    environment["TIDEWHEEL_KAFKA_PROPERTIES"] = str(info.kafka_properties)
    (tmp_path / "shop" / "conftest.py").write_text(NOTING)
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
    made = json.loads((tmp_path / "shop" / "made.json").read_text())
    assert len(made["databases"]) >= 2
    with connect(info.database_url, "test") as connection:
        there = {str(name) for (name,) in connection.execute("SELECT datname FROM pg_database").fetchall()}
    assert there.isdisjoint(made["databases"])
    admin = admin_of(info.kafka)

    def left() -> list[str]:
        return [name for name in admin.list_topics(timeout=30).topics if name.startswith(made["prefix"])]

    until(lambda: not left(), "the broker has forgotten the topics")  # which it has deleted
