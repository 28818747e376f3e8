"""The database's clock, which decides what is due."""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import TYPE_CHECKING, cast

from tidewheel.postgres.statements import Statements

if TYPE_CHECKING:
    from tidewheel.postgres.session import Conn

_READ_NOW = Statements("tidewheel")["read_now"]

_as_of: ContextVar[datetime | None] = ContextVar("as_of", default=None)


def read_now(connection: "Conn") -> datetime:
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
