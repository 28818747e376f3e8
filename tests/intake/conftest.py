"""Fixtures of intake's tests."""

import pytest

from tests.fixtures.database import ClockedDatabase
from tests.intake.minutes import MINUTELY


@pytest.fixture
def minutely(still: ClockedDatabase) -> ClockedDatabase:
    """A job that fires each minute and may overlap; the clock is stopped."""
    still.submit(**MINUTELY)
    return still
