"""Fixtures of the scheduler's duties."""

import pytest

from tests.fixtures.database import ClockedDatabase, Database


@pytest.fixture
def still(clocked: ClockedDatabase) -> ClockedDatabase:
    """A database whose clock is stopped."""
    clocked.stop_clock()
    return clocked


@pytest.fixture
def with_job(database: Database) -> Database:
    """A database with one job."""
    database.submit()
    return database
