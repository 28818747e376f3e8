"""Fixtures of intake's tests."""

import pytest

from tests.fixtures.database import Database


@pytest.fixture
def with_job(database: Database) -> Database:
    """Return a database with the job that `submit` creates by default."""
    database.submit()
    return database
