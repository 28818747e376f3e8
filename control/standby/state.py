"""Read the state of recording for a standby site.

A service that imports this module gets no right to change the state, as `recording` does.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements

_READ_STANDBY = Statements("tidewheel.control.standby")["read_standby"]


@dataclass(frozen=True, slots=True)
class Recording:
    """The state of recording, and of the raise that this installation came from.

    Args:
        enabled_at: The time at which recording began; None while it is off.
        listed: True once the rows that existed before are noted too; False again once Kafka has refused a record.
        complete_at: The snapshot of the last complete batch; None before the first one.
        age: The time since then, by the database's clock.
        changes: Noted changes that are in no batch yet.
        raised_as_of: The snapshot of `raised_batch`.
    """

    site: UUID
    enabled_at: datetime | None
    listed: bool
    batch: int
    complete_at: datetime | None
    age: timedelta | None
    changes: int
    raised_site: UUID | None
    raised_batch: int | None
    raised_as_of: datetime | None
    raised_at: datetime | None


def read_recording(connection: Conn) -> Recording | None:
    """Return the state of recording; None if this installation neither records nor was raised."""
    with connection.cursor(row_factory=class_row(Recording)) as cursor:
        return cursor.execute(_READ_STANDBY).fetchone()
