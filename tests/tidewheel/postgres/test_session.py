"""Sessions distinguish the kinds of failure for their caller."""

import logging
import select
import socket
import threading
from contextlib import closing

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.fixtures.database import Database
from tests.transitions.stepping import in_background
from tidewheel.errors import Unavailable
from tidewheel.postgres.pg_binary import texts
from tidewheel.postgres.session import Conn, Session, connect, is_data_fault, is_time_limit
from tidewheel.postgres.session_kinds import SessionPool
from tidewheel.process.logs import JsonLines

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


def test_text_of_an_error_quotes_no_row(database: Database) -> None:
    """DETAIL and CONTEXT would; errors are logged, stored and sent in replies."""
    with pytest.raises(psycopg.errors.UniqueViolation) as raised, database.session().transaction() as connection:
        connection.execute("INSERT INTO tenants (tenant) VALUES ('canary'), ('canary')")
    assert "canary" in str(raised.value.diag.message_detail)
    assert "duplicate key" in str(raised.value)
    facts = (type(raised.value), raised.value, raised.value.__traceback__)
    record = logging.LogRecord("test", logging.ERROR, "", 0, "failed: %s", (raised.value,), facts)
    line = JsonLines().format(record)
    assert "Key (tenant)" not in line
    assert "DETAIL" not in line


def test_text_of_a_failed_copy_quotes_no_row(database: Database) -> None:
    with pytest.raises(psycopg.errors.NotNullViolation) as raised, database.session().transaction() as connection:
        copy_canary(connection)
    assert "canary" in str(raised.value.diag.context)
    assert "canary" not in str(raised.value)


def test_server_lost_right_after_the_connection_is_unavailable(database: Database) -> None:
    """A caller that waits for the database, such as a claim's that reads back, must go on waiting."""
    told = conninfo_to_dict(database.url)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def relay_until_ready() -> None:
            ours, _ = listening.accept()
            with ours, socket.create_connection((str(told["host"]), int(str(told["port"])))) as theirs:
                sent = b""
                while not sent.endswith(b"Z\x00\x00\x00\x05I"):  # ReadyForQuery
                    ready, _, _ = select.select([ours, theirs], [], [])
                    for one in ready:
                        data = one.recv(65_536)
                        (theirs if one is ours else ours).sendall(data)
                        sent = data if one is theirs else sent
                ours.recv(1)

        relaying = threading.Thread(target=relay_until_ready)
        relaying.start()
        session = Session(make_conninfo(database.url, port=listening.getsockname()[1], gssencmode="disable"), "test")
        with pytest.raises(Unavailable), session.transaction() as connection:
            connection.execute("SELECT")
        session.close()
        relaying.join()


def test_connection_that_the_server_closed_between_transactions_is_replaced(database: Database) -> None:
    with closing(Session(database.url, "test", renews=True)) as session:
        for _ in range(3):
            with session.transaction() as connection:
                connection.execute("CREATE TABLE IF NOT EXISTS written ()")
            database.execute("SELECT pg_terminate_backend(%s, 5000)", [connection.info.backend_pid])


@pytest.mark.parametrize("renews", [False, True])
def test_loss_of_a_transaction_is_reported(database: Database, *, renews: bool) -> None:
    with closing(Session(database.url, "test", renews=renews)) as session:

        def lose() -> None:
            with session.transaction() as connection:
                connection.execute("SELECT")
                database.execute("SELECT pg_terminate_backend(%s, 5000)", [connection.info.backend_pid])
                session.connection().execute("SELECT")

        with pytest.raises(Unavailable):
            lose()
        with session.transaction() as connection:
            connection.execute("SELECT")


def copy_canary(connection: Conn) -> None:
    with connection.cursor().copy("COPY tenants (tenant, created_at) FROM STDIN") as copy:
        copy.write_row(["canary", None])


def test_threads_share_as_many_sessions_as_a_pool_has(database: Database) -> None:
    pool = SessionPool(database.session, 2)
    with pool.transaction() as first, pool.transaction() as second:
        assert first is not second
        third = in_background(lambda: _connection_of(pool))
        assert not third.done()
    assert third.result(10.0) in (first, second)
    with pool.transaction():
        pool.close()
        assert first.closed != second.closed, "one is busy"
    assert first.closed == second.closed


def _connection_of(pool: SessionPool) -> Conn:
    with pool.transaction() as connection:
        return connection
