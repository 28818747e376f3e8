"""While there is plenty, claims are few and large; a run that may begin only once is not passed over for ever."""

from collections.abc import Sequence
from datetime import timedelta
from itertools import count
from threading import Event
from typing import cast

import pytest
from confluent_kafka import Consumer, Message

from tests.transitions.stepping import in_background
from tidewheel.executor import consume
from tidewheel.executor.consume import LaneConsumer
from tidewheel.executor.slots import Slots
from tidewheel.executor.wanted import Taken, Taking
from tidewheel.runs import Lane
from tidewheel.service import Stop

ONCE = 0  # the offset of the one that may begin only once


class Fetched:
    """A message, as far as this goes."""

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def error(self) -> None:
        return None


class Plenty:
    """A topic without end."""

    def __init__(self) -> None:
        self._offsets = count()

    def poll(self, _seconds: float) -> Fetched:
        return Fetched(next(self._offsets))

    def consume(self, most: int, _seconds: float) -> list[Fetched]:
        return [Fetched(next(self._offsets)) for _ in range(most)]

    def commit(self, **_: object) -> None:
        """Nobody asks."""


class Claiming:
    """Claims whatever it is given, of what may begin only once no more than there are slots."""

    def __init__(self) -> None:
        self.claimed: list[int] = []

    def take(self, messages: Sequence[Message], *, once: int) -> Taken:
        left = [message for message in messages if message.offset() == ONCE and not once]
        self.claimed += [cast("int", message.offset()) for message in messages if message not in left]
        return Taken(len(messages) - len(left), left)


def lane_of(slots: Slots, claiming: Claiming) -> LaneConsumer:
    """A lane whose messages never end."""
    return LaneConsumer(
        cast("Consumer", Plenty()),
        "t",
        Lane.STANDARD,
        taking=cast("Taking", claiming),
        slots=slots,
        hold=timedelta(seconds=30),
        crowded=lambda: False,
        stop=Stop(),
    )


def test_a_run_that_may_begin_only_once_is_next_however_long_it_takes_until_there_is_a_slot() -> None:
    slots, claiming = Slots(10), Claiming()
    lane = lane_of(slots, claiming)
    slots.allow_ahead(30)
    slots.take(Lane.STANDARD, 9)
    lane._round()
    assert (len(claiming.claimed), ONCE in claiming.claimed) == (29, False)
    second = in_background(lane._round)
    for _ in range(5):  # the line is worked off, and slowly
        slots.give_back(Lane.STANDARD, 5)
        Event().wait(0.06)
        assert not second.done()
    slots.give_back(Lane.STANDARD, 5)
    second.result(10)
    assert claiming.claimed[29] == ONCE
    assert len(claiming.claimed) == 30
    assert slots.free_ahead(Lane.STANDARD) == 30


def test_while_there_is_plenty_a_claim_waits_for_half_of_what_may_be_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consume, "_HALF_SECONDS", 30)
    slots, claiming = Slots(10), Claiming()
    lane = lane_of(slots, claiming)
    slots.allow_ahead(30)
    lane._round()
    assert len(claiming.claimed) == 39  # one slot is kept for critical work
    second = in_background(lane._round)
    slots.give_back(Lane.STANDARD, 19)
    Event().wait(0.1)
    assert not second.done()
    slots.give_back(Lane.STANDARD, 1)
    second.result(10)
    assert len(claiming.claimed) == 59
