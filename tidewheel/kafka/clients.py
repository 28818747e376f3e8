"""Kafka clients: bytes only, with the settings that keep the promises.

docs/adr/0005-kafka-settings.md gives the reasons for the settings. Users' own settings (TLS, SASL, …) are passed
through untouched; those that would weaken a promise are refused.
"""

import logging
import re
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from itertools import chain
from typing import Any, Literal, Protocol, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import SettingsError, Unavailable, UnsupportedServer
from tidewheel.process.exhausted import end_exhausted_process, is_exhausted

_LOG = logging.getLogger("tidewheel.kafka.clients")

CONNECT_SECONDS = 10.0
"""Limit of a connection attempt, so that a client without a failure for longer is connected."""

_ADMIN_SECONDS = 10.0
_READY_SECONDS = 2.0
_RECONNECT_MS = 1000  # a broker that is back is used within a second, not within the client's ten
_FIRST_RECONNECT_MS = 500
_CONNECTING = {
    "reconnect.backoff.ms": _FIRST_RECONNECT_MS,
    "reconnect.backoff.max.ms": _RECONNECT_MS,
    "socket.connection.setup.timeout.ms": int(CONNECT_SECONDS * 1000),
}

# A batch of 200 bytes by zstd may hold megabytes, and the client unpacks all of a response at once. So a response has
# two thousand bytes, or one batch if that is longer. A batch by zstd that unpacks to more than 2 MiB is reported as
# unreadable. No setting limits lz4 and gzip (docs/adr/0031).
_FETCH_BYTES = 2000
_RESPONSE_BYTES = 2 * 1024 * 1024

# Messages in the client's queue, above which it fetches no more. The client counts the bytes of values alone, so keys
# and headers are bounded by this number. It is larger for topics that only the relay may write: an executor that finds
# 16 messages where hundreds are due claims few at once, and the broker answers twice as many fetches.
_QUEUED = 16
RUNS_QUEUED = 2000

BOUNDED_FETCH: Mapping[str, int] = {
    "fetch.max.bytes": _FETCH_BYTES,
    "message.max.bytes": _FETCH_BYTES,  # of a consumer only the least that it may fetch
    "receive.message.max.bytes": _RESPONSE_BYTES,
    "queued.min.messages": _QUEUED,
    "queued.max.messages.kbytes": 4096,
    "fetch.queue.backoff.ms": 2,  # by default a full queue pauses fetches for a second
}

# The broker keeps back a response below its least size until the time is over, and no batch is so long. So the next
# batch arrives half a second after this one.
_ONE_BATCH: Mapping[str, int] = {
    "fetch.max.bytes": _RESPONSE_BYTES - 1024,
    "fetch.min.bytes": _RESPONSE_BYTES - 1024,
    "max.partition.fetch.bytes": 1,
    "fetch.wait.max.ms": 500,
}

_BATCH_BYTES = 16 << 20  # of the messages that a service holds at once
_NEXT_FETCH_SECONDS = 0.005  # from the moment when the client's queue is empty: its pause, and a round trip

_NOT_YOURS = frozenset(
    {"acks", "enable.idempotence", "enable.auto.commit", "enable.auto.offset.store", "auto.offset.reset", "partitioner"}
)

# Producers that repeat nothing, headers, offsets by time, groups. The line names an API and its oldest version.
# librdkafka reports what brokers lack in its log alone. Source: librdkafka, rdkafka_feature.c
_FEATURES = "IdempotentProducer|MsgVer2|OffsetTime|BrokerGroupCoordinator"
_LACKS = re.compile(rf"Feature (?:{_FEATURES}): (\w+) \((\d+)\.\.\d+\) NOT supported by broker")

# The token endpoint has not answered, or not with an error of the client's. Source: librdkafka,
# rdkafka_sasl_oauthbearer.c; RFC 6749, section 5.2
_WITHOUT_TOKEN = re.compile(
    r"Failed to acquire SASL OAUTHBEARER token(?!.*(?:\binvalid_|\bun\w+_(?:client|grant_type)\b))"
)
_CAUSES: Mapping[str, tuple[str, ...]] = {
    "certificate verify failed": ("ssl.ca.location",),
    r"alert .*(certificate|unknown ca)": ("ssl.certificate.location", "ssl.key.location"),
    "SASL OAUTHBEARER token": ("sasl.oauthbearer.token.endpoint.url", "https.ca.location"),
}

_QUIET_SECONDS = CONNECT_SECONDS + 2.0
_REPEAT_SECONDS = 60.0
# Source: librdkafka, rdkafka_broker.c: a connection that failed; an error without an error callback.
_CONNECTION = frozenset({"FAIL", "ERROR"})


