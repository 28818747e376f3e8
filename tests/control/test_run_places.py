"""`tidewheel run where` finds the messages of a run on Kafka, by key and time."""

from collections.abc import Generator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer

from tests.fixtures.database import Database
from tests.fixtures.services import delete_topics
from tests.relay.topics import make_topics
from tests.transitions.acts import begin, end, ending, submit, trigger
from tidewheel.kafka.offsets import offsets_client
from tidewheel.kafka.topics import Topics
from tidewheel.local.stack import StackInfo
from tidewheel.nouns.runs import places as run_places
from tidewheel.nouns.runs.places import MessagePlace, find_places
from tidewheel.outbox import headers_of
from tidewheel.postgres.session import Conn
from tidewheel.runs import RunState
from tidewheel.settings.connections import Connections


@pytest.fixture
def topics(info: StackInfo) -> Iterator[Topics]:
    """Topics of this test's own, deleted at the end."""
    made = Topics(f"t{uuid4().hex[:10]}")
    yield made
    delete_topics(info.kafka, made.prefix)


@pytest.mark.kafka
def test_run_message_and_completion_are_found_among_others(database: Database, info: StackInfo, topics: Topics) -> None:
    make_topics(info.kafka, [topics.completions, topics.runs("default", "standard")], partitions=2)
    settings = Connections.load(
        topic_prefix=topics.prefix, kafka_properties=info.kafka_properties, kafka_bootstrap=info.bootstrap
    )
    submit(database)
    runs = [trigger(database) for _ in range(5)]
    for run in runs:
        end(database, ending(begin(database, run), RunState.SUCCEEDED))

    producer = Producer({**info.kafka, "log_level": 0})
    rows = database.rows("SELECT topic, key, value, headers FROM outbox ORDER BY id")
    for topic, key, value, headers in rows:
        own = f"{topics.prefix}.{topic.split('.', 1)[1]}"
        if own in {topics.completions, topics.runs("default", "standard")}:
            producer.produce(own, key=key, value=value, headers=[*headers_of(headers)])
    assert producer.flush(10) == 0

    found: list[MessagePlace] = []
    for run in runs[1:3]:
        places = find_places(database.transaction, settings, "default", run)
        assert places.kafka is None
        assert places.run_message is not None
        assert places.completion is not None
        assert len(places.outbox) == 2
        found += [places.run_message, places.completion]
    assert len({(each.topic, each.partition, each.offset) for each in found}) == 4
    assert {each.topic for each in found} == {topics.completions, topics.runs("default", "standard")}


def test_transaction_ends_before_kafka_is_read(
    database: Database, info: StackInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Connections.load(kafka_properties=info.kafka_properties, kafka_bootstrap=info.bootstrap)
    submit(database)
    run = trigger(database)
    open_ones = set[str]()

    @contextmanager
    def snapshot() -> Generator[Conn]:
        open_ones.add("snapshot")
        with database.transaction() as connection:
            yield connection
        open_ones.clear()

    def look(config: Mapping[str, str], group: str) -> AbstractContextManager[Consumer]:
        assert not open_ones
        return offsets_client(config, group)

    monkeypatch.setattr(run_places, "offsets_client", look)
    places = find_places(snapshot, settings, "default", run)
    assert places.kafka is None
