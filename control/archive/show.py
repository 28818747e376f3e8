"""Show a run of the database, or else of the archive, or else the copy of a failed one."""

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from uuid import UUID

from tidewheel.control.archive.records import days_of_run
from tidewheel.errors import UnknownRun
from tidewheel.nouns.runs.detail import show_failed_run, show_run
from tidewheel.nouns.runs.model import RunDetail
from tidewheel.postgres.session import Conn


def show_run_anywhere(
    snapshot: Callable[[], AbstractContextManager[Conn]], archive: str | None, tenant: str, run_id: UUID
) -> RunDetail:
    """Return a run, from the archive if the database has it no more, else the copy of a failed one.

    Args:
        archive: The setting; without one no archive is read, and the error names the archived days that may have it.
    """
    try:
        with snapshot() as connection:
            return show_run(connection, tenant, run_id)
    except UnknownRun:
        pass
    if archive is not None:
        from tidewheel.control.archive.lookup import show_archived_run  # imports the codecs, which no other read needs

        with suppress(UnknownRun):
            return show_archived_run(snapshot, archive, tenant, run_id)
    with snapshot() as connection:
        try:
            return show_failed_run(connection, tenant, run_id)
        except UnknownRun:
            if archive is None and (days := days_of_run(connection, run_id)):
                raise UnknownRun(str(run_id), days) from None
            raise
