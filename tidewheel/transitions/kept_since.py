"""The first day whose finished runs are all stored.

Retention has dropped earlier days. A reader that takes a missing row for a run that never was, such as a backfill of
missing occurrences, refuses earlier instants.
"""

from datetime import datetime
from typing import cast

from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements

_SQL = Statements("tidewheel.transitions")


def share_kept_since(connection: Conn, tenant: str) -> datetime | None:
    """Return what `read_kept_since` does; until the transaction ends retention removes no further day."""
    connection.execute(_SQL["share_kept_since"])
    return read_kept_since(connection, tenant)


def read_kept_since(connection: Conn, tenant: str) -> datetime | None:
    """Return the begin of the first day whose runs of a tenant are all stored; None if none was removed."""
    row = connection.execute(_SQL["read_kept_since"], {"tenant": tenant}, binary=True).fetchone()
    return cast("tuple[datetime | None]", row)[0]
