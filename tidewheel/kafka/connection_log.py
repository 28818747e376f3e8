"""Log lines of a Kafka client: each as it is, except failed connections, which are summed up.

A client logs each failed attempt to connect: four lines a second while its broker is away. This logs one at the loss,
one a minute, and one when no attempt has failed for longer than an attempt takes.
"""

import logging
import threading

from tidewheel.clock import monotonic_seconds
from tidewheel.process.exhausted import end_exhausted_process, is_exhausted

_LOG = logging.getLogger("tidewheel.kafka.clients")

CONNECT_SECONDS = 10.0
"""Limit of a connection attempt, so that a client without a failure for longer is connected."""

_QUIET_SECONDS = CONNECT_SECONDS + 2.0
_REPEAT_SECONDS = 60.0
# Source: librdkafka, rdkafka_broker.c: a connection that failed; an error without an error callback.
_CONNECTION = frozenset({"FAIL", "ERROR"})


class ConnectionLog:
    """The logger of one client, as `confluent_kafka` calls it; safe from every thread."""

    def __init__(self, role: str, *, quiet_seconds: float = _QUIET_SECONDS) -> None:
        self._role, self._quiet_seconds = role, quiet_seconds
        self._changing = threading.Lock()
        self._lost_at: float | None = None
        self._failures = 0
        self._last_failure = self._next_line = 0.0

    def log(self, level: int, message: str, *args: object) -> None:
        """Log a line of librdkafka: its facility, its client and its text."""
        if args and is_exhausted(str(args[-1])):
            end_exhausted_process(str(args[-1]))
        if not args or args[0] not in _CONNECTION:
            # A new broker still loads its coordinator: the client reports that it is "retrying", and succeeds.
            retries = bool(args) and str(args[-1]).endswith(": retrying")
            _LOG.log(logging.DEBUG if retries else level, message, *args)
            return
        now = monotonic_seconds()
        with self._changing:
            self._failures += 1
            self._last_failure = now
            if self._lost_at is None:
                self._lost_at, self._failures = now, 1
                self._check_in(self._quiet_seconds)
                text = "%s: a connection to Kafka failed; the client tries again until it succeeds: %s"
                _LOG.warning(text, self._role, args[-1])
            elif now >= self._next_line:
                text = "%s: connections to Kafka have failed for %.0f s, %d times; the last: %s"
                _LOG.warning(text, self._role, now - self._lost_at, self._failures, args[-1])
            else:
                return
            self._next_line = now + _REPEAT_SECONDS

    def _check_in(self, seconds: float) -> None:
        timer = threading.Timer(seconds, self._check)
        timer.name, timer.daemon = "kafka-connection", True
        timer.start()

    def _check(self) -> None:
        with self._changing:
            quiet = monotonic_seconds() - self._last_failure
            if quiet < self._quiet_seconds or self._lost_at is None:
                self._check_in(self._quiet_seconds - quiet)
                return
            away = self._last_failure - self._lost_at
            self._lost_at = None
        text = "%s: no connection to Kafka has failed for %.0f s; before, %d have in %.0f s"
        _LOG.info(text, self._role, quiet, self._failures, away)
