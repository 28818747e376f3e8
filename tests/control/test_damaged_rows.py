"""A stored form that no reader knows leaves its row readable, and all others (ADR 0031).

The columns are those of the schema: a new one is damaged by itself. A round damages one column of each table at the
same time, so that all of them are damaged within minutes.
"""

import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from http import HTTPStatus
from itertools import islice, zip_longest
from pathlib import Path
from traceback import extract_tb
from typing import Any, LiteralString

import psycopg
import pytest
from prometheus_client import REGISTRY
from psycopg.sql import SQL, Identifier

from tests.control.api.answering import answering
from tests.control.cli.command import tidewheel
from tests.control.console.pages import HTML
from tests.control.console.seeded import seed
from tests.control.every_field import bring_into_every_state
from tests.control.test_every_view import READS, Places, command_lines, page_paths, route_paths
from tests.fixtures.damages import Damage, damages
from tests.fixtures.database import ClockedDatabase
from tidewheel.control.client.client import Client
from tidewheel.testing.databases import Template

View = tuple[str, ...]
IDS = re.compile(r"id:[0-9a-f-]{36}|[0-9a-f]{8}-[0-9a-f-]{27}|(?<=/)[0-9]+|(?<=jobs/)[\w.%-]+(?=/)")
NAMES = {"tenant", "acts_for"}  # without the tenant no view shows a row


ROWS: LiteralString = """
INSERT INTO archived_days (day, runs, bytes, id_days) VALUES ('2026-11-19', 1, 1, '{20776}');
INSERT INTO deferred_effects (run_id, job_id, tenant, ended_at, chain_at, reset_failures, inputs_at, release_job)
SELECT gen_random_uuid(), job_id, tenant, created_at, created_at, true, created_at, true FROM jobs WHERE key = 'hourly';
INSERT INTO intake_offsets (topic, partition, topic_id, next_offset, epoch, owner, unmoved)
VALUES ('tidewheel.requests', 0, 'a', 1, 1, 'host-1', 0);
INSERT INTO job_days
SELECT job_id, '2026-11-19', tenant, 1, 0, 0, 0, 0, 1, '{1}', '{1}' FROM jobs WHERE key = 'hourly';
INSERT INTO order_failures (key_id, order_no, tenant, run_id) VALUES (1, 1, 'default', gen_random_uuid());
INSERT INTO quarantine (kind, tenant, job_id, error, created_at)
SELECT 'job', tenant, job_id, 'ValueError: no', created_at FROM jobs WHERE key = 'hourly';
INSERT INTO quarantine (kind, topic, key, value, headers, error, created_at)
VALUES ('outbox', 'tidewheel.events', 'k', 'v', '{a,b}', 'too large', tidewheel_now());
INSERT INTO retention_state (passed_at, behind, held_by) VALUES (tidewheel_now(), '1 d', 'the archive');
INSERT INTO run_days (day, waits_for, closed_at) VALUES ('2026-11-19', '{}', tidewheel_now());
INSERT INTO sign_ins (digest, key_id, secret_hash, name)
SELECT sha256('a'), key_id, secret_hash, name FROM api_keys WHERE key_id = 'aaaaaaaaaa';
INSERT INTO tenant_deletions (tenant, created_at, waits_for, at_key) VALUES ('gone', tidewheel_now(), '{}', '{}');
INSERT INTO tenant_periods (tenant, state, keep, kept_since) VALUES ('acme', 'any', '9 d', '2026-11-01');
INSERT INTO tenant_roles (role, acts_for) VALUES ('reports', 'acme');
INSERT INTO unhandled_announcements VALUES ('default', 'default', 'a', tidewheel_now());
"""
"""Rows of the tables that `seed` and `bring_into_every_state` leave empty."""


