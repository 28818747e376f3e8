"""`tidewheel run retry-failed`: flags and texts that its declaration lacks."""

from functools import partial

from tidewheel.control.cli.options import complete_key
from tidewheel.control.cli.tables import Cell
from tidewheel.doors.cli import Flag, Table, command
from tidewheel.nouns.runs.model import RunSummary
from tidewheel.nouns.runs.operations import Runs
from tidewheel.nouns.works.commands import RATE, WAIT, show_started


def _row(each: RunSummary) -> tuple[Cell, ...]:
    ended = each.finished_at
    return (
        str(each.run_id),
        each.key,
        each.status,
        each.error_type or "",
        each.scheduled_at,
        ended,
        str(each.job_version),
    )


_TABLE = Table("failed run", ("id", "job", "status", "error", "scheduled", "ended", "version"), _row)
_FLAGS = {
    "key": Flag(metavar="KEY", complete=complete_key),
    "status": Flag(metavar="STATE"),
    "error_type": Flag("--error", "TYPE"),
    "queue": Flag(metavar="NAME"),
    "lane": Flag(metavar="LANE"),
    "versions": Flag(metavar="WHICH"),
    "rate": RATE,
}
retry_failed = command(
    Runs, "retry_failed", partial(show_started, "retry", "failed runs"), flags=_FLAGS, table=_TABLE, options=WAIT
)
