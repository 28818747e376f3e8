"""Fixtures of intake's tests."""

import pytest

from tests.fixtures.database import Database
from tests.transitions.acts import submit


@pytest.fixture
def with_job(database: Database) -> Database:
    """Return a database with the job that `submit` creates by default."""
    submit(database)
    return database
