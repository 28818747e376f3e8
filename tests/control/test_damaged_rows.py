"""A stored form that no reader knows leaves its row readable, and all others (ADR 0031).

The columns are those of the schema: a new one is damaged by itself.
"""

from collections.abc import Iterator
from contextlib import suppress
from http import HTTPStatus
from typing import LiteralString

import httpx
import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from tests.control.api.answering import answering
from tests.control.console.pages import HTML
from tests.control.console.seeded import seed
from tests.control.every_field import bring_into_every_state
from tests.control.test_every_view import Places, page_paths, route_paths
from tests.fixtures.database import ClockedDatabase
from tidewheel.testing.databases import Template

COLUMNS: LiteralString = """
SELECT c.relname, a.attname, a.atttypid::regtype::text
  FROM pg_class AS c
  JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
 WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
   AND c.relname NOT IN ('settings', 'tidewheel_migrations', 'schemas')
   AND (a.atttypid = 'jsonb'::regtype OR a.attname IN ('schedule_json', 'policy_json', 'dedupe', 'definition'))
 ORDER BY 1, 2
"""
VALUES = {"jsonb": ('"damaged"', "[1]", '{"a": {"b": []}}', "7"), "text": ("damaged", "[]"), "bytea": ("\\x00ff",)}


@pytest.fixture(scope="module")
def places(clocked_template: Template) -> Iterator[Places]:
    database = ClockedDatabase(clocked_template.copy(), clocked_template.installation)
    ids = seed(database)
    made = bring_into_every_state(database)
    with answering(database) as client:
        yield Places(made, ids, client)
    database.close()


def damaged(database: ClockedDatabase, table: str, column: str, value: str) -> Iterator[None]:
    """Damage the column in every row, where the constraints of the table allow it, and restore it."""
    names = {"table": Identifier(table), "column": Identifier(column), "kept": Identifier(f"kept_{table}")}
    with psycopg.connect(database.url, autocommit=True) as connection:
        connection.execute("SET session_replication_role = replica")  # the log of changes refuses changes
        connection.execute(SQL("CREATE TABLE {kept} AS SELECT * FROM {table}").format(**names))
        with suppress(psycopg.IntegrityError, psycopg.DataError):
            connection.execute(SQL("UPDATE {table} SET {column} = {value}").format(**names, value=value))
            yield
        connection.execute(SQL("DELETE FROM {table}").format(**names))
        connection.execute(SQL("INSERT INTO {table} OVERRIDING SYSTEM VALUE SELECT * FROM {kept}").format(**names))
        connection.execute(SQL("DROP TABLE {kept}").format(**names))


@pytest.mark.slow
def test_no_damaged_form_fails_a_view(places: Places) -> None:
    database = places.made.database
    first = {route: next(route_paths(places, route)) for route in places.routes()}
    pages = [*{page.partition("?")[0].rsplit("/", 1)[0]: page for page in page_paths(places)}.values()]
    failed: list[object] = []
    for table, column, kind in database.rows(COLUMNS):
        for value in VALUES[kind]:
            for _ in damaged(database, table, column, value):
                for path, headers in [*((path, {}) for path in first.values()), *((page, HTML) for page in pages)]:
                    try:
                        answer = places.client.get(path, headers=headers)
                    except httpx.TransportError as error:
                        failed.append((table, column, value, path, repr(error)))
                        continue
                    if answer.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
                        failed.append((table, column, value, path))
    assert not failed, "\n".join(map(str, failed))
