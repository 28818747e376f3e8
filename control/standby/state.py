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
    """The state of recording, and of the raise that this installation came from."""

    site: UUID
    enabled_at: datetime | None  # None while it is off
    listed: bool  # the rows that existed before are noted too; False once Kafka has refused a record
    batch: int
    complete_at: datetime | None  # the snapshot of the last complete batch
    age: timedelta | None  # since then, by the database's clock
    changes: int  # noted, in no batch yet
    raised_site: UUID | None
    raised_batch: int | None
    raised_as_of: datetime | None  # the snapshot of `raised_batch`
    raised_at: datetime | None


def read_recording(connection: Conn) -> Recording | None:
    """Return the state of recording; None if this installation neither records nor was raised."""
    with connection.cursor(row_factory=class_row(Recording)) as cursor:
        return cursor.execute(_READ_STANDBY).fetchone()
