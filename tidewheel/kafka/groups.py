"""The group protocol of executors, and checks that the brokers support it.

A setting chooses the protocol. The check joins a group of its own for a moment before anything depends on the protocol.
No request that every client may make reports which protocols are on.
"""

import logging
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Literal, Protocol, cast

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
    if setting == "consumer" and (refusal := _refusal_of_consumer(config, topic, f"{probe}.consumer")) is not None:
        raise SettingsError(
            f"TIDEWHEEL_EXECUTOR_GROUP=consumer: the brokers at {config.get('bootstrap.servers')} lack the consumer "
            f"group protocol (KIP-848): Kafka 4.0 with the feature group.version=1 ({refusal}); upgrade them, or set "
            "classic, which every broker has"
        )
    return setting


def quickest_protocol(config: Mapping[str, str], *, topic: str, probe: str) -> GroupProtocol:
    """`consumer` where the brokers have it and notice a dead member soon, else `classic`."""
    if not _takes_over_quickly(config) or _refusal_of_consumer(config, topic, f"{probe}.consumer") is not None:
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


def _refusal_of_consumer(config: Mapping[str, str], topic: str, group: str) -> str | None:
    joined: list[bool] = []

    def on_assign(member: Consumer, partitions: list[TopicPartition]) -> None:
        del member, partitions
        joined.append(True)

    member = consumer({**config, "log_level": "0"}, group=group, role="probe", protocol="consumer")
    try:
        member.subscribe([topic], on_assign=on_assign)
        deadline = monotonic_seconds() + _PROBE_SECONDS
        while not joined and monotonic_seconds() < deadline:
            message = member.poll(_POLL_SECONDS)
            error = message.error() if message is not None else None
            if error is not None and error.code() in _CANNOT:
                return error.str()
            if error is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                break  # not allowed to read the group; the lanes report it
    finally:
        leave_group(member)
    return None
