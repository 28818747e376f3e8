"""The database's clock, which decides what is due."""

from datetime import datetime
from typing import TYPE_CHECKING, cast

from tidewheel.postgres.statements import Statements

if TYPE_CHECKING:
    from tidewheel.postgres.session import Conn

_READ_NOW = Statements("tidewheel")["read_now"]


def read_now(connection: "Conn") -> datetime:
    """Return the time by the database's clock."""
    row = connection.execute(_READ_NOW, binary=True).fetchone()
    assert row is not None  # noqa: S101 - a SELECT without FROM
    return cast("datetime", row[0])
