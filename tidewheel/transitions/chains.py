"""A fixed_delay's next instant: set by the end of its timer-made run, in the ending transaction.

The timer is held while that run is open (`Held.RUN`). A pause in between keeps it held; the instant is set all the
same, so that resuming goes on from there. No crash leaves a timer held without an open run, since both are one
transaction; the scheduler looks for such a one all the same (`tidewheel.scheduler.mend`).
"""

from collections.abc import Iterable
from datetime import datetime
from uuid import UUID

from tidewheel.arrays import instants, uuids
from tidewheel.db import Conn
from tidewheel.sql import Statements

_SQL = Statements("tidewheel.transitions")
_LOCK_CHAINED_TIMERS = _SQL["lock_chained_timers"]
_MOVE_CHAINED_TIMERS = _SQL["move_chained_timers"]


def advance_chains(connection: Conn, ended: Iterable[tuple[UUID, datetime, datetime]]) -> int:
    """Set the next instant of fixed_delay jobs whose timer-made run ends, in the caller's transaction.

    Args:
        connection: Inside the transaction that ends the runs; it must not hold their turns yet, since this waits.
        ended: Of each run: its job, its nominal instant, when it ended.

    Returns:
        How many timers were set.
    """
    rows = sorted(ended)
    if not rows:
        return 0
    columns = {
        "job_ids": uuids(job for job, _, _ in rows),
        "scheduled_at": instants(at for _, at, _ in rows),
        "ended_at": instants(at for _, _, at in rows),
    }
    connection.execute(_LOCK_CHAINED_TIMERS, columns)
    return connection.execute(_MOVE_CHAINED_TIMERS, columns).rowcount
