"""The database's clock, which decides what is due."""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import cast

from psycopg import Connection

from tidewheel.postgres.statements import Statements

_READ_NOW = Statements("tidewheel")["read_now"]

_as_of: ContextVar[datetime | None] = ContextVar("as_of", default=None)


def read_now(connection: Connection) -> datetime:
    """Return the time by the database's clock."""
    if (at := _as_of.get()) is not None:
        return at
    row = connection.execute(_READ_NOW, binary=True).fetchone()
    assert row is not None  # noqa: S101 - a SELECT without FROM
    return cast("datetime", row[0])


@contextmanager
def as_of(at: datetime) -> Generator[None]:
    """Let `read_now` return a past time in the block.

    A restore applies requests as they were applied before.
    """
    token = _as_of.set(at)
    try:
        yield
    finally:
        _as_of.reset(token)
