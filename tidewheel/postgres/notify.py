"""Waking another process when something earlier was written.

A transaction with a pending NOTIFY takes an instance-wide lock when it commits, so a hot transaction never notifies:
the writer pokes a `Notifier` after its commit, which sends at most one NOTIFY per 20 ms from a transaction of its own.
A lost notification costs a poll interval, nothing else: every sleeper also looks by itself.
"""

import selectors
import socket
import threading
from contextlib import suppress
from enum import StrEnum

import psycopg
from psycopg import sql

from tidewheel.errors import Unavailable
from tidewheel.postgres.session import Conn, connect

_APART_SECONDS = 0.020  # the commit lock of NOTIFY is instance-wide; 50 a second are not felt
_RECONNECT_SECONDS = 1.0


class Channel(StrEnum):
    """What may have been written."""

    TIMERS = "tidewheel_timers"
    OUTBOX = "tidewheel_outbox"
    SIGNALS = "tidewheel_signals"


class Notifier:
    """Sends notifications in the background, never more often than every 20 ms a channel."""

    def __init__(self, url: str, name: str) -> None:
        self._url, self._name = url, name
        self._pending: set[Channel] = set()
        self._wake, self._stopping = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="notifier", daemon=True)
        self._thread.start()

    def poke(self, channel: Channel) -> None:
        """Ask for a notification soon; costs nothing when one is pending."""
        if channel not in self._pending:
            self._pending.add(channel)
            self._wake.set()

    def close(self) -> None:
        """Stop; what is pending is dropped, the receivers poll."""
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
            try:
                connection = connection or connect(self._url, self._name, autocommit=True)
                for channel in due:
                    connection.execute(sql.SQL("NOTIFY {}").format(sql.Identifier(channel)))
            except (Unavailable, psycopg.Error):
                _discard(connection)
                connection = None
            self._stopping.wait(_APART_SECONDS)
        _discard(connection)


class Listener:
    """Sets an event whenever one of its channels is notified.

    Between notifications it sleeps: five looks a second, in each service, were half of what idling cost them all. The
    kernel's keepalives tell it of a server that has gone without a word.
    """

    def __init__(self, url: str, name: str, channels: tuple[Channel, ...], event: threading.Event) -> None:
        self._url, self._name, self._channels, self._event = url, name, channels, event
        self._stopping = threading.Event()
        self._ours, self._its = socket.socketpair()  # what is sent to it wakes it
        self._thread = threading.Thread(target=self._run, name="listener", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening, at once; one that is just connecting does so a few seconds later."""
        self._stopping.set()
        with suppress(OSError):  # it has ended
            self._ours.send(b"\0")  # closing our end is not enough: a process that was forked may have it too
        self._thread.join(timeout=5)
        self._ours.close()

    def _run(self) -> None:
        with self._its:
            while not self._stopping.is_set():
                try:
                    self._listen()
                except (Unavailable, psycopg.Error):
                    self._stopping.wait(_RECONNECT_SECONDS)

    def _listen(self) -> None:
        connection = connect(self._url, self._name, autocommit=True)
        try:
            for channel in self._channels:
                connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
            # What was written while nobody listened is found by looking once.
            self._event.set()
            self._hear(connection)
        finally:
            connection.close()

    def _hear(self, connection: Conn) -> None:
        # Not by psycopg's own waiting, which looks up ten times a second however long it is told to wait.
        with selectors.DefaultSelector() as either:
            either.register(connection, selectors.EVENT_READ)
            either.register(self._its, selectors.EVENT_READ)
            while not self._stopping.is_set():
                either.select()
                for _ in connection.notifies(timeout=0):
                    self._event.set()


def _discard(connection: Conn | None) -> None:
    if connection is not None:
        connection.close()
