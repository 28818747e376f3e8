"""Store the schemas of each release by fingerprint: an older reader finds a newer writer's schema."""

from collections.abc import Callable

import psycopg

from tidewheel.errors import Unavailable
from tidewheel.postgres.session import Conn, connect
from tidewheel.postgres.statements import Statements
from tidewheel.schemas.codec import all_schemas, sparing

_SQL = Statements("tidewheel.migrations")


def store_schemas(connection: Conn) -> None:
    """Store every schema of this release, in the caller's transaction."""
    for schema in all_schemas():
        connection.execute(_SQL["store_schema"], schema._asdict())


def find_schema(connection: Conn, fingerprint: bytes) -> str | None:
    """Return the stored schema of this fingerprint; None if there is none."""
    row = connection.execute(_SQL["find_schema"], {"fingerprint": fingerprint}).fetchone()
    return str(row[0]) if row else None


def lookup_in(url: str) -> Callable[[bytes], str | None]:
    """Return a look-up for the codec: it reads schemas that this release does not know from a database.

    The look-up raises Unavailable if the database does not respond, so that a valid message is not taken for an invalid
    one.
    """

    def find(fingerprint: bytes) -> str | None:
        try:
            with connect(url, "tidewheel-schemas", autocommit=True, pooled=True) as connection:
                connection.begin()
                return find_schema(connection, fingerprint)
        except psycopg.Error as error:
            raise Unavailable(str(error)) from error

    return sparing(find)