class Log(Protocol):
    """The logger of a client, as `confluent_kafka` calls it."""

    def log(self, level: int, message: str, *args: object) -> None:
        """Log a line of librdkafka: its facility, its client and its text."""


def bootstrap_check(config: Mapping[str, str]) -> Callable[[], None]:
    """Return a check that a broker answers; it may be repeated.

    The check raises `Unavailable` if none does within ten seconds; the message names the address. It raises
    `SettingsError` if the brokers refuse the credentials, and `UnsupportedServer` if they lack an API.

    Raises:
        SettingsError: A setting was passed through that would break a promise, or that no client knows.
    """
    _refuse_overrides(config)
    where = config.get("bootstrap.servers")
    refusals: list[str] = []
    reasons: list[str] = []

    def on_error(error: KafkaError) -> None:
        if error.code() == KafkaError._AUTHENTICATION and not _WITHOUT_TOKEN.match(error.str()):
            refusals.append(error.str())
        elif error.code() != KafkaError._ALL_BROKERS_DOWN:
            reasons.append(error.str())

    lacking = _Lacking()
    admin = _checked_admin(config, on_error, lacking)

    def check() -> None:
        refusals.clear()
        reasons.clear()
        try:
            admin.list_topics(timeout=_ADMIN_SECONDS)
        except KafkaException as error:
            admin.poll(0)
            if refusals:
                message = f"the Kafka brokers at {where} refuse TIDEWHEEL_KAFKA_CONFIG_SASL_…: {refusals[-1]}"
                raise SettingsError(message) from error
            reason = _with_settings(reasons[-1] if reasons else error.args[0].str())
            raise Unavailable(f"no Kafka broker answers at {where} (TIDEWHEEL_KAFKA_BOOTSTRAP): {reason}") from error
        admin.poll(0)
        if lacking.apis:
            raise UnsupportedServer(
                f"the Kafka brokers at {where} lack {', '.join(sorted(lacking.apis))}, which Tidewheel needs: use "
                "brokers of a release in docs/compatibility.md, or name others in TIDEWHEEL_KAFKA_BOOTSTRAP"
            )

    return check


def why_kafka_is_away(config: Mapping[str, str], topic: str) -> Callable[[], str | None]:
    """Return a check that reports why the brokers do not answer; it returns None if they do."""
    admin = AdminClient({**config, "client.id": "tidewheel-ready", "log_level": 0})

    def ask() -> str | None:
        try:
            admin.list_topics(topic, timeout=_READY_SECONDS)
        except KafkaException as error:
            return f"no broker answers: {error.args[0].str()}"
        return None

    return ask


def producer(
    config: Mapping[str, str],
    *,
    role: str,
    linger_ms: int = 5,
    timeout_ms: int = 120_000,
    on_delivery: Callable[[KafkaError | None, Message], None] | None = None,
) -> Producer:
    """Return an idempotent producer: a message waits `linger_ms` at most for others of its batch."""
    _refuse_overrides(config)
    return Producer(
        {
            **_CONNECTING,
            "queue.buffering.max.messages": 200_000,
            "queue.buffering.max.kbytes": 262_144,
            "log_level": 4,
            **config,
            "client.id": f"tidewheel-{role}",
            "enable.idempotence": True,  # sets acks=all and endless retries within the timeout
            "partitioner": "murmur2_random",  # the Java clients' own: mixed producers must not split a key
            "compression.type": "lz4",
            "linger.ms": linger_ms,
            "message.timeout.ms": timeout_ms,
            "batch.num.messages": 1000,
            "message.max.bytes": 1024 * 1024 + 32 * 1024,
            **({"on_delivery": on_delivery, "delivery.report.only.error": True} if on_delivery else {}),
        },
        logger=ConnectionLog(role),
    )


def consumer(
    config: Mapping[str, str],
    *,
    group: str,
    role: str,
    protocol: Literal["consumer", "classic"],
    reset: str = "earliest",
    one_batch: bool = False,
    queued: int = _QUEUED,
    logger: Log | None = None,
) -> Consumer:
    """Return a consumer that commits nothing by itself.

    Args:
        reset: The first offset of a partition that has none.
        one_batch: True if it fetches the next batch half a second later.
        queued: Messages in its queue, above which it fetches no more.
        logger: The logger of its lines; without it one of the caller's role.
    """
    _refuse_overrides(config)
    grouping: dict[str, str | int] = {"group.protocol": "consumer"}
    if protocol == "classic":
        grouping = {
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": 10_000,
            "heartbeat.interval.ms": 3_000,
        }
    return Consumer(
        {
            "log_level": 4,
            **_CONNECTING,
            **config,
            **grouping,
            "client.id": f"tidewheel-{role}",
            "group.id": group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": reset,
            **BOUNDED_FETCH,
            "queued.min.messages": queued,
            "fetch.wait.max.ms": 100,
            **(_ONE_BATCH if one_batch else {}),
        },
        logger=logger or ConnectionLog(role),
    )


