"""Mend an occurrence that has stopped: its open runs are all blocked, and no release is left to drain.

No transaction of Tidewheel leaves one behind. A manual change or a partial restore may. What is known is the end of
each run, by its derived id. The other jobs get a run in a new generation, and an occurrence without such a job ends.
"""

from datetime import datetime
from typing import cast
from uuid import UUID

from tidewheel.ids import child_run_id
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.runs import DEAD_LETTERED, RunState
from tidewheel.transitions.children import lock_children
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.occurrences import among_parents, read_occurrence
from tidewheel.transitions.resume import open_generation
from tidewheel.transitions.workflows import Workflow, end_workflow, leave_places

_SQL = Statements("tidewheel.transitions")
_READ_JOINS_OF = _SQL["read_joins_of"]
_DROP_JOINS_OF = _SQL["drop_joins_of"]
_DROP_BLOCKED = _SQL["drop_blocked"]


def mend_workflow(connection: Conn, installation: Installation, workflow: Workflow, now: datetime) -> None:
    """Go on with an occurrence that has stopped, or end it.

    Args:
        connection: Inside a transaction that has locked the occurrence.
        workflow: The occurrence, whose open runs are all blocked and which has no release.
    """
    root, at = workflow.root_run_id, workflow.scheduled_at
    nodes = read_occurrence(connection, root)
    joined = {
        run for (run,) in cast("list[tuple[UUID]]", connection.execute(_READ_JOINS_OF, {"root": root}).fetchall())
    }
    missing = {
        job
        for job, node in nodes.items()
        if node.state in (None, RunState.BLOCKED) or child_run_id(job, at, root, workflow.generation) in joined
    }
    ends = [node.state for job, node in nodes.items() if job not in missing]
    workflow.failed = sum(state in DEAD_LETTERED for state in ends)
    workflow.cancelled = sum(state is RunState.CANCELLED for state in ends)
    if workflow.state == "open" and missing and workflow.root_job_id not in missing:
        connection.execute(_DROP_JOINS_OF, {"roots": [root]})
        connection.execute(_DROP_BLOCKED, {"root": root, "blocked": RunState.BLOCKED})
        again = among_parents(nodes, missing)
        jobs = lock_children(connection, {one.job_id for one in again})
        open_generation(connection, installation, workflow, again, now, jobs=jobs)
        return
    workflow.pending = 0
    end_workflow(connection, installation, workflow, now)
    leave_places(connection, installation, [], {}, [workflow])
