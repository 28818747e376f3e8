"""Count ended runs for plots, once their transaction has committed (docs/adr/0086-activity.md).

No service sees the commit of a user's own connection: such an end is in no figure.
"""

from collections.abc import Sequence
from functools import partial

from tidewheel.activity import Class, Stage, activity, begin_of
from tidewheel.postgres.session import Conn, at_commit
from tidewheel.runs import Cause
from tidewheel.transitions.finished import FinishedRun


def count_at_commit(connection: Conn, runs: Sequence[FinishedRun]) -> None:
    """Count runs that end in the connection's transaction; a rollback forgets them."""
    if runs:
        at_commit(connection, partial(_count, runs))


def _count(runs: Sequence[FinishedRun]) -> None:
    begins = {at: begin_of(at) for at in {run.row.ended_at for run in runs}}
    with activity.lock:
        for run in runs:
            row = run.row
            ended = row.ended_at
            figures = activity.of(Class(begins[ended], row.tenant, row.queue, row.lane, run.state))
            figures.runs += 1
            if row.cause == Cause.TIMER:
                figures.late(Stage.WRITTEN, (row.created_at - row.scheduled_at).total_seconds())
            if (started := row.started_at) is not None:
                figures.late(Stage.CLAIMED, (started - row.publish_at).total_seconds())
                figures.late(Stage.ENDED, (ended - row.publish_at).total_seconds())
                figures.ran((ended - started).total_seconds(), run.end.run_id)
