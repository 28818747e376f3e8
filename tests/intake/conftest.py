"""Fixtures of intake's tests."""

from datetime import UTC, datetime

import pytest

from tests.fixtures.database import ClockedDatabase
from tests.intake.minutes import MINUTELY


@pytest.fixture
def minutely(still: ClockedDatabase) -> ClockedDatabase:
    """A job that fires each minute and may overlap; the clock is stopped."""
    still.submit(**MINUTELY)
    return still


@pytest.fixture
def ticking(still: ClockedDatabase) -> ClockedDatabase:
    """A job that fires each second and may overlap; the clock is stopped."""
    still.submit(schedule="@every 1s", overlap="allow_all")
    return still


@pytest.fixture
def friday(clocked: ClockedDatabase) -> ClockedDatabase:
    """A clock stopped at noon of Friday, 20 November 2026."""
    clocked.stop_clock(datetime(2026, 11, 20, 12, tzinfo=UTC))
    return clocked
