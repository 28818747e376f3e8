"""Jobs that a bench loads are due when it reckons with them."""

from datetime import timedelta

import pytest

from tests.fixtures.database import Database
from tools.bench.load import database_now, load_jobs, steady


@pytest.mark.postgres
def test_spread_with_fractional_microseconds_gives_every_job_a_last_occurrence(
    database: Database,
) -> None:
    connection, second = database.connection(), timedelta(seconds=1)
    due_at = database_now(connection)
    load_jobs(connection, database.installation, steady(1800, second, rounds=1), due_at)
    [(count, last)] = database.rows("SELECT count(*), max(due_at) FROM timers")
    assert count == 1800
    assert last < due_at + second
