"""The group protocol of executors and intake, and checks that the brokers support it.

A setting chooses the protocol. The check joins a group of its own for a moment before anything depends on the protocol.
No request that every client may make reports which protocols are on. Where the check is not certain, `auto` is
`classic`, which all brokers have.
"""

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Literal, Protocol, Self, cast
from uuid import uuid4

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stub re-exports none of the others
    AdminClient,
    ConfigResource,  # pyright: ignore[reportPrivateImportUsage]
    ResourceType,  # pyright: ignore[reportPrivateImportUsage]
)

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import SettingsError, Unavailable
from tidewheel.kafka.clients import consumer, leave_group

_LOG = logging.getLogger("tidewheel.kafka.clients")

_QUICK_TAKEOVER_MS = 15_000  # with a longer session timeout the classic protocol notices a dead member sooner
_ADMIN_SECONDS = 10.0
_POLL_SECONDS = 0.1
# Refusals were seen after 0.06 s, a place in the group after 0.13 s. A group whose topic does not exist gets neither.
# The lanes report a refusal that comes later than this.
_PROBE_SECONDS = 2.0
# The client reads in the brokers' ApiVersions that they lack the version it needs, 1, which came with Kafka 4.0. It
# then seeks another coordinator for ever, and reports the cause in its log alone. Source: librdkafka 2.16,
# `rd_kafka_ConsumerGroupHeartbeatRequest`
_LACKS_HEARTBEAT = "ConsumerGroupHeartbeatRequest not supported by broker"

_CANNOT = frozenset({KafkaError.UNSUPPORTED_VERSION, KafkaError._UNSUPPORTED_FEATURE, KafkaError._FATAL})
_AWAY = frozenset({KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT})

GroupProtocol = Literal["consumer", "classic"]


class _Entry(Protocol):
    value: str


def group_protocol(
    config: Mapping[str, str], setting: GroupProtocol | Literal["auto"], *, topic: str, probe: str
) -> GroupProtocol:
    """Return the protocol to use: the setting's, or the quicker one.

    Args:
        probe: First part of the names of groups that exist to be joined for a moment.

    Raises:
        SettingsError: The brokers lack the requested protocol; the message names it and those that work.
    """
    if setting == "auto":
        return quickest_protocol(config, topic=topic, probe=probe)
    if setting == "consumer" and (refusal := _Probe().join(config, topic, probe).refusal) is not None:
        raise SettingsError(
            f"TIDEWHEEL_EXECUTOR_GROUP=consumer: the brokers at {config.get('bootstrap.servers')} lack the consumer "
            f"group protocol (KIP-848): Kafka 4.0 with the feature group.version=1 ({refusal}); upgrade them, or set "
            "classic, which every broker has"
        )
    return setting


def quickest_protocol(config: Mapping[str, str], *, topic: str, probe: str) -> GroupProtocol:
    """`consumer` where a member has joined by it and the brokers notice a dead one soon, else `classic`."""
    if not _takes_over_quickly(config):
        return "classic"
    tried = _Probe().join(config, topic, probe)
    if not tried.joined:
        why = tried.refusal or f"a member got no partition of {topic} within {_PROBE_SECONDS:g} s{tried.last_error}"
        _LOG.info("group protocol: classic, %s", why)
        return "classic"
    return "consumer"


def _takes_over_quickly(config: Mapping[str, str]) -> bool:
    admin = AdminClient({**config, "client.id": "tidewheel-check", "log_level": 2})
    try:
        brokers = admin.list_topics(timeout=_ADMIN_SECONDS).brokers
        resource = ConfigResource(ResourceType.BROKER, str(next(iter(brokers))))
        futures = cast("Mapping[object, Future[Mapping[str, _Entry]]]", admin.describe_configs([resource]))  # pyright: ignore[reportUnknownMemberType]
        found = futures[resource].result(timeout=_ADMIN_SECONDS)
        return int(found["group.consumer.session.timeout.ms"].value) <= _QUICK_TAKEOVER_MS
    except TimeoutError as error:
        raise Unavailable("the brokers do not answer") from error
    except (KafkaException, KeyError, TypeError, ValueError, StopIteration) as error:
        if isinstance(error, KafkaException) and error.args[0].code() in _AWAY:
            raise Unavailable(f"the brokers do not answer: {error.args[0].str()}") from error
        # Reading broker settings needs a cluster grant that an executor ought not to have.
        _LOG.info("group protocol: classic, the broker's session timeout cannot be read (%s)", error)
        return False


class _Probe:
    """A member of a group of its own, by the consumer protocol.

    Attributes:
        refusal: The reason why the brokers cannot do it. None does not show that they can.
    """

    def __init__(self) -> None:
        self.joined = False
        self.refusal: str | None = None
        self.last_error = ""

    def join(self, config: Mapping[str, str], topic: str, probe: str) -> Self:
        """Wait until partitions are assigned, the brokers refuse the member, or two seconds are over."""
        # In a group with another probe, a member of a topic with one partition would get none.
        group, logged = f"{probe}.{uuid4()}", {**config, "debug": "cgrp", "log_level": "7"}
        member = consumer(logged, group=group, role="probe", protocol="consumer", logger=self)
        try:
            member.subscribe([topic], on_assign=self._on_assign)
            deadline = monotonic_seconds() + _PROBE_SECONDS
            while not self.joined and self.refusal is None and monotonic_seconds() < deadline:
                message = member.poll(_POLL_SECONDS)
                error = message.error() if message is not None else None
                if error is not None:
                    self.last_error = f" ({error.str()})"
                    if error.code() in _CANNOT:
                        self.refusal = error.str()
        finally:
            leave_group(member)
        return self

    def log(self, level: int, message: str, *args: object) -> None:
        """Read a line of librdkafka: its facility, its client and its text."""
        del level, message
        if args and _LACKS_HEARTBEAT in str(args[-1]):
            self.refusal = "the brokers lack ConsumerGroupHeartbeat version 1"

    def _on_assign(self, member: Consumer, partitions: Sequence[TopicPartition]) -> None:
        del member, partitions
        self.joined = True
