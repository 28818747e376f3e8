"""The archives of two installations in one database, one of them in a schema of its own."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from uuid import UUID

import pytest
from psycopg import sql

from tests.control.archive.test_archive import DAY, drop, pass_day
from tests.control.cli.command import json_output
from tests.fixtures.database import ClockedDatabase
from tests.fixtures.services import until
from tests.system.test_own_schema import SCHEMA, own_url
from tidewheel.control.archive.archiver import archive_closed_days
from tidewheel.control.archive.stores import FolderStore
from tidewheel.migrations.runner import migrate
from tidewheel.postgres.partitions import day_of
from tidewheel.testing.databases import CLOCK

pytestmark = pytest.mark.postgres


@pytest.fixture
def shop(clocked: ClockedDatabase) -> Iterator[ClockedDatabase]:
    """The installation in the schema, with a clock of its own."""
    url = own_url(clocked.url)
    migrate(url, tenant_role=None)
    with closing(ClockedDatabase(url, clocked.installation)) as database:
        database.within(lambda connection: connection.execute(CLOCK))
        yield database


@pytest.mark.landing
def test_two_installations_archive_and_restore_their_own_days_at_once(
    clocked: ClockedDatabase, shop: ClockedDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    today = day_of(clocked.now())
    runs = {SCHEMA: end_runs(shop, today, 2), "public": end_runs(clocked, today, 3)}
    both = {SCHEMA: shop, "public": clocked}

    def archived(name: str) -> bool:
        """A day closes once no transaction of the database can add a run, not even one of the neighbour."""
        pass_day(both[name], timedelta(0))
        done = archive_closed_days(both[name].url, FolderStore(tmp_path / name), 30 * DAY)
        return today in {each.day for each in done.archived}

    def archive(name: str) -> None:
        both[name].advance(2 * DAY)
        until(lambda: archived(name), "the day is archived")
        drop(both[name], today)

    with ThreadPoolExecutor(2) as threads:
        assert [*threads.map(archive, both)] == [None, None]
    for name, database in both.items():
        monkeypatch.setenv("TIDEWHEEL_ARCHIVE", str(tmp_path / name))
        assert json_output(database, "admin", "archive", "restore", today)["runs"] == len(runs[name])
    for name, schema in {"public": "tidewheel_archive", SCHEMA: f"tidewheel_archive_{SCHEMA}"}.items():
        found = clocked.rows(sql.SQL("SELECT run_id FROM {}").format(sql.Identifier(schema, "finished_runs")))
        assert {run_id for (run_id,) in found} == runs[name]
    json_output(clocked, "admin", "archive", "restore", "--drop")
    assert shop.value("SELECT count(*) FROM tidewheel_archive_shop.finished_runs") == len(runs[SCHEMA])


def end_runs(database: ClockedDatabase, day: date, count: int) -> set[UUID]:
    """End some runs at noon of a day; return them."""
    database.stop_clock(datetime.combine(day, time(12), UTC))
    database.submit()
    started = [database.begun() for _ in range(count)]
    for each in started:
        database.succeed(each)
    return {each.run_id for each in started}
