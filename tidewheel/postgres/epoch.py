"""The epoch of the database, which a restore raises: processes of the epoch before find no session.

A service notes the epoch when it starts. Each connection that it opens later compares it once, so no statement pays
for it. A restore of the database ends all connections, so every process of the old epoch opens new ones.
"""

import logging
from collections.abc import Callable
from typing import Final, cast

from psycopg import Connection

from tidewheel.errors import Unavailable
from tidewheel.postgres.statements import Statements

_LOG = logging.getLogger("tidewheel.postgres")

_READ_EPOCH = Statements("tidewheel")["read_epoch"]


class EpochOver(Unavailable):
    """The database was restored, or is being restored: this process must not read or write it."""


class Epoch:
    """The epoch in which a service has started; other processes note none."""

    def __init__(self) -> None:
        self._noted: int | None = None
        self._on_end: Callable[[], None] = lambda: None

    def note(self, connection: Connection[tuple[object, ...]], on_end: Callable[[], None]) -> None:
        """Note the epoch of the database.

        Args:
            on_end: Called when a later connection finds another epoch.

        Raises:
            EpochOver: A restore is under way: try again later.
        """
        noted, restoring = _read(connection)
        if restoring:
            message = (
                "the database is being restored; `tidewheel admin restore` continues it, and services start afterwards"
            )
            raise EpochOver(message)
        self._noted, self._on_end = noted, on_end

    def check(self, connection: Connection[tuple[object, ...]]) -> None:
        """Raise EpochOver if a new connection has another epoch: this process ends."""
        if self._noted is None:
            return
        found, restoring = _read(connection)
        if found == self._noted and not restoring:
            return
        self._on_end()
        message = f"the database was restored: its epoch is {found}, and this process began in {self._noted}; it ends"
        _LOG.error(message)
        raise EpochOver(message)


def _read(connection: Connection[tuple[object, ...]]) -> tuple[int, bool]:
    row = connection.execute(_READ_EPOCH).fetchone()
    if not connection.autocommit:
        connection.commit()
    return cast("tuple[int, bool]", row)


epoch: Final = Epoch()
