"""The schemas of each release, stored by fingerprint, so that an older reader can look a newer writer's up."""

from collections.abc import Callable

import psycopg

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import Unavailable
from tidewheel.postgres.session import Conn, connect
from tidewheel.postgres.statements import Statements
from tidewheel.schemas.codec import all_schemas

_SQL = Statements("tidewheel.migrations")
_STORE_SCHEMA = _SQL["store_schema"]
_FIND_SCHEMA = _SQL["find_schema"]

_MISSING_SECONDS = 5.0  # an id that nobody knows costs one connection in so long, and a deploy is noticed after it
_MISSING_KEPT = 1000


def store_schemas(connection: Conn) -> None:
    """Store every schema of this release, in the caller's transaction."""
    for schema in all_schemas():
        connection.execute(_STORE_SCHEMA, schema._asdict())


def find_schema(connection: Conn, fingerprint: bytes) -> str | None:
    """The stored schema of this fingerprint, if there is one."""
    row = connection.execute(_FIND_SCHEMA, {"fingerprint": fingerprint}).fetchone()
    return str(row[0]) if row else None


def lookup_in(url: str) -> Callable[[bytes], str | None]:
    """A look-up for the codec: asks this database for schemas that this release does not know.

    The look-up raises Unavailable when the database does not answer: a good message must not be taken for a bad one.
    """
    missing: dict[bytes, float] = {}

    def lookup(fingerprint: bytes) -> str | None:
        if missing.get(fingerprint, 0.0) > monotonic_seconds():
            return None
        try:
            with connect(url, "tidewheel-schemas", autocommit=True) as connection:
                found = find_schema(connection, fingerprint)
        except psycopg.Error as error:
            raise Unavailable(str(error)) from error
        if found is None:
            if len(missing) >= _MISSING_KEPT:
                missing.clear()
            missing[fingerprint] = monotonic_seconds() + _MISSING_SECONDS
        return found

    return lookup
