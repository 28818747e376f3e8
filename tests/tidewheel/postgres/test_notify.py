"""Notifications reach listeners of their channel, and many requests make few notifications."""

import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import LiteralString

import pytest
from psycopg import sql

from tests.fixtures.database import Database
from tests.fixtures.roles import stranger
from tests.fixtures.services import until
from tidewheel.clock import monotonic_seconds
from tidewheel.postgres.notify import Channel, Listener, Notifier
from tidewheel.postgres.session import Conn, connect

APART_SECONDS = 0.020
SOON_SECONDS = 60.0  # for a thread and PostgreSQL on a busy machine; what is awaited takes milliseconds
LAST = "last"
POKES, PACE_SECONDS = 600, 0.0005  # many times as often as notifications may leave

CONNECTED: LiteralString = """
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = %s
"""
STATE: LiteralString = """
SELECT state FROM pg_stat_activity WHERE datname = current_database() AND application_name = %s
"""
CUT: LiteralString = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
 WHERE datname = current_database() AND application_name = %s
"""


@pytest.fixture
def notifier(database: Database) -> Iterator[Notifier]:
    """A notifier, closed with the test."""
    with closing(Notifier(database.url, "test-notifier")) as made:
        yield made


def listening(database: Database) -> Conn:
    connection = database.connection(autocommit=True)
    for channel in Channel:
        connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
    return connection


def heard(database: Database, ear: Conn) -> Counter[str]:
    """Return the committed notifications of each channel so far, in the order of their commits."""
    with database.transaction() as connection:
        connection.execute("SELECT pg_notify(%s, %s)", [Channel.TIMERS, LAST])
    counted: Counter[str] = Counter()
    for notification in ear.notifies(timeout=SOON_SECONDS):
        if notification.payload == LAST:
            return counted
        counted[notification.channel] += 1
    message = "the last notification did not arrive"
    raise AssertionError(message)


def wakings(thread: threading.Thread) -> int:
    """Count how often a thread has gone to sleep so far."""
    status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
    return int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])


def test_notification_reaches_listeners_of_its_channel_only(database: Database, notifier: Notifier) -> None:
    timers, both = threading.Event(), threading.Event()
    with (
        closing(Listener(database.url, "test-timers", (Channel.TIMERS,), timers)),
        closing(Listener(database.url, "test-both", (Channel.TIMERS, Channel.OUTBOX), both)),
    ):
        # Each looks once when it begins to listen.
        assert timers.wait(SOON_SECONDS)
        assert both.wait(SOON_SECONDS)
        timers.clear()
        for channel in (Channel.SIGNALS, Channel.OUTBOX, Channel.TIMERS):
            both.clear()
            notifier.notify(channel)
            if channel is Channel.OUTBOX:
                assert both.wait(SOON_SECONDS)
                assert not timers.is_set()
        assert timers.wait(SOON_SECONDS)


def test_notifications_of_a_role_without_rights_wake_no_listener(database: Database, notifier: Notifier) -> None:
    """Kind: a public name as a lock (N2 of issue 39)."""
    woken = threading.Event()
    with (
        stranger(database.url) as url,
        closing(connect(url, "test", autocommit=True)) as other,
        closing(Listener(database.url, "test-ear", (Channel.TIMERS,), woken)),
    ):
        assert woken.wait(SOON_SECONDS)
        woken.clear()
        for _ in range(400):
            other.execute(sql.SQL("NOTIFY {}").format(sql.Identifier(Channel.TIMERS)))
        assert not woken.is_set()
        notifier.notify(Channel.TIMERS)
        assert woken.wait(SOON_SECONDS)


def test_many_requests_make_few_notifications(database: Database) -> None:
    ear, pace = listening(database), threading.Event()
    began = monotonic_seconds()
    with closing(Notifier(database.url, "test-notifier")) as notifier:
        for _ in range(POKES):
            for channel in Channel:
                notifier.notify(channel)
            pace.wait(PACE_SECONDS)  # without it, this thread leaves the notifier's none of the interpreter
    elapsed = monotonic_seconds() - began
    counted = heard(database, ear)
    for channel in Channel:
        # One at once, one that closing let through, and one for the rounding of clocks.
        assert 1 <= counted[channel] <= elapsed / APART_SECONDS + 3


def test_request_before_the_last_was_sent_is_merged(database: Database) -> None:
    ear = listening(database)
    with closing(Notifier(database.url, "test-notifier")) as notifier:
        notifier.notify(Channel.OUTBOX)
        assert next(ear.notifies(timeout=SOON_SECONDS)).channel == Channel.OUTBOX
        notifier.notify(Channel.OUTBOX)
        assert next(ear.notifies(timeout=SOON_SECONDS)).channel == Channel.OUTBOX
    assert heard(database, ear) == Counter()


def test_notification_is_committed_at_once_and_holds_no_lock(database: Database, notifier: Notifier) -> None:
    ear = listening(database)
    notifier.notify(Channel.SIGNALS)
    assert next(ear.notifies(timeout=SOON_SECONDS)).payload == ""
    until(lambda: database.rows(STATE, ["test-notifier"]) == [("idle",)], "the notifier has no transaction open")


def test_notifier_reconnects_after_a_lost_connection(database: Database, notifier: Notifier) -> None:
    ear = listening(database)
    notifier.notify(Channel.TIMERS)
    until(lambda: database.value(CONNECTED, ["test-notifier"]) == 1, "it is connected")
    assert database.value(CUT, ["test-notifier"]) == 1
    heard(database, ear)

    def notified() -> bool:
        notifier.notify(Channel.OUTBOX)  # one may be lost, which costs a poll
        return heard(database, ear)[Channel.OUTBOX] > 0

    until(notified, "a later notification arrives")


def test_listener_polls_once_and_reconnects_after_a_lost_connection(database: Database, notifier: Notifier) -> None:
    woken = threading.Event()
    with closing(Listener(database.url, "test-listener", (Channel.TIMERS,), woken)):
        assert woken.wait(SOON_SECONDS)
        woken.clear()
        assert database.value(CUT, ["test-listener"]) == 1
        assert woken.wait(SOON_SECONDS), "what was written meanwhile is found by looking once"
        woken.clear()
        notifier.notify(Channel.TIMERS)
        assert woken.wait(SOON_SECONDS)


def test_idle_listener_sleeps_and_closes_at_once(database: Database) -> None:
    woken, pause = threading.Event(), threading.Event()
    listener = Listener(database.url, "test-listener", (Channel.TIMERS,), woken)
    assert woken.wait(SOON_SECONDS)
    thread = next(thread for thread in threading.enumerate() if thread.name == "listener")
    seen = [0, wakings(thread)]
    while seen[-1] != seen[-2]:  # until it has fallen asleep
        pause.wait(0.2)
        seen.append(wakings(thread))
    pause.wait(1.0)
    assert wakings(thread) - seen[-1] <= 1
    listener.close()
    assert not thread.is_alive(), "closing gave up waiting for it"
    until(lambda: database.value(CONNECTED, ["test-listener"]) == 0, "its connection is closed")


def test_notifier_without_a_request_opens_no_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        Notifier(f"postgresql://127.0.0.1:{server.getsockname()[1]}/none", "test").close()
        with pytest.raises(BlockingIOError):
            server.accept()


def test_closing_ends_without_a_database() -> None:
    nowhere, woken = "postgresql://127.0.0.1:1/none", threading.Event()
    with closing(Notifier(nowhere, "test")) as notifier, closing(Listener(nowhere, "test", (*Channel,), woken)):
        notifier.notify(Channel.TIMERS)
    assert not woken.is_set()
    assert not {"notifier", "listener"} & {thread.name for thread in threading.enumerate()}
