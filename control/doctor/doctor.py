"""The checks and the last diagnosis of an installation; the lag of consumer groups, for pages.

A process runs the checks on request, on a thread of their own. Those who wait for the end wait on the event loop.
"""

import asyncio
import os
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from tidewheel.control.doctor import database, servers
from tidewheel.control.doctor.check import Check, Context, Report, run_checks
from tidewheel.distribution import is_installed
from tidewheel.errors import SettingsError, Unavailable
from tidewheel.kafka.topics import Topics
from tidewheel.relay.group_lag import GroupLag
from tidewheel.settings.connections import Connections

CHECKS = (
    Check("database", database.check_database),
    Check("schema", database.check_schema, needs="database"),
    Check("isolation", database.check_isolation, needs="schema"),
    Check("locks", database.check_locks, needs="schema"),
    Check("server", database.check_server, needs="schema"),
    Check("fleet", database.check_fleet, needs="schema"),
    Check("timers", database.check_timers, needs="schema"),
    Check("outbox", database.check_outbox, needs="schema"),
    Check("handlers", database.check_handlers, needs="schema"),
    Check("partitions", database.check_partitions, needs="schema"),
    Check("archive", database.check_archive, needs="schema"),
    Check("retention", database.check_retention, needs="schema"),
    Check("replication", servers.check_replication, needs="database"),
    Check("replica", servers.check_replica, needs="schema"),
    Check("vacuum", database.check_vacuum, needs="database"),
    Check("statements", servers.check_statements, needs="database"),
    Check("quarantine", database.check_quarantine, needs="schema"),
    Check("order", database.check_order, needs="schema"),
    Check("signatures", database.check_signatures, needs="schema"),
    Check("keys", database.check_keys, needs="schema"),
    Check("broker", servers.check_broker),
    Check("topics", servers.check_topics, needs="broker"),
    Check("disk", servers.check_disk),
)
_FRESH = timedelta(seconds=10)
"""A younger diagnosis is not repeated: its checks read the server's own views, and ask the brokers."""


def diagnose(settings: Connections) -> Report:
    """Run all checks on the installation that these settings name."""
    context = Context(settings)
    if is_installed("local") and settings.database_url is None and not os.environ.get("PGHOST"):
        from tidewheel.local.stack import running_stack  # its packages are an extra

        stack = running_stack()
        context.data_dir = stack.data_dir if stack is not None else None
    return run_checks(CHECKS, context)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The last diagnosis.

    Args:
        report: Its findings; None before the first one has ended.
        checked_at: When it began, by the database's clock.
        is_running: True while checks run.
    """

    report: Report | None
    checked_at: datetime | None
    is_running: bool


class Doctor:
    """Runs the checks, one diagnosis at a time."""

    def __init__(self, settings: Connections) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._running: Future[None] | None = None
        self._last = Diagnosis(None, None, is_running=False)

    def last(self) -> Diagnosis:
        """Return the last diagnosis."""
        with self._lock:
            running = self._running is not None
            return Diagnosis(self._last.report, self._last.checked_at, running)

    async def run(self, now: datetime, wait_seconds: float) -> Diagnosis:
        """Begin a diagnosis unless one runs or is fresh, wait for its end, and return the last one."""
        running = self._begin(now)
        if running is not None:
            await asyncio.wait([asyncio.wrap_future(running)], timeout=wait_seconds)
        return self.last()

    def _begin(self, now: datetime) -> "Future[None] | None":
        """Return the diagnosis that runs, or a new one; None if the last one is fresh."""
        with self._lock:
            fresh = self._last.checked_at is not None and now - self._last.checked_at < _FRESH
            if self._running is None and not fresh:
                self._running = Future()
                threading.Thread(target=self._diagnose, args=(now, self._running), name="doctor", daemon=True).start()
            return self._running

    def _diagnose(self, now: datetime, ended: "Future[None]") -> None:
        try:
            report = diagnose(self._settings)
            with self._lock:
                self._last = Diagnosis(report, now, is_running=False)
        finally:
            with self._lock:
                self._running = None
            ended.set_result(None)


@dataclass(frozen=True, slots=True)
class BrokerAnswer:
    """The last answer of Kafka.

    Args:
        lags: By consumer group its topic, and the number of messages that the group has not read.
        at: The time of the read, by the database's clock; None before the first answer.
        error: Why a later read failed.
    """

    lags: Mapping[str, tuple[str, int]] = field(default_factory=dict[str, tuple[str, int]])
    at: datetime | None = None
    error: str | None = None

    @property
    def requests(self) -> int | None:
        """The number of requests that intake has not read; None if it is unknown."""
        return next((lag for group, (_, lag) in self.lags.items() if group.endswith(".intake")), None)

    @property
    def behind(self) -> list[tuple[str, str, int]]:
        """The groups that have not read all messages, the largest lag first."""
        found = [(group, topic, lag) for group, (topic, lag) in self.lags.items() if lag]
        return sorted(found, key=lambda each: -each[2])


class Broker:
    """Reads the lag of groups on a thread of its own, at most every ten seconds: no page waits for Kafka."""

    def __init__(self, settings: Connections, topics: Topics) -> None:
        self._settings, self._topics = settings, topics
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._read_at: datetime | None = None
        self._lag: GroupLag | None = None
        self._last = BrokerAnswer()

    def last(self, now: datetime) -> BrokerAnswer:
        """Return the last answer; read again unless that answer is fresh, or a read is in progress."""
        with self._lock:
            found = self._last  # before the thread may replace it: the first page has no answer
            is_reading = self._thread is not None and self._thread.is_alive()
            if not is_reading and (self._read_at is None or now - self._read_at >= _FRESH):
                self._read_at = now
                self._thread = threading.Thread(target=self._read, args=(now,), name="broker", daemon=True)
                self._thread.start()
            return found

    def _read(self, now: datetime) -> None:
        try:
            if self._lag is None:
                self._lag = GroupLag(self._settings.kafka_config(), self._topics)
            lags = self._lag.read()
        except (Unavailable, SettingsError) as error:
            self._last = replace(self._last, error=str(error))
        else:
            self._last = BrokerAnswer(lags, now)
