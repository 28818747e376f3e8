"""Fixtures of relays."""

from collections.abc import Iterator

import pytest

from tests.fixtures.database import Database
from tests.relay.relaying import Relaying
from tidewheel.local.stack import StackInfo


@pytest.fixture
def relaying(database: Database, info: StackInfo) -> Iterator[Relaying]:
    made = Relaying(database, info.kafka)
    yield made
    made.close()