@pytest.fixture(scope="module")
def places(clocked_template: Template) -> Iterator[Places]:
    database = ClockedDatabase(clocked_template.copy(), clocked_template.installation)
    ids = seed(database)
    made = bring_into_every_state(database)
    database.execute(ROWS)
    with answering(database) as client:
        yield Places(made, ids, client)
    database.close()


def rounds(database: ClockedDatabase) -> Iterator[list[Damage]]:
    """Yield the damages of each round: one of each table, the first values of all columns before others."""
    by_table: dict[str, list[Damage]] = {}
    for each in damages(database):
        if each.column not in NAMES:
            by_table.setdefault(each.table, []).append(each)
    for found in by_table.values():
        found.sort(key=lambda each: not each.is_first)
    for each in zip_longest(*by_table.values()):
        yield [damage for damage in each if damage is not None]


@contextmanager
def damaged(
    connection: psycopg.Connection, wanted: Sequence[Damage], *, row: int | None = None
) -> Generator[list[Damage]]:
    """Do those damages that the constraints of the tables allow; restore the tables at the end.

    With `row`, they concern one row of each table, counted from its first one and round again.
    """
    done: list[Damage] = []
    for each in wanted:
        table = Identifier(each.table)
        statement = SQL("UPDATE {} SET {} = {}").format(table, Identifier(each.column), each.value)
        if row is not None:
            statement = SQL("{} WHERE (tableoid, ctid) = ({})").format(statement, ONE_ROW.format(table, row, table))
        with suppress(psycopg.IntegrityError, psycopg.DataError):
            connection.execute(SQL("CREATE TABLE {} AS TABLE {}").format(kept(each), Identifier(each.table)))
            connection.execute(statement)
            done.append(each)
    try:
        yield done
    finally:
        for each in wanted:
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


ONE_ROW = SQL("""
SELECT tableoid, ctid FROM {} ORDER BY tableoid, ctid OFFSET (SELECT {} % count(*) FROM {}) LIMIT 1
""")


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


def test_each_table_has_a_row_that_is_damaged(places: Places) -> None:
    database = places.made.database
    assert all(database.count(each.table) for each in damages(database))


def unreadable() -> Mapping[str, float]:
    """Return the number of unreadable forms that this process has counted, by form."""
    found = [each for metric in REGISTRY.collect() for each in metric.samples]
    return {each.labels["form"]: each.value for each in found if each.name == "tidewheel_stored_forms_unreadable_total"}


LISTED = {"definition", "filter", "labels", "schedule", "timestamptz"}
"""Forms that lists have: some view meets each of them in a round that damages it."""


@pytest.mark.slow
def test_no_damaged_form_fails_a_view(places: Places, caplog: pytest.LogCaptureFixture) -> None:
    database = places.made.database
    groups = views(places)
    faults: dict[str, str] = {}
    before = unreadable()
    with psycopg.connect(database.url, autocommit=True) as connection:
        connection.execute("SET session_replication_role = replica")  # the log of changes refuses changes
        for number, some in enumerate(rounds(database)):
            with damaged(connection, some) as done:
                for group in groups:
                    view = group[number % len(group)]
                    if view[0] != "GET" and not any(each.is_first for each in done):
                        continue  # pages and commands take the longest
                    caplog.clear()
                    if (fault := fault_of(places, view, caplog)) is not None:
                        faults.setdefault(fault, f"{view}: {fault}: {done}")
    assert not faults, "\n".join(faults.values())
    assert {form for form, count in unreadable().items() if count > before.get(form, 0)} >= LISTED


LONGEST = "limit=500"  # the whole of each list
MOST = 2  # paths of a route that names a row
TABLE_ROW = re.compile(r"<tr\b")
FACTS = {
    ("jobs", "deleted_at"),
    ("freezes", "thawed_at"),
    ("dead_letters", "redriven_at"),
    ("job_edges", "from_at"),
    ("job_edges", "until_at"),
    ("calendars", "since"),
    ("executors", "lease"),
    ("executors", "last_heartbeat_at"),
    ("processes", "last_heartbeat_at"),
    ("audit_log", "at"),
    ("dead_letters", "created_at"),
    ("failed_runs", "finished_at"),
}
"""Columns that decide if a row is in its list: a deleted job is in none. The last three are bounded by `since`."""
RANKED = "/api/v1/runs/slowest"  # those of a window up to now

