"""Every schema of a release is stored by its fingerprint, so that every reader finds it."""

import pytest

from tests.fixtures.database import Database
from tidewheel.errors import Unavailable
from tidewheel.migrations.runner import migrate
from tidewheel.migrations.stored_schemas import lookup_in, store_schemas
from tidewheel.schemas.codec import all_schemas
from tidewheel.schemas.files import fingerprint


def test_every_schema_of_this_release_is_stored_and_found(database: Database) -> None:
    lookup, schemas = lookup_in(database.url), all_schemas()
    assert len(schemas) >= 1
    for schema in schemas:
        assert lookup(schema.fingerprint) == schema.text
        assert fingerprint(schema.text) == schema.fingerprint
    stored = database.rows("SELECT fingerprint, name, version, schema FROM schemas ORDER BY fingerprint")
    assert stored == sorted((s.fingerprint, s.name, s.version, s.text) for s in schemas)


def test_storing_schemas_again_changes_nothing(database: Database) -> None:
    before = database.rows("SELECT * FROM schemas ORDER BY fingerprint")
    with database.transaction() as connection:
        store_schemas(connection)
    assert database.rows("SELECT * FROM schemas ORDER BY fingerprint") == before


def test_release_without_a_new_migration_stores_its_schemas(fresh_database: Database) -> None:
    schemas = all_schemas()
    fresh_database.execute("DELETE FROM schemas WHERE fingerprint = %s", [schemas[0].fingerprint])
    assert migrate(fresh_database.url) == []
    assert lookup_in(fresh_database.url)(schemas[0].fingerprint) == schemas[0].text


def test_schemas_of_other_releases_are_kept_and_found(fresh_database: Database) -> None:
    newer = b"\x01" * 8
    fresh_database.execute("INSERT INTO schemas VALUES (%s, 'x.New', '9.0.0', '\"string\"')", [newer])
    assert migrate(fresh_database.url) == []
    assert lookup_in(fresh_database.url)(newer) == '"string"'


def test_unknown_fingerprint_is_not_found(database: Database) -> None:
    lookup = lookup_in(database.url)
    assert lookup(b"\x02" * 8) is None
    assert lookup(b"\x02" * 8) is None
    assert lookup(all_schemas()[0].fingerprint) == all_schemas()[0].text


def test_unreachable_database_is_not_an_unknown_schema() -> None:
    with pytest.raises(Unavailable):
        lookup_in("postgresql://127.0.0.1:1/none")(b"\x03" * 8)
