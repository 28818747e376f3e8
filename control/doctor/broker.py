"""The lag of consumer groups, as Kafka answers while pages of the fleet are read."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from tidewheel.control.doctor.doctor import FRESH
from tidewheel.errors import SettingsError, Unavailable
from tidewheel.kafka.topics import Topics
from tidewheel.relay.group_lag import GroupLag
from tidewheel.settings.connections import Connections


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
            if not is_reading and (self._read_at is None or now - self._read_at >= FRESH):
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
