"""A stored form that no reader knows leaves its row readable, and all others (ADR 0031).

The columns are those of the schema: a new one is damaged by itself. A round damages one column of each table at the
same time, so that all of them are damaged within minutes.
"""

import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http import HTTPStatus
from itertools import zip_longest
from pathlib import Path
from traceback import extract_tb
from typing import LiteralString, NamedTuple

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from tests.control.api.answering import answering
from tests.control.cli.command import tidewheel
from tests.control.console.pages import HTML
from tests.control.console.seeded import seed
from tests.control.every_field import bring_into_every_state
from tests.control.test_every_view import Places, command_lines, page_paths, route_paths
from tests.fixtures.database import ClockedDatabase
from tidewheel.testing.databases import Template

COLUMNS: LiteralString = """
SELECT c.relname::text, a.attname::text, a.atttypid::regtype::text
  FROM pg_class AS c
  JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
 WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
   AND c.relname NOT IN ('settings', 'tidewheel_migrations', 'schemas', 'test_clock')
 ORDER BY 1, a.attnum
"""
JSON = ('"damaged"', '[{"a": 1}]', '{"a": {"b": []}}', '{"ids": 7, "status": 7, "labels": 7, "since": 7, "job": 7}')
VALUES: Mapping[str, Sequence[str]] = {
    "jsonb": JSON,
    "text": ("damaged",),
    "bytea": ("\\x00ff",),
    "timestamp with time zone": ("infinity", "-infinity", "294000-01-01Z"),
    "interval": ("1000000 days", "-1000000 days"),
    "double precision": ("NaN", "-Infinity"),
    "real": ("NaN", "-Infinity"),
    "numeric": ("NaN",),
}
JSON_TEXT = ("damaged", "[]", '{"kind": "damaged"}')
View = tuple[str, ...]
IDS = re.compile(r"id:[0-9a-f-]{36}|[0-9a-f]{8}-[0-9a-f-]{27}|(?<=/)[0-9]+|(?<=jobs/)[\w.%-]+(?=/)")
NAMES = {"tenant", "acts_for"}  # without the tenant no view shows a row


class Damage(NamedTuple):
    """A value that no reader knows, in every row of a table."""

    table: str
    column: str
    value: str
    for_all: bool


@pytest.fixture(scope="module")
def places(clocked_template: Template) -> Iterator[Places]:
    database = ClockedDatabase(clocked_template.copy(), clocked_template.installation)
    ids = seed(database)
    made = bring_into_every_state(database)
    with answering(database) as client:
        yield Places(made, ids, client)
    database.close()


def rounds(database: ClockedDatabase) -> Iterator[list[Damage]]:
    """Yield the damages of each round: one of each table, the first values of all columns before others."""
    by_table: dict[str, list[Damage]] = {}
    for table, column, kind in database.rows(COLUMNS):
        if column not in NAMES and database.count(table):
            values = JSON_TEXT if column.endswith("_json") else VALUES.get(kind, ())
            found = [Damage(table, column, value, value in JSON or value == values[0]) for value in values]
            by_table.setdefault(table, []).extend(found)
    for damages in by_table.values():
        damages.sort(key=lambda each: not each.for_all)
    for each in zip_longest(*by_table.values()):
        yield [damage for damage in each if damage is not None]


@contextmanager
def damaged(connection: psycopg.Connection, damages: Sequence[Damage]) -> Generator[list[Damage]]:
    """Do those of the damages that the constraints of the tables allow; restore the tables at the end."""
    done: list[Damage] = []
    for each in damages:
        statement = SQL("UPDATE {} SET {} = {}").format(Identifier(each.table), Identifier(each.column), each.value)
        with suppress(psycopg.IntegrityError, psycopg.DataError):
            connection.execute(SQL("CREATE TABLE {} AS TABLE {}").format(kept(each), Identifier(each.table)))
            connection.execute(statement)
            done.append(each)
    try:
        yield done
    finally:
        for each in damages:
            names = connection.execute(WRITTEN, [each.table]).fetchall()
            columns = SQL(", ").join(Identifier(name) for (name,) in names)
            table = Identifier(each.table)
            connection.execute(SQL("DELETE FROM {}").format(table))
            connection.execute(
                SQL("INSERT INTO {} ({columns}) OVERRIDING SYSTEM VALUE SELECT {columns} FROM {}").format(
                    table, kept(each), columns=columns
                )
            )
            connection.execute(SQL("DROP TABLE {}").format(kept(each)))


def kept(damage: Damage) -> Identifier:
    return Identifier(f"kept_{damage.table}")


WRITTEN: LiteralString = """
SELECT attname::text FROM pg_attribute
 WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
"""


def views(places: Places) -> list[list[View]]:
    """Return the views by their kind, such as all pages of a run."""
    found: dict[str, list[View]] = {}
    for route in places.routes():
        found[route] = [("GET", path) for path in route_paths(places, route)]
    for page in page_paths(places):
        found.setdefault(IDS.sub("-", page), []).append(("PAGE", page))
    for words in command_lines(places):
        found.setdefault(" ".join(words[:2]), []).append(tuple(words))
    return [*found.values()]


def fault_of(places: Places, view: View, log: pytest.LogCaptureFixture) -> str | None:
    """Return why a view could not be read; None if it could."""
    kind, *_ = view
    if kind not in {"GET", "PAGE"}:
        try:
            tidewheel(places.made.database, *view)
        except Exception as error:  # noqa: BLE001 - whichever a traceback would show
            return place_of(error)
        return None
    headers = {"Connection": "close", **(HTML if kind == "PAGE" else {})}  # a fault closes it
    answer = places.client.get(view[1], headers=headers)
    if answer.status_code < HTTPStatus.INTERNAL_SERVER_ERROR:
        return None
    errors = [record.exc_info[1] for record in log.records if record.exc_info]
    return " ".join([str(answer.status_code), *(place_of(each) for each in errors if each), answer.text[-200:]])


def place_of(error: BaseException) -> str:
    frames = extract_tb(error.__traceback__)[-3:]
    return f"{error!r} at {' > '.join(f'{Path(each.filename).name}:{each.lineno}' for each in frames)}"


@pytest.mark.slow
def test_no_damaged_form_fails_a_view(places: Places, caplog: pytest.LogCaptureFixture) -> None:
    database = places.made.database
    groups = views(places)
    faults: dict[str, str] = {}
    with psycopg.connect(database.url, autocommit=True) as connection:
        connection.execute("SET session_replication_role = replica")  # the log of changes refuses changes
        for number, damages in enumerate(rounds(database)):
            with damaged(connection, damages) as done:
                for group in groups:
                    view = group[number % len(group)]
                    if view[0] != "GET" and not any(each.for_all for each in done):
                        continue  # pages and commands take the longest
                    caplog.clear()
                    if (fault := fault_of(places, view, caplog)) is not None:
                        faults.setdefault(fault, f"{view}: {fault}: {done}")
    assert not faults, "\n".join(faults.values())
