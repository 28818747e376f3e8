"""One round of archiving: closed days in, old days and deleted tenants out."""

from contextlib import closing
from dataclasses import dataclass
from datetime import date, timedelta

from tidewheel.control.archive.export import archive_session, export_days
from tidewheel.control.archive.records import ArchivedDay, locked_archive
from tidewheel.control.archive.remove import remove_old_days, remove_tenants
from tidewheel.control.archive.restore import remove_restored_tenants
from tidewheel.control.archive.stores import Store
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.partitions import day_of


@dataclass(frozen=True, slots=True)
class Round:
    """Result of a round.

    Args:
        adopted: Those of them whose files were there already.
    """

    archived: list[ArchivedDay]
    adopted: list[date]
    removed: list[date]
    tenants: list[str]


def archive_closed_days(url: str, store: Store, keep: timedelta) -> Round:
    """Archive each closed day; remove days older than the archive's period, and deleted tenants.

    Args:
        store: The archive; the caller closes it.

    Raises:
        ArchiveDamaged: The archive has a day with other rows, or a block that cannot be read.
        Unavailable: Another process archives, or a server does not answer.
    """
    with locked_archive(url) as lock, closing(archive_session(url)) as session, session.transaction() as connection:
        exported = export_days(connection, store, url, lock)
        removed = remove_old_days(connection, store, day_of(read_now(connection) - keep), lock)
        tenants = remove_tenants(connection, store, lock)
        if tenants:
            remove_restored_tenants(connection, tenants)
        return Round(exported.days, exported.adopted, removed, tenants)
