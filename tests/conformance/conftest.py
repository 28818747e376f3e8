"""The tested executor: that of TIDEWHEEL_CONFORMANCE_COMMAND, else the TypeScript package's example."""

import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conformance.kit import Kit
from tests.fixtures.database import Database, Template, own_installation
from tests.fixtures.services import make_fleet
from tests.fixtures.typescript import NODE, install_example
from tidewheel.local.stack import StackInfo


@pytest.fixture(scope="session")
def command(tmp_path_factory: pytest.TempPathFactory) -> Sequence[str]:
    command = os.environ.get("TIDEWHEEL_CONFORMANCE_COMMAND")
    if command:
        return shlex.split(command)
    return [str(NODE), str(install_example(tmp_path_factory.mktemp("typescript")) / "conformance.ts")]


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
