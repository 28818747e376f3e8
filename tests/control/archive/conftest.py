"""Databases whose days tests drop."""

from collections.abc import Iterator

import pytest

from tests.fixtures.database import ClockedDatabase
from tidewheel.testing.databases import Template


@pytest.fixture
def clocked(clocked_template: Template) -> Iterator[ClockedDatabase]:
    """A database with a clock of its own, which no other test gets."""
    made = ClockedDatabase(clocked_template.copy(), clocked_template.installation)
    yield made
    made.close()
