"""Mend occurrences of workflows that have stopped, and places that no occurrence holds any more.

Each is found by one statement, so at one instant: a transaction that ends a run writes its release, and one that drains
a release writes runs or ends the occurrence. It is checked again under its lock. So a find is a manual change.
"""

import logging
from typing import cast
from uuid import UUID

from tidewheel.ids import first_ids, job_range
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.pg_arrays import uuids
from tidewheel.postgres.session import Session
from tidewheel.postgres.statements import Statements
from tidewheel.process.metrics import metrics
from tidewheel.runs import RunState
from tidewheel.transitions.active_runs import settle_places
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.mend import mend_workflow
from tidewheel.transitions.workflows import NO_JOB, lock_workflows

_LOG = logging.getLogger("tidewheel.scheduler")

_SQL = Statements("tidewheel.scheduler")
_FIND_STALLED_WORKFLOWS = _SQL["find_stalled_workflows"]
_FIND_LOST_PLACES = _SQL["find_lost_places"]


def mend_workflows(session: Session, installation: Installation, shard: int) -> int:
    """Mend the occurrences of one shard that have stopped; return their number."""
    with session.transaction() as connection:
        rows = connection.execute(_FIND_STALLED_WORKFLOWS, _columns(shard, None), binary=True).fetchall()
    mended = [root for (root,) in cast("list[tuple[UUID]]", rows) if _mend(session, installation, shard, root)]
    if mended:
        metrics.count("workflows_mended", len(mended))
        text = "the scheduler mended %d occurrences that had stopped: %s; check for manual changes or a partial restore"
        _LOG.error(text, len(mended), first_ids(mended))
    _free_places(session, installation, shard)
    return len(mended)


def _mend(session: Session, installation: Installation, shard: int, root: UUID) -> bool:
    with session.transaction() as connection:
        workflow = lock_workflows(connection, [root]).get(root)
        columns = _columns(shard, root)
        if workflow is None or not connection.execute(_FIND_STALLED_WORKFLOWS, columns).fetchall():
            return False
        mend_workflow(connection, installation, workflow, read_now(connection))
    return True


def _columns(shard: int, root: UUID | None) -> dict[str, object]:
    roots = None if root is None else uuids([root])
    return {"shard": shard, "roots": roots, "blocked": RunState.BLOCKED, "no_job": NO_JOB}


def _free_places(session: Session, installation: Installation, shard: int) -> None:
    first, last = job_range(shard, installation.shards)
    with session.transaction() as connection:
        rows = connection.execute(_FIND_LOST_PLACES, {"first": first, "last": last}, binary=True).fetchall()
        lost = cast("list[tuple[UUID, UUID]]", rows)
        settle_places(connection, installation, [], lost)
    if lost:
        metrics.count("active_runs_repaired", len(lost))
        _LOG.error(
            "the scheduler released places of %d ended occurrences: %s", len(lost), first_ids([job for job, _ in lost])
        )
