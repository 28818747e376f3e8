"""Topics of a test's own: few partitions."""

from collections.abc import Mapping, Sequence

from confluent_kafka.admin import (
    AlterConfigOpType,  # type: ignore[attr-defined]  # its stub re-exports none of these
    ConfigEntry,  # type: ignore[attr-defined]
    ConfigResource,  # type: ignore[attr-defined]
    NewTopic,  # type: ignore[attr-defined]
    ResourceType,  # type: ignore[attr-defined]
)

from tests.fixtures.services import admin_of, until

_SECONDS = 30.0


def make_topics(
    kafka: Mapping[str, str],
    names: Sequence[str],
    *,
    partitions: int = 1,
    config: Mapping[str, str] | None = None,
) -> None:
    admin = admin_of(kafka)
    new = [NewTopic(name, num_partitions=partitions, replication_factor=1, config=dict(config or {})) for name in names]
    for future in admin.create_topics(new, operation_timeout=_SECONDS).values():
        future.result(_SECONDS)
    until(lambda: set(names) <= set(admin.list_topics(timeout=_SECONDS).topics), "the broker knows the topics")


def delete_topic(kafka: Mapping[str, str], name: str) -> None:
    admin = admin_of(kafka)
    admin.delete_topics([name], operation_timeout=_SECONDS)[name].result(_SECONDS)
    until(lambda: name not in admin.list_topics(timeout=_SECONDS).topics, "the broker has forgotten the topic")


def set_topic_config(kafka: Mapping[str, str], name: str, config: Mapping[str, str]) -> None:
    """Change a topic's configuration, as an operator does; returns when the broker knows it."""
    entries = [ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in config.items()]
    resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
    admin = admin_of(kafka)  # kept until the result: its end would abort the request
    admin.incremental_alter_configs([resource])[resource].result(_SECONDS)

    def is_known() -> bool:
        found = admin.describe_configs([resource])[resource].result(_SECONDS)
        return all(found[key].value == value for key, value in config.items())

    until(is_known, "the broker knows the configuration")  # the controller answers before the broker has it
