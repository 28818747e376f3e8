"""What came before a run, for the handlers that ask."""

import json
import threading
from datetime import datetime
from typing import cast
from uuid import UUID

import psycopg

from tidewheel.errors import Unavailable
from tidewheel.executor.context import Previous
from tidewheel.postgres.session import Session
from tidewheel.postgres.statements import Statements
from tidewheel.runs import Cause, RunState

_SQL = Statements("tidewheel.executor")
_READ_PREVIOUS = _SQL["read_previous"]
_MOST = 1000  # runs of the job that are looked through for one that succeeded


class Past:
    """Looks up earlier runs, over a session that is opened when somebody first asks; safe from every thread."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._lock = threading.Lock()

    def before(self, job_id: UUID, scheduled_at: datetime) -> Previous:
        """What came before an instant of a job.

        Raises:
            Unavailable: The database does not answer.
        """
        columns: dict[str, object] = {
            "job_id": job_id,
            "at": scheduled_at,
            "causes": [Cause.TIMER, Cause.BACKFILL],
            "skipped": RunState.SKIPPED,
            "succeeded": RunState.SUCCEEDED,
            "most": _MOST,
        }
        try:
            with self._lock, self._session.transaction() as connection:
                row = connection.execute(_READ_PREVIOUS, columns, binary=True).fetchone()
        except psycopg.Error as error:
            raise Unavailable(str(error)) from error
        at, result_at, result = cast("tuple[datetime | None, datetime | None, bytes | None]", row)
        return Previous(scheduled_at=at, result=None if result is None else json.loads(result), result_at=result_at)

    def close(self) -> None:
        """Let go of the session."""
        self._session.close()