Sizes = Mapping[str, int]


def lists(places: Places, client: Client) -> dict[str, Callable[[], Sizes]]:
    """Return the counters of the rows of each list, by the list's name: routes, console's pages, client."""
    found: dict[str, Callable[[], Sizes]] = {}
    document = places.client.get("/api/v1/openapi.json").json()
    for route in set(places.routes()) - {RANKED}:
        taken = {each["name"] for each in document["paths"][route]["get"].get("parameters", ())}
        end = f"?{LONGEST}" if "limit" in taken else ""
        some = [path if "?" in path else path + end for path in islice(route_paths(places, route), 40)]
        whole = {path: size for path in some if (size := partial(answered, places, path))()}
        found |= dict(islice(whole.items(), MOST))
    for page in page_paths(places):
        if IDS.search(page) is None and "?" not in page and shown(places, page):
            found[f"page {page}"] = partial(shown, places, page)
    for name, arguments in READS.items():
        part, _, method = name.rpartition(".")
        if part and not arguments and method != "count":
            found[f"client {name}"] = partial(returned, getattr(getattr(client, part), method))
    return found


def answered(places: Places, path: str) -> Sizes:
    """Return the number of rows of each list of records in an answer."""
    answer = places.client.get(path, headers={"Connection": "close"})
    try:
        body: Any = answer.json()
    except ValueError:
        return {}
    named: Mapping[str, Any] = body if answer.status_code == HTTPStatus.OK and hasattr(body, "items") else {}
    return {name: len(rows) for name, rows in named.items() if is_list(rows) and rows and hasattr(rows[0], "items")}


def shown(places: Places, page: str) -> Sizes:
    rows = len(TABLE_ROW.findall(places.client.get(page, headers={"Connection": "close", **HTML}).text))
    return {"rows": rows} if rows else {}


def returned(read: Callable[[], Any]) -> Sizes:
    found = read()
    rows: Any = found if is_list(found) else getattr(found, "rows", None) or getattr(found, "items", ())
    return {"rows": len(rows)} if is_list(rows) and rows else {}


def is_list(value: object) -> bool:
    return isinstance(value, list | tuple)


def shrunk(size: Callable[[], Sizes], before: Sizes) -> str | None:
    """Return which part of a list has fewer rows than before; None if none has."""
    after = size()
    return next((f"{name}: {n} to {after.get(name, 0)}" for name, n in before.items() if after.get(name, 0) < n), None)


@pytest.mark.slow
def test_no_damaged_row_leaves_its_list(places: Places) -> None:
    """One row of each table is damaged at a time: it stays in each list that has it, and so do all others."""
    database = places.made.database
    lost: dict[tuple[str, str, str], str] = {}
    with Client(database.url) as client, psycopg.connect(database.url, autocommit=True) as connection:
        connection.execute("SET session_replication_role = replica")
        sizes = lists(places, client)
        whole = {name: size() for name, size in sizes.items()}
        for number, all_of_them in enumerate(rounds(database)):
            some = [each for each in all_of_them if (each.table, each.column) not in FACTS]
            with damaged(connection, some, row=number) as done:
                fewer = [name for name, size in sizes.items() if shrunk(size, whole[name])]
            for damage in done if fewer else ():
                with damaged(connection, [damage], row=number):
                    for name in fewer:
                        if why := shrunk(sizes[name], whole[name]):
                            lost.setdefault((name, damage.table, damage.column), f"{name}: {why}: {damage}")
    assert not lost, "\n".join(lost.values())
