"""The row of this process in `processes`: role, host, version, settings and heartbeat, for operators.

Its thread also writes the figures of the runs that ended here. No service decides by these rows. Shares are divided by
`tidewheel.membership`, and leases end by the rows of executors.
"""

import logging
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from typing import Final
from uuid import UUID

import psycopg
from psycopg.types.json import Jsonb

from tidewheel.activity import activity
from tidewheel.clock import SystemClock, monotonic_seconds
from tidewheel.errors import Unavailable
from tidewheel.postgres.session import Conn, Session
from tidewheel.postgres.statements import Statements
from tidewheel.process.fallbacks import work
from tidewheel.process.service import Backoff, Shutdown
from tidewheel.settings.connections import Connections
from tidewheel.settings.services import shared_settings

_LOG = logging.getLogger("tidewheel.presence")

_SQL = Statements("tidewheel")

EVERY_SECONDS: Final = 5.0
SILENT_SECONDS: Final = 4 * EVERY_SECONDS  # without a heartbeat: three were lost


class Presence:
    """The thread that keeps the row of this process, and calls `refresh` with each heartbeat."""

    def __init__(
        self,
        url: str,
        settings: Connections,
        *,
        role: str,
        process_id: UUID,
        refresh: Callable[[Conn], None] | None = None,
    ) -> None:
        self._stop, self._refresh = Shutdown(), refresh
        self._session = Session(url, f"tidewheel-{role}-process", autocommit=True, pooled=True)
        self._columns: dict[str, object] = {
            "process_id": process_id,
            "role": role,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "version": version("tidewheel"),
            "settings": Jsonb(shared_settings(settings)),
        }
        self._backoff = Backoff(self._stop, f"{role} process row")
        self._thread = threading.Thread(target=self._run, name="presence", daemon=True)

    def start(self) -> None:
        """Begin to send heartbeats; does not wait for the first."""
        self._thread.start()

    def leave(self) -> None:
        """Delete the row; never raises."""
        self._stop.request()
        self._thread.join(timeout=5)
        if self._thread.is_alive() or self._backoff.active:
            return  # the database does not answer, and the row becomes old
        self._write_activity()
        with suppress(Unavailable, psycopg.Error), self._session.transaction() as connection:
            connection.execute(_SQL["delete_process"], self._columns)
        self._session.close()

    def _run(self) -> None:
        while not self._stop.requested():
            try:
                with self._session.transaction() as connection:
                    connection.execute(_SQL["heartbeat_process"], {**self._columns, **_present()})
                    if self._refresh is not None:
                        self._refresh(connection)
            except (Unavailable, psycopg.Error) as error:
                self._backoff.wait(error)
                continue
            self._backoff.reset()
            self._write_activity()
            self._stop.wait(EVERY_SECONDS)

    def _write_activity(self) -> None:
        """Write the figures of ended runs; an error costs these figures, and no heartbeat."""
        try:
            self._session.within(activity.write)
        except (Unavailable, psycopg.Error) as error:
            _LOG.warning("figures of ended runs are lost: %s", error)


def _present() -> dict[str, object]:
    """Return the columns that each heartbeat writes."""
    shares = work.pass_on(monotonic_seconds())
    return {"sent_at": SystemClock().now(), "fallbacks": Jsonb(shares) if shares else None}
