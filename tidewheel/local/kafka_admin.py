"""Requests to the embedded brokers as they start: members, clients' password, a served partition."""

from collections.abc import Mapping
from concurrent.futures import Future
from typing import cast

from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stub re-exports none of the last three
    AdminClient,
    ScramCredentialInfo,  # pyright: ignore[reportPrivateImportUsage]
    ScramMechanism,  # pyright: ignore[reportPrivateImportUsage]
    UserScramCredentialUpsertion,  # pyright: ignore[reportPrivateImportUsage]
)
from confluent_kafka.cimpl import NewTopic

from tidewheel.local.broker_config import USER

_SECONDS = 5.0
_SCRAM_ITERATIONS = 4096  # the least that Kafka accepts: the password is random, so none is guessed from the stored key
_PROBE = "local-stack-probe"  # a topic that exists to show that a partition of this cluster finds its leader


def members(settings: Mapping[str, str]) -> set[int]:
    """Return the ids of the nodes that have joined the cluster; none if it does not answer."""
    try:
        return set(_admin(settings).list_topics(timeout=_SECONDS).brokers)
    except KafkaException:
        return set()


def store_password(settings: Mapping[str, str], password: str) -> bool:
    """Store the clients' password; return True once the cluster has it."""
    admin = _admin(settings)  # named: without a reference it ends, and its requests with it
    kind = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, _SCRAM_ITERATIONS)
    change = UserScramCredentialUpsertion(USER, kind, password.encode())
    try:
        altered = admin.alter_user_scram_credentials([change], request_timeout=_SECONDS)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - the stub's Future has no type
        cast("dict[str, Future[None]]", altered)[USER].result(_SECONDS)
    except (KafkaException, TimeoutError):
        return False
    return True


def is_served(settings: Mapping[str, str], replication: int) -> bool:
    """Return True if a partition has a leader and all its copies."""
    admin = _admin(settings)
    try:
        topic = admin.list_topics(timeout=_SECONDS).topics.get(_PROBE)
        if topic is None:
            new = NewTopic(_PROBE, num_partitions=1, replication_factor=replication)
            created = cast("dict[str, Future[None]]", admin.create_topics([new]))  # pyright: ignore[reportUnknownMemberType] - the stub's Future has no type
            created[_PROBE].result(_SECONDS)
            return False
    except KafkaException:
        return False
    partition = topic.partitions.get(0)
    return partition is not None and partition.leader >= 0 and len(partition.isrs) == replication


def _admin(settings: Mapping[str, str]) -> AdminClient:
    return AdminClient({**settings, "client.id": "tidewheel-local", "log_level": 0})
