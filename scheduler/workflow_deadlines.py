"""End occurrences of workflows whose deadline has passed: as a cancel does, but as `timed_out`.

No drain releases a run of such an occurrence from the commit on. Its open runs are cancelled within about a second, and
it ends when all of them have ended. A paused occurrence has its deadline too.
"""

import logging
from typing import cast
from uuid import UUID

from tidewheel.postgres.session import RowsLocked, Session
from tidewheel.postgres.statements import Statements
from tidewheel.process.failpoint import failpoint
from tidewheel.transitions.workflows import cancel_open_runs, lock_workflows

_LOG = logging.getLogger("tidewheel.scheduler")

_FIND_OVERDUE_WORKFLOWS = Statements("tidewheel.scheduler")["find_overdue_workflows"]
_SET_WAITS = Statements("tidewheel.transitions")["set_waits"]

REASON = "workflow_timeout"

_MAX_WORKFLOWS = 50  # in one step, each in a transaction of its own: an occurrence may have 10,000 open runs
_LOCK_TIMEOUT = "50ms"  # a drain holds an occurrence for some tens of milliseconds


class WorkflowDeadlines:
    """Finds the occurrences whose deadline has passed, and has their open runs cancelled."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def step(self) -> int:
        """Time out up to `_MAX_WORKFLOWS` occurrences; return their number."""
        with self._session.transaction() as connection:
            rows = connection.execute(_FIND_OVERDUE_WORKFLOWS, {"limit": _MAX_WORKFLOWS}, binary=True).fetchall()
        done = 0
        for (root,) in cast("list[tuple[UUID]]", rows):
            try:
                done += self._time_out(root)
            except RowsLocked:
                _LOG.debug("occurrence %s is locked; its deadline is applied in the next step", root)
        return done

    def _time_out(self, root: UUID) -> bool:
        with self._session.transaction() as connection:
            connection.execute(_SET_WAITS, {"lock_timeout": _LOCK_TIMEOUT})
            workflow = lock_workflows(connection, [root]).get(root)
            if workflow is None or workflow.state not in ("open", "paused"):
                return False  # a request or a drain came first
            cancel_open_runs(connection, workflow, "timing_out", reason=REASON, cause=REASON)
            failpoint("timing_out.before_commit")
        failpoint("timing_out.after_commit")
        _LOG.warning("the occurrence of run %s has passed its deadline: its open runs are cancelled", root)
        return True
