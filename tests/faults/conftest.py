"""Fixtures of fault tests."""

import pytest

from tests.faults.workload import Workload
from tests.fixtures.oracle import Oracle
from tests.fixtures.services import Fleet


@pytest.fixture
def work(fleet: Fleet, oracle: Oracle) -> Workload:
    """The load of this test's fleet; nothing is submitted yet."""
    return Workload(fleet, oracle)
