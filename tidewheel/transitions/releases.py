"""Write the releases of runs of workflows, in the transaction that ends them.

A release is the only trace of an end that the children need. `drain` reads it, in the scheduler. So the end of a run
waits for no join, and a completion in a client's own transaction writes one more row.
"""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from tidewheel.ids import run_bucket, shard_of
from tidewheel.postgres.pg_arrays import instants, integers, texts, uuids, words
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.runs import Gate
from tidewheel.transitions.finished import ClosedRun, FinishedRun

_ADD_RELEASES = Statements("tidewheel.transitions")["add_releases"]


def write_releases(connection: Conn, finished: Sequence[FinishedRun], shards: int) -> bool:
    """Write the releases of those of these ended runs that belong to workflows.

    Args:
        connection: Inside the transaction that ends the runs.
        finished: The runs.
        shards: The number of shards.

    Returns:
        True if there is one: a scheduler has work after the commit.
    """
    released = [run for run in finished if run.row.gates & Gate.FLOW]
    if not released:
        return False
    roots = [_root(run.row) for run in released]
    columns: dict[str, object] = {
        "shards": integers(shard_of(run_bucket(root), shards) for root in roots),
        "roots": uuids(roots),
        "generations": integers(run.row.generation or 0 for run in released),
        "scheduled_at": instants(run.row.scheduled_at for run in released),
        "graph_at": instants(_graph_at(run.row) for run in released),
        "run_ids": uuids(run.end.run_id for run in released),
        "job_ids": uuids(run.row.job_id for run in released),
        "tenants": texts([run.row.tenant for run in released]),
        "states": words(run.state for run in released),
        "began": words("true" if run.row.attempt else "false" for run in released),
    }
    connection.execute(_ADD_RELEASES, columns)
    return True


def _graph_at(row: ClosedRun) -> datetime | None:
    """Return the instant of the graph, for the root's first run.

    No drain comes before it, also if the run was moved ahead.
    """
    if _root(row) != row.run_id:
        return None
    return row.scheduled_at if row.started_at is None else min(row.scheduled_at, row.started_at)


def _root(row: ClosedRun) -> UUID:
    return row.workflow_run_id or row.run_id
