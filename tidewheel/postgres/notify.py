"""Wake loops of other processes by NOTIFY after a commit.

A transaction with a pending NOTIFY takes an instance-wide lock when it commits, so a hot transaction never notifies.
The writer calls `Notifier.notify` after its commit. A background thread then sends at most one NOTIFY per 20 ms, in a
transaction of its own. A lost notification costs one poll interval, because every listener also polls.

Any login may notify any channel. So a listener obeys only sessions whose roles have the rights of a service, which it
looks up once for each session, and reads a stranger's notifications 50 times a second at most.
"""

import selectors
import socket
import threading
from contextlib import suppress
from enum import StrEnum
from typing import cast

import psycopg
from psycopg import sql

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import Unavailable
from tidewheel.postgres.own_schema import named, own_schema
from tidewheel.postgres.session import Conn, connect
from tidewheel.postgres.statements import Statements

_INTERVAL_SECONDS = 0.020  # NOTIFY takes an instance-wide lock at commit; 50 a second cost nothing measurable
_RECONNECT_SECONDS = 1.0
_KNOWN_SECONDS = 10.0  # for which a listener remembers a session; the server may give its number to another one

_FIND_SERVICES = Statements("tidewheel")["find_services"]


class Channel(StrEnum):
    """A NOTIFY channel, by the kind of row that was written."""

    TIMERS = "tidewheel_timers"
    OUTBOX = "tidewheel_outbox"
    SIGNALS = "tidewheel_signals"


class Notifier:
    """Send notifications from a background thread, at most one per channel in 20 ms."""

    def __init__(self, url: str, name: str) -> None:
        self._url, self._name = url, name
        self._pending: set[Channel] = set()
        self._wake, self._stopping = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="notifier", daemon=True)
        self._thread.start()

    def notify(self, channel: Channel) -> None:
        """Send a notification soon; costs nothing while one is pending."""
        if channel not in self._pending:
            self._pending.add(channel)
            self._wake.set()

    def close(self) -> None:
        """Stop. Pending notifications are dropped; the listeners poll."""
        self._stopping.set()
        self._wake.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        connection: Conn | None = None
        while not self._stopping.is_set():
            self._wake.wait()
            self._wake.clear()
            due = [channel for channel in Channel if channel in self._pending]
            self._pending.difference_update(due)
            if not due:  # woken by `close`
                continue
            try:
                connection = connection or connect(self._url, self._name, autocommit=True, pooled=True)
                for channel in due:
                    connection.execute(sql.SQL("NOTIFY {}").format(_identifier(channel, connection)))
            except (Unavailable, psycopg.Error):
                _discard(connection)
                connection = None
            self._stopping.wait(_INTERVAL_SECONDS)
        _discard(connection)


class Listener:
    """Set an event whenever a service notifies one of its channels.

    Between notifications the thread blocks in `select`. Polling five times a second in each service was half of the
    CPU time of an idle installation. TCP keepalives detect a server that is gone.
    """

    def __init__(self, url: str, name: str, channels: tuple[Channel, ...], event: threading.Event) -> None:
        self._url, self._name, self._channels, self._event = url, name, channels, event
        self._stopping = threading.Event()
        self._waker, self._wakeup = socket.socketpair()  # a byte on it ends the thread's select
        self._thread = threading.Thread(target=self._run, name="listener", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening; a thread that is connecting ends a few seconds later."""
        self._stopping.set()
        with suppress(OSError):  # the thread has ended
            self._waker.send(b"\0")  # closing this end is not enough: a forked process may hold a copy of it
        self._thread.join(timeout=5)
        self._waker.close()

    def _run(self) -> None:
        with self._wakeup:
            while not self._stopping.is_set():
                try:
                    self._listen()
                except (Unavailable, psycopg.Error):
                    self._stopping.wait(_RECONNECT_SECONDS)

    def _listen(self) -> None:
        connection = connect(self._url, self._name, autocommit=True)
        try:
            for channel in self._channels:
                connection.execute(sql.SQL("LISTEN {}").format(_identifier(channel, connection)))
            # One poll finds the rows that were written before LISTEN took effect.
            self._event.set()
            self._wait_for_notifications(connection)
        finally:
            connection.close()

    def _wait_for_notifications(self, connection: Conn) -> None:
        # psycopg's own wait wakes up ten times a second, whatever its timeout.
        with selectors.DefaultSelector() as either:
            either.register(connection, selectors.EVENT_READ)
            either.register(self._wakeup, selectors.EVENT_READ)
            senders = _Senders(connection)
            while not self._stopping.is_set():
                # Before a wait: a look for the senders may have received further ones.
                heard = {notification.pid for notification in connection.notifies(timeout=0)}
                if not heard:
                    either.select()
                    continue
                strangers = senders.strangers(heard)
                if heard - strangers:
                    self._event.set()
                if strangers:
                    self._stopping.wait(_INTERVAL_SECONDS)


class _Senders:
    """The sessions that have notified lately: those of services, and those of strangers."""

    def __init__(self, connection: Conn) -> None:
        self._connection = connection
        self._services: set[int] = set()
        self._strangers: set[int] = set()
        self._known_until = 0.0

    def strangers(self, processes: set[int]) -> set[int]:
        """Return those of these sessions that are no service's, or have ended."""
        if monotonic_seconds() >= self._known_until:
            self._services, self._strangers = set(), set()
            self._known_until = monotonic_seconds() + _KNOWN_SECONDS
        if unknown := processes - self._services - self._strangers:
            found = self._connection.execute(_FIND_SERVICES, {"processes": sorted(unknown)}).fetchall()
            self._services |= {cast("int", process) for (process,) in found}
            self._strangers |= unknown - self._services
        return processes & self._strangers


def _identifier(channel: Channel, connection: Conn) -> sql.Identifier:
    return sql.Identifier(named(channel, own_schema(connection)))


def _discard(connection: Conn | None) -> None:
    if connection is not None:
        connection.close()
