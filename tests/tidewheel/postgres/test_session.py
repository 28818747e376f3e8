"""Sessions distinguish the kinds of failure for their caller."""

from contextlib import closing

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.fixtures.database import Database
from tidewheel.errors import Unavailable
from tidewheel.postgres.pg_arrays import texts
from tidewheel.postgres.session import connect, is_data_fault, is_time_limit

LIMITED = {
    "statement": "SET statement_timeout = '50ms'",
    "transaction": "SET transaction_timeout = '50ms'",
    "lock": "SET lock_timeout = '50ms'",
}


@pytest.mark.parametrize("limit", LIMITED)
def test_statement_timeout_and_lock_timeout_are_distinguished(database: Database, limit: str) -> None:
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


def test_value_that_the_client_cannot_send_is_a_data_fault(database: Database) -> None:
    """It has no SQLSTATE; a retry fails again."""
    with pytest.raises(psycopg.DataError) as raised, database.session().transaction() as connection:
        connection.execute("SELECT %s::text", ["a\x00b"])
    assert raised.value.sqlstate is None
    assert is_data_fault(raised.value)


def test_session_uses_utf8_in_every_environment(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client does not convert values in binary form."""
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    with database.session().transaction() as connection:
        found = connection.execute("SELECT %s::text[]", [texts(["grün €"])]).fetchone()
    assert found == (["grün €"],)


@pytest.mark.parametrize("source", ["URL", "PGOPTIONS"])
def test_server_settings_of_the_operator_apply_beside_tidewheels(
    database: Database, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, url = "-c work_mem=7MB -c synchronous_commit=off", database.url
    if source == "URL":
        url = make_conninfo(url, options=own)
    else:
        monkeypatch.setenv("PGOPTIONS", own)
    with closing(connect(url, "test")) as connection:
        shown = [connection.execute(f"SHOW {name}".encode()).fetchone() for name in ("work_mem", "synchronous_commit")]
    assert shown == [("7MB",), ("on",)]
