"""Whoever writes is told what kind of failure it was."""

import pytest

from tests.fixtures.database import Database
from tidewheel.db import is_time_limit
from tidewheel.errors import Unavailable

LIMITED = {
    "statement": "SET statement_timeout = '50ms'",
    "transaction": "SET transaction_timeout = '50ms'",
    "lock": "SET lock_timeout = '50ms'",
}


@pytest.mark.parametrize("limit", LIMITED)
def test_what_takes_too_long_is_told_from_what_waits_for_a_lock(database: Database, limit: str) -> None:
    version = database.value("SELECT current_setting('server_version_num')::integer")
    if limit == "transaction" and version < 170_000:
        pytest.skip("PostgreSQL has no such limit before 17")
    holding, session = database.connection(), database.session()
    holding.execute("LOCK TABLE settings")
    with session.transaction() as connection:
        connection.execute(LIMITED[limit].encode())
    with pytest.raises(Unavailable) as raised, session.transaction() as connection:
        connection.execute("SELECT * FROM settings")
    assert is_time_limit(raised.value) == (limit != "lock")
    holding.rollback()
    session.close()
