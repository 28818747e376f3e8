"""The schemas of each release, stored by fingerprint, so that an older reader can look a newer writer's up."""

from collections.abc import Callable

import psycopg

from tidewheel.db import Conn, connect
from tidewheel.errors import Unavailable
from tidewheel.schemas.codec import all_schemas
from tidewheel.sql import Statements

_SQL = Statements("tidewheel.migrations")
_STORE_SCHEMA = _SQL["store_schema"]
_FIND_SCHEMA = _SQL["find_schema"]


def store_schemas(connection: Conn) -> None:
    """Store every schema of this release, in the caller's transaction."""
    for schema in all_schemas():
        connection.execute(_STORE_SCHEMA, schema._asdict())


def lookup_in(url: str) -> Callable[[bytes], str | None]:
    """A look-up for the codec: asks this database for schemas that this release does not know."""

    def lookup(fingerprint: bytes) -> str | None:
        try:
            with connect(url, "tidewheel-schemas", autocommit=True) as connection:
                row = connection.execute(_FIND_SCHEMA, {"fingerprint": fingerprint}).fetchone()
        except (Unavailable, psycopg.Error):
            return None
        return str(row[0]) if row else None

    return lookup
