"""Clients of an API: one for each test, and one for those of a module, which takes less time."""

from collections.abc import Iterator

import pytest

from tests.control.api.answering import ApiClient, answering
from tests.fixtures.database import Database


@pytest.fixture(scope="module")
def shared_client(shared_database: Database) -> Iterator[ApiClient]:
    """A client for refusals, and for other calls of which no test sees the rows of another one."""
    with answering(shared_database) as made:
        yield made


@pytest.fixture
def client(database: Database) -> Iterator[ApiClient]:
    with answering(database) as made:
        yield made