def bytes_of(messages: Collection[Message]) -> int:
    """Return the bytes of messages; `len` of one is that of its value, without its key and headers."""
    pairs = chain.from_iterable(filter(None, map(Message.headers, messages)))
    parts = chain(map(Message.key, messages), chain.from_iterable(cast("chain[tuple[str, bytes | None]]", pairs)))
    return sum(map(len, messages)) + sum(map(len, filter(None, parts)))


def consume_batch(
    client: Consumer, count: int, held: Collection[Message] = (), *, queued: int = _QUEUED
) -> list[Message]:
    """Return messages that have arrived: at most `count`, and 16 MiB together with the held ones.

    A batch of 270 bytes by zstd holds 900 KB, so a bound by count alone is none. Beyond the bound is what the client
    had queued, at most. A full queue is a sign of a backlog: it is filled again, so that batches stay large.
    """
    taken, left, wait = list[Message](), _BATCH_BYTES - bytes_of(held), 0.0
    while count > len(taken) and left > 0:
        more = client.consume(count - len(taken), wait)
        taken += more
        if len(more) < queued - 1:  # the caller may have polled one
            break
        left, wait = left - bytes_of(more), _NEXT_FETCH_SECONDS
    return taken


def poll_batch(client: Consumer, count: int, seconds: float) -> list[Message]:
    """Wait for a message; return it with those that have arrived, as `consume_batch` bounds them."""
    first = client.poll(seconds)
    return [] if first is None else [first, *consume_batch(client, count - 1, [first])]


def leave_group(client: Consumer) -> None:
    """Leave the consumer group and close the client.

    `close` alone may wait for ever, with the GIL, where an assignment arrives just before it. The closing client takes
    `incremental_assign` for an unassignment. So its group may end before the callback of the revocation, and a request
    of that callback to the group is then dropped without an answer. Here both callbacks run before `close`.

    Source: librdkafka 2.16, `rd_kafka_cgrp_op_serve`.
    """
    try:
        with suppress(KafkaException):
            client.unsubscribe()
            while client.poll(0) is not None:
                pass  # not applied: another member reads it again
    finally:
        client.close()


class ConnectionLog:
    """The logger of one client, as `confluent_kafka` calls it; safe from every thread.

    A client logs each failed attempt to connect: four lines a second while its broker is away. This logs one at the
    loss, one a minute, and one when no attempt has failed for longer than an attempt takes.
    """

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
        text = "%s: no connection to Kafka has failed for %.0f s; before that, %d failed in %.0f s"
        _LOG.info(text, self._role, quiet, self._failures, away)


class _Lacking:
    """The needed APIs that brokers lack, as a client logs them."""

    def __init__(self) -> None:
        self.apis: set[str] = set()

    def log(self, level: int, message: str, *args: object) -> None:
        """Read a line of librdkafka."""
        del level, message
        if args and (found := _LACKS.search(str(args[-1]))):
            self.apis.add(f"{found[1]} version {found[2]}")


def _checked_admin(config: Mapping[str, str], on_error: Callable[[KafkaError], None], lacking: _Lacking) -> AdminClient:
    check: dict[str, Any] = {"client.id": "tidewheel-check", "debug": "feature", "log_level": 7, "error_cb": on_error}
    try:
        return AdminClient({**_CONNECTING, **config, **check}, logger=lacking)
    except KafkaException as error:
        passed = ", ".join(_variable(name) for name in sorted(set(config) - {"bootstrap.servers"}))
        message = f"a Kafka client cannot be made with {passed or 'these settings'}: {error.args[0].str()}"
        raise SettingsError(message) from error


def _with_settings(reason: str) -> str:
    """Return a reason why no broker answers, with the settings that may be its cause."""
    names = next((names for sign, names in _CAUSES.items() if re.search(sign, reason)), ())
    if not names or names[0] in reason:  # librdkafka adds it at times
        return reason
    return f"{reason}; check {' and '.join(f'{name} ({_variable(name)})' for name in names)}"


def _variable(name: str) -> str:
    return f"TIDEWHEEL_KAFKA_CONFIG_{name.upper().replace('.', '_')}"


def _refuse_overrides(config: Mapping[str, str]) -> None:
    taken = sorted(_NOT_YOURS & set(config))
    if taken:
        names = ", ".join(_variable(name) for name in taken)
        raise SettingsError(f"{names}: cannot be changed, because Tidewheel's guarantees depend on it; unset it")
