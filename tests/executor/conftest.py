"""Fixtures of executors."""

from collections.abc import Iterator
from uuid import uuid4

import pytest

from tests.executor.handlers import GATES, Gate
from tests.executor.running import Executing
from tests.fixtures.database import Database
from tidewheel.local.stack import StackInfo


@pytest.fixture
def executing(database: Database, info: StackInfo) -> Executing:
    """An executor's surroundings, on a database and topics of their own."""
    made = Executing(database, info.kafka)
    made.make_topics()
    return made


@pytest.fixture
def gate() -> Iterator[str]:
    """A gate of this test's own, open at its end."""
    name = uuid4().hex
    GATES[name] = Gate()
    yield name
    GATES[name].opened.set()
