"""The ids of topics: a topic that was deleted and created again has another one, and other offsets."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Protocol, cast

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from tidewheel.errors import Unavailable

_DESCRIBE_SECONDS = 10.0

GONE = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
    }
)
"""Errors of a topic that was deleted, is not known yet, or may not be read."""


class _TopicDescription(Protocol):
    topic_id: object


def read_topic_id(config: Mapping[str, str], name: str) -> str:
    """Return the id of a topic."""
    if (found := read_topic_ids(config, [name]).get(name)) is not None:
        return found
    message = f"{name} cannot be described: there is none, or it is not authorized; run `tidewheel admin topics apply`"
    raise Unavailable(message)


def read_topic_ids(config: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """Return the ids of those topics that exist and may be described."""
    if not names:
        return {}
    # Kept until the result: its end would abort the request.
    admin = AdminClient({**config, "client.id": "tidewheel-topics", "log_level": 2})
    ids: dict[str, str] = {}
    found = cast(
        "dict[str, Future[_TopicDescription]]",
        admin.describe_topics(TopicCollection([*names]), request_timeout=_DESCRIBE_SECONDS),  # pyright: ignore[reportUnknownMemberType]
    )
    for name, future in found.items():
        try:
            ids[name] = str(future.result().topic_id)
        except KafkaException as error:
            if error.args[0].code() not in GONE:
                message = f"{name} cannot be described: {error.args[0].str()}"
                raise Unavailable(message) from error
    return ids
