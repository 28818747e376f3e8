"""The check of the archive."""

from collections.abc import Iterator
from datetime import date, timedelta
from typing import cast

from tidewheel.control.doctor.check import Context
from tidewheel.control.reads.findings import Finding, Severity
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.partitions import day_of
from tidewheel.postgres.statements import Statements

_READ_LAST_ARCHIVED_DAY = Statements("tidewheel.control.doctor")["read_last_archived_day"]

_LATE = timedelta(days=3)  # yesterday may be archived today, by a call that runs once a day and has failed once


def check_archive(context: Context) -> Iterator[Finding]:
    """Check that days are archived soon, if any is."""
    with context.connection() as connection:
        [(last,)] = cast("list[tuple[date | None]]", connection.execute(_READ_LAST_ARCHIVED_DAY).fetchall())
        today = day_of(read_now(connection))
    if last is not None and today - last > _LATE:
        what = "days wait for the archive: schedulers drop none of them"
        evidence = f"{last} is the last archived day"
        remedy = "run `tidewheel archive run` once a day; its output names the error"
        yield Finding("archive", Severity.WARNING, what, evidence, remedy)
