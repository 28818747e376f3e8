"""An offset is told to the group after the claim it stands for, a few times a second, and before its partition goes."""

from datetime import timedelta
from typing import cast

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from tests.fixtures.services import until
from tidewheel.executor import offsets
from tidewheel.executor.consume import LaneConsumer
from tidewheel.executor.offsets import Offsets
from tidewheel.executor.slots import Slots
from tidewheel.executor.wanted import Taking
from tidewheel.runs import Lane
from tidewheel.service import Stop


class Group:
    """A consumer that only notes what it is told."""

    def __init__(self) -> None:
        self.told: list[dict[int, int]] = []
        self.refuses = False

    def commit(self, *, offsets: list[TopicPartition], asynchronous: bool) -> None:
        assert asynchronous
        if self.refuses:
            raise KafkaException(KafkaError(KafkaError.ILLEGAL_GENERATION))
        self.told.append({each.partition: each.offset for each in offsets})


class Fetched:
    """A message, as far as offsets go."""

    def __init__(self, partition: int, offset: int) -> None:
        self._partition, self._offset = partition, offset

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset


def messages(*places: tuple[int, int]) -> list[Message]:
    return [cast("Message", Fetched(*place)) for place in places]


@pytest.fixture
def group() -> Group:
    return Group()


@pytest.fixture
def mine(group: Group) -> Offsets:
    """Offsets of the partitions 0 and 1."""
    made = Offsets(cast("Consumer", group), "t")
    made.own([0, 1])
    return made


def test_what_was_noted_is_told_once_the_newest_of_each_partition(mine: Offsets, group: Group) -> None:
    mine.note(messages((0, 3), (1, 8), (0, 4)))
    mine.note(messages((0, 5)))
    assert group.told == []
    mine.tell()
    mine.tell()
    assert group.told == [{0: 6, 1: 9}]


def test_it_is_told_now_and_then(mine: Offsets, group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    mine.note(messages((0, 1)))
    mine.tell_in_time()
    assert group.told == [{0: 2}]
    mine.note(messages((0, 2)))
    mine.tell_in_time()
    assert group.told == [{0: 2}]  # that was a moment ago
    monkeypatch.setattr(offsets, "_TELL_SECONDS", 0.01)
    until(lambda: mine.tell_in_time() or len(group.told) == 2, "it is told in time")
    assert group.told[-1] == {0: 3}


def test_an_older_message_sets_nobody_back(mine: Offsets, group: Group) -> None:
    mine.note(messages((0, 7)))
    mine.note(messages((0, 5)))
    mine.tell()
    assert group.told == [{0: 8}]


def test_of_a_partition_that_has_gone_nothing_is_told(mine: Offsets, group: Group) -> None:
    """Its next owner is set neither back nor forward by what was claimed before and is noted after."""
    mine.note(messages((0, 7), (1, 7)))
    mine.drop({1})
    mine.note(messages((1, 9)))
    mine.tell()
    assert group.told == [{0: 8}]


def test_a_refusal_is_no_fault_of_the_lane(mine: Offsets, group: Group) -> None:
    """A rebalance was quicker, or the client cannot now; what is still ours is told again, whatever comes."""
    mine.note(messages((0, 1), (1, 1)))
    group.refuses = True
    mine.tell()
    mine.drop({1})
    group.refuses = False
    mine.tell()
    mine.tell()
    assert group.told == [{0: 2}]


def test_what_was_claimed_is_told_before_its_partition_goes(group: Group) -> None:
    """The next owner begins behind it; what is told afterwards would be refused."""
    lane = LaneConsumer(
        cast("Consumer", group),
        "t",
        Lane.STANDARD,
        taking=cast("Taking", None),
        slots=Slots(1),
        hold=timedelta(seconds=1),
        crowded=lambda: False,
        stop=Stop(),
    )
    lane._offsets.own([0, 1])
    lane._offsets.note(messages((0, 4), (1, 6)))
    lane._on_revoke(cast("Consumer", group), [TopicPartition("t", 0)])
    lane._offsets.note(messages((0, 5), (1, 7)))
    lane._offsets.tell()
    assert group.told == [{0: 5, 1: 7}, {1: 8}]
