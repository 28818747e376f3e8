"""`tidewheel run retry-failed`: flags and texts that its declaration lacks."""

from functools import partial

from tidewheel.control.cli.output import Table
from tidewheel.control.cli.tables import Cell
from tidewheel.doors.cli import Flag, command
from tidewheel.nouns.runs.model import RunSummary
from tidewheel.nouns.runs.operations import Runs
from tidewheel.nouns.works.commands import OF_FAILED, WAIT, show_started


def _row(each: RunSummary) -> tuple[Cell, ...]:
    error, version = each.error_type or "", str(each.job_version)
    return str(each.run_id), each.key, each.status, error, each.scheduled_at, each.finished_at, version


_TABLE = Table("failed run", ("id", "job", "status", "error", "scheduled", "ended", "version"), _row)
_FLAGS = {**OF_FAILED, "versions": Flag(metavar="WHICH")}
retry_failed = command(
    Runs, "retry_failed", partial(show_started, "retry", "failed runs"), flags=_FLAGS, table=_TABLE, options=WAIT
)
