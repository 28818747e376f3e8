"""0027_drop_unread.sql: a database that recorded changes for a standby site goes on."""

import logging
from contextlib import closing
from typing import LiteralString

import pytest

from tests.fixtures.database import Database
from tests.fixtures.services import until
from tests.transitions.stepping import in_background
from tidewheel.migrations import runner
from tidewheel.migrations.runner import migrate

NAME = "0027_drop_unread.sql"
# As `tidewheel admin standby enable` created them, on 34 tables.
ENABLE: LiteralString = """
CREATE TRIGGER standby_update AFTER UPDATE ON tenants REFERENCING NEW TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION tidewheel_note_change('tenant');
CREATE TRIGGER standby_insert AFTER INSERT ON settings REFERENCING NEW TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION tidewheel_note_change('name');
"""
CHANGE: LiteralString = "UPDATE tenants SET weight = weight"
LEFT: LiteralString = """
SELECT (SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'standby%')
     + (SELECT count(*) FROM pg_class WHERE relname LIKE 'standby%')
     + (SELECT count(*) FROM pg_proc WHERE proname = 'tidewheel_note_change')
"""


def test_database_that_recorded_its_changes_goes_on(
    empty_database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tidewheel.migrations")
    database, every = empty_database, runner.migrations()
    with monkeypatch.context() as before:
        before.setattr(runner, "migrations", lambda: tuple(each for each in every if each.name < NAME))
        migrate(database.url)
    database.execute(ENABLE)
    database.execute(CHANGE)
    assert database.count("standby_changes") == 1
    with closing(database.connection()) as writer:
        writer.execute(CHANGE)
        running = in_background(lambda: migrate(database.url))
        until(lambda: "waiting for a lock, then trying again" in caplog.text, "the migration has given up once")
        with database.connection(autocommit=True) as reader:
            reader.execute("SELECT FROM tenants")
        writer.commit()
        assert running.result(30)[0] == NAME
    assert database.value(LEFT) == 0
    database.execute(CHANGE)
