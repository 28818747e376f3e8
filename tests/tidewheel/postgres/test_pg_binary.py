"""Rows that a tenant's session inserts: as many and the same as a service copies, by few statements."""

from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, LiteralString

import psycopg
import pytest

from tests.fixtures.database import Database
from tidewheel.audit import Change, process_actor, record
from tidewheel.control.client.client import Client
from tidewheel.control.client.connection import Connection
from tidewheel.errors import InstallationFault, TidewheelError
from tidewheel.outbox import OutboxRow, append
from tidewheel.postgres.session import Conn

TENANT = "acme"
MANY = 2000
_ROWS: LiteralString = """
SELECT slice_lane, publish_at, topic, key, value, headers, tenant, priority, later
  FROM outbox WHERE topic = %s ORDER BY key
"""


@dataclass
class Counted:
    """The statements and parameters of a session."""

    statements: int = 0
    parameters: int = 0

    def add(self, parameters: Sequence[object]) -> None:
        self.statements += 1
        self.parameters += len(parameters)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    made, execute = Counted(), psycopg.Cursor[Any].execute

    def counting(self: psycopg.Cursor[Any], query: Any, params: Any = None, **options: Any) -> Any:  # noqa: ANN401
        made.add(params or ())
        return execute(self, query, params, **options)

    monkeypatch.setattr(psycopg.Cursor, "execute", counting)
    return made


@contextmanager
def acting(database: Database) -> Generator[Conn]:
    """A transaction that acts for the tenant."""
    with closing(Connection(database.url, tenant=TENANT)) as connection, connection.transaction() as writing:
        yield writing


def messages(database: Database, topic: str, count: int) -> list[OutboxRow]:
    """Rows with and without each column that may be null."""
    now = database.now()
    return [
        OutboxRow(
            number % 64,
            "standard",
            topic,
            f"{number:06}".encode(),
            None if number % 3 == 0 else b"\0value",
            now + timedelta(seconds=number),
            [("traceparent", b"00-1"), ("empty", b"")] if number % 4 == 0 else (),
            TENANT,
            None if number % 5 == 0 else number % 10,
        )
        for number in range(count)
    ]


def test_many_rows_of_a_tenant_are_stored_as_services_copy_them(fresh_database: Database) -> None:
    """Beside columns that an operator or a later release has dropped and added."""
    fresh_database.execute("ALTER TABLE outbox ADD COLUMN gone integer, ADD COLUMN later text DEFAULT 'its default'")
    fresh_database.execute("ALTER TABLE outbox DROP COLUMN gone")
    own, copied = (messages(fresh_database, topic, MANY) for topic in ("own", "copied"))
    with acting(fresh_database) as writing:
        append(writing, own, shards=64)
    fresh_database.within(append, copied, shards=64)
    found, wanted = (fresh_database.rows(_ROWS, [topic]) for topic in ("own", "copied"))
    assert len(found) == MANY
    assert [row[:1] + row[3:] for row in found] == [row[:1] + row[3:] for row in wanted]
    assert [row[1] for row in found] == [row.publish_at for row in own]


def test_many_changes_of_a_tenant_are_recorded(fresh_database: Database) -> None:
    """The list of their columns has two lines."""
    changes = [
        (
            process_actor(),
            Change(TENANT, "job.submit", f"job/{number}", after=number, reason=None if number % 2 else "why"),
        )
        for number in range(100)
    ]
    with acting(fresh_database) as writing:
        record(writing, changes)
    found = fresh_database.rows(
        "SELECT object, version_before, version_after, reason FROM audit_log ORDER BY version_after"
    )
    assert found == [(each.object, None, each.after, each.reason) for _, each in changes]


def test_missing_column_is_named_and_found_once_it_is_there(fresh_database: Database) -> None:
    """An application is upgraded before the schema."""
    changes = [(process_actor(), Change(TENANT, "job.submit", f"job/{at}", reason="why")) for at in range(100)]
    fresh_database.execute("ALTER TABLE audit_log DROP COLUMN reason")
    with pytest.raises(TidewheelError, match="reason"), acting(fresh_database) as writing:
        record(writing, changes)
    fresh_database.execute("ALTER TABLE audit_log ADD COLUMN reason text")
    with acting(fresh_database) as writing:
        record(writing, changes)
    assert fresh_database.count("audit_log") == len(changes)


def test_row_of_another_tenant_among_many_is_refused(database: Database) -> None:
    rows = messages(database, "own", MANY)
    rows[-1] = rows[-1]._replace(tenant="rival")
    with pytest.raises(InstallationFault, match="row-level security"), acting(database) as writing:
        append(writing, rows, shards=64)
    assert database.count("outbox") == 0


def test_statements_and_parameters_do_not_grow_with_the_batch(database: Database, counted: Counted) -> None:
    """With a parameter for each field, 10,000 runs took half a million of them, and 3 to 5 s."""
    database.execute("INSERT INTO tenants (tenant) VALUES (%s)", [TENANT])
    with Client(database.url, tenant=TENANT) as client:
        client.submit({"key": "job", "schedule": "manual", "target": "work"})
        before = Counted(counted.statements, counted.parameters)
        batch = client.batches.submit(
            [{"ref": f"run-{number}", "key": "job", "payload": {"n": number}} for number in range(MANY)]
        )
    assert counted.statements - before.statements < 50
    assert counted.parameters - before.parameters < MANY
    wanted = {(f"run-{number}", b'{"n":%d}' % number, 1) for number in range(MANY)}
    found = database.rows(
        "SELECT b.ref, i.payload, count(o.key) FROM batch_runs AS b JOIN run_inputs AS i USING (run_id)"
        "  JOIN outbox AS o ON o.key = convert_to(b.run_id::text, 'UTF8')"
        " WHERE b.batch_id = %s AND b.tenant = %s GROUP BY b.ref, i.payload",
        [batch, TENANT],
    )
    assert set(found) == wanted
