"""The lag of consumer groups: messages in Kafka that no member has read, as one relay exports it."""

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from prometheus_client import REGISTRY

from tests.fixtures.services import until
from tests.relay.relaying import Relaying
from tidewheel.errors import Unavailable
from tidewheel.kafka.topics import Topics
from tidewheel.relay import group_lag
from tidewheel.relay.group_lag import GroupLag

pytestmark = pytest.mark.kafka


def lag_of(topic: str, group: str) -> float | None:
    return REGISTRY.get_sample_value("tidewheel_group_lag", {"group": group, "topic": topic})


def fill(relaying: Relaying, topic: str, count: int) -> None:
    producer = Producer({**relaying.kafka})
    for number in range(count):
        producer.produce(topic, value=b"v", partition=number % 2)
    assert producer.flush(30) == 0


def commit(relaying: Relaying, group: str, topic: str, *offsets: int) -> None:
    """Commit offsets of the partitions, as a member does that has read them."""
    consumer = Consumer({**relaying.kafka, "group.id": group, "enable.auto.commit": False})
    consumer.commit(
        offsets=[TopicPartition(topic, number, offset) for number, offset in enumerate(offsets)], asynchronous=False
    )
    consumer.close()


def test_lag_is_what_a_group_has_not_read_and_all_of_requests_that_no_intake_ever_read(relaying: Relaying) -> None:
    requests = relaying.topic("requests", partitions=2)
    read, unread = (relaying.topic(f"runs.{lane}", partitions=2) for lane in ("standard", "batch"))
    of_tenant = relaying.topic("requests.t.acme", partitions=2)
    for topic in (requests, read, unread):
        fill(relaying, topic, 10)
    fill(relaying, of_tenant, 3)
    commit(relaying, f"{read}.executors", read, 5, 2)
    measured = GroupLag(relaying.kafka, Topics(relaying.prefix))
    measured.measure()
    assert lag_of(requests, f"{requests}.intake") == 13
    assert lag_of(read, f"{read}.executors") == 3
    assert lag_of(unread, f"{unread}.executors") is None  # as share groups, which have no offsets

    commit(relaying, f"{requests}.intake", requests, 5, 4)
    commit(relaying, f"{requests}.intake", of_tenant, 2, 1)
    measured.measure()
    assert lag_of(requests, f"{requests}.intake") == 1
    measured.step(measures=False)  # another relay measures from now on
    assert lag_of(requests, f"{requests}.intake") == lag_of(read, f"{read}.executors") == 0


def test_topic_whose_offsets_cannot_be_read_is_skipped(relaying: Relaying, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of topics names a partition that the broker does not have, as while it elects a leader."""
    requests, gone = relaying.topic("requests", partitions=2), relaying.topic("runs.batch", partitions=2)
    fill(relaying, requests, 4)
    known = group_lag.read_partitions

    def listed(client: Consumer) -> dict[str, list[tuple[str, int]]]:
        return {**known(client), gone: [(gone, 0), (gone, 7)]}

    monkeypatch.setattr(group_lag, "read_partitions", listed)
    GroupLag(relaying.kafka, Topics(relaying.prefix)).measure()
    assert lag_of(requests, f"{requests}.intake") == 4
    assert lag_of(gone, f"{gone}.executors") is None


def test_relay_measures_by_itself_while_it_publishes(relaying: Relaying, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_lag, "_EVERY_SECONDS", 0.1)
    monkeypatch.setattr(group_lag, "_SHARE", 1)  # else it waits a hundred times as long as it measured
    requests = relaying.topic("requests", partitions=2)
    fill(relaying, requests, 4)
    with relaying.running(topic_prefix=relaying.prefix):
        until(lambda: lag_of(requests, f"{requests}.intake") == 4, "the lag is exported")
        fill(relaying, requests, 2)
        until(lambda: lag_of(requests, f"{requests}.intake") == 6, "it is measured again")


def test_broker_that_is_away_stops_nothing_but_the_measurement(relaying: Relaying) -> None:
    GroupLag(relaying.kafka, Topics(relaying.prefix)).measure()  # nor do topics that are not created yet
    away = GroupLag({"bootstrap.servers": "127.0.0.1:1"}, Topics(relaying.prefix))
    with pytest.raises(Unavailable):
        away.measure()
