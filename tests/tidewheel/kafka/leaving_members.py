"""Members that leave their group while an assignment waits for their first poll.

Standard input has the topic and the settings of a client; standard output has the callbacks of each member.
"""

import json
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, cast
from uuid import uuid4

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from tidewheel.clock import monotonic_seconds
from tidewheel.kafka.clients import consumer, leave_group

if TYPE_CHECKING:
    from confluent_kafka.admin import ConsumerGroupDescription  # type: ignore[attr-defined]

_MEMBERS = 36  # where they called `close` alone, 18 did not end in two of three runs
_AT_ONCE = 6
_ASKING_SECONDS = 0.05  # longer than the broker takes to answer the member that leaves


def leave_before_the_first_poll(config: dict[str, str], topic: str) -> list[str]:
    """Leave a group whose assignment is not delivered yet; return the callbacks."""
    called: list[str] = []

    def on_assign(client: Consumer, partitions: list[TopicPartition]) -> None:
        called.append("assign")
        client.incremental_assign(partitions)

    def on_revoke(client: Consumer, partitions: list[TopicPartition]) -> None:
        del partitions
        called.append("revoke")
        end = monotonic_seconds() + _ASKING_SECONDS
        while monotonic_seconds() < end:
            client.memberid()  # a request to the group, as the client's own unassignment is one

    group = f"g{uuid4().hex}"
    client = consumer(config, group=group, role="test", protocol="consumer")
    client.subscribe([topic], on_assign=on_assign, on_revoke=on_revoke)
    admin = AdminClient({**config})
    while not _is_assigned(admin, group):
        pass
    leave_group(client)
    return called


def _is_assigned(admin: AdminClient, group: str) -> bool:
    described = admin.describe_consumer_groups([group])  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - its stub leaves a Future bare
    try:
        found = cast("dict[str, Future[ConsumerGroupDescription]]", described)[group].result()
    except KafkaException:
        return False  # its coordinator is not known yet
    return any(each.assignment and each.assignment.topic_partitions for each in found.members)


def _main() -> None:
    topic, config = json.load(sys.stdin)
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        leaving = [threads.submit(leave_before_the_first_poll, config, topic) for _ in range(_MEMBERS)]
    json.dump([each.result() for each in leaving], sys.stdout)


if __name__ == "__main__":
    _main()
