"""A client of an empty database."""

from collections.abc import Iterator

import pytest

from tests.fixtures.database import Database
from tidewheel.control.client.client import Client


@pytest.fixture
def client(database: Database) -> Iterator[Client]:
    with Client(database.url) as made:
        yield made
