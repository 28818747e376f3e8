"""The database's clock, which decides what is due."""

from datetime import datetime
from typing import cast

from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements

_READ_NOW = Statements("tidewheel")["read_now"]


def read_now(connection: Conn) -> datetime:
    """Return the time by the database's clock."""
    row = connection.execute(_READ_NOW, binary=True).fetchone()
    assert row is not None  # noqa: S101 - a SELECT without FROM
    return cast("datetime", row[0])
