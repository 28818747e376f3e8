"""The registrations of processes of other releases, which the step `--post` of a migration refuses.

A process that stops deletes its row of `processes`. The row of a killed one stays for a day.
"""

import threading
from contextlib import suppress
from datetime import timedelta

from psycopg.errors import UndefinedTable

from tidewheel.distribution import release_version
from tidewheel.errors import MigrationError
from tidewheel.migrations.runner import has_newer
from tidewheel.postgres.session import connect, refuse_shared_sessions
from tidewheel.postgres.statements import Statements

_LISTEN_SECONDS = 30.0  # a process that lives writes a heartbeat within it, also after a pause of PostgreSQL

_SQL = Statements("tidewheel.migrations")


def forget_silent(url: str, silent: timedelta) -> list[str]:
    """Delete the registrations of killed processes of other releases; return them.

    Args:
        silent: The least age of the last heartbeat, before and after a wait of half a minute.

    Raises:
        MigrationError: The other release is newer, and has migrated the database.
        SettingsError: A pooler shares sessions, and a session keeps the schema.
    """
    columns: dict[str, object] = {"version": release_version(), "silent": silent}
    refuse_shared_sessions(url)
    with suppress(UndefinedTable), connect(url, "tidewheel-migrate", autocommit=True) as connection:
        if has_newer(connection):
            raise MigrationError(
                "--forget-silent: a newer release has migrated this database; run `tidewheel migrate --post "
                "--forget-silent 5m` of that release"
            )
        if connection.execute(_SQL["count_silent_processes"], columns).fetchone() == (0,):
            return []
        threading.Event().wait(_LISTEN_SECONDS)
        rows = connection.execute(_SQL["forget_silent_processes"], columns).fetchall()
        return [f"{role} {version} on {host} pid {pid}, silent since {at}" for role, version, host, pid, at in rows]
    return []  # a new database
