"""A run without a message is swept while messages fill more than every slot."""

import threading
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from confluent_kafka import Producer

import tidewheel
from tests.executor.running import Executing
from tests.fixtures.database import Database
from tests.fixtures.services import until
from tests.transitions.stepping import in_background
from tidewheel.executor.handlers import registered
from tidewheel.local.stack import StackInfo
from tidewheel.runs import Lane

pytestmark = pytest.mark.kafka

BUSY_SECONDS = 0.01  # one of the flood keeps the loop for so long
MAX_OUTSTANDING = 100
LOST = 3  # a tenth of the slots


@dataclass
class Flood:
    """Published load, and the part of it that was outstanding at the last start."""

    published: int = 0
    worked_off: int = 0
    others: int = 0
    outstanding: int | None = None
    over: threading.Event = field(default_factory=threading.Event)


FLOODS: dict[str, Flood] = {}


@tidewheel.handler("flood.drop")
async def drop(context: tidewheel.Context, payload: str) -> None:
    """Keep the loop busy without waiting: the executor overcommits such runs."""
    del context
    FLOODS[payload].over.wait(BUSY_SECONDS)
    FLOODS[payload].worked_off += 1


@tidewheel.handler("flood.other")
async def other(context: tidewheel.Context, payload: str) -> None:
    """Take note of what is outstanding, and let the flood end with the last of these."""
    del context
    flood = FLOODS[payload]
    flood.others += 1
    if flood.others == LOST:
        flood.outstanding = flood.published - flood.worked_off
        flood.over.set()


@pytest.fixture
def executing(fresh_database: Database, info: StackInfo) -> Executing:
    made = Executing(fresh_database, info.kafka)
    made.make_topics()
    return made


@pytest.mark.slow
def test_lost_message_is_swept_while_messages_fill_every_slot(executing: Executing) -> None:
    name = uuid4().hex
    flood = FLOODS[name] = Flood()
    executing.database.submit("drops", target="flood.drop")
    executing.database.submit("others", target="flood.other")
    known = {handler: found for handler, found in registered().items() if handler.startswith("flood.")}
    with executing.running(known=known, slots=10 * LOST, sweep=timedelta(milliseconds=200)):
        flooding = in_background(lambda: keep_flooding(executing, name))
        try:
            until(lambda: brought_by_messages(executing) > 2 * MAX_OUTSTANDING, "messages keep the executor busy")
            # Due at the same moment, and their messages are not published.
            lost = executing.database.apply_batch(*[{"type": "job.trigger", "key": "others", "payload": name}] * LOST)
            ended = [executing.ended(UUID(reply.run_id)) for reply in lost]
        finally:
            flood.over.set()
            flooding.result(60)
        until(lambda: flood.worked_off >= flood.published, "the flood is worked off")
    # A slow processor frees fewer slots in time than one turn may take: then the runs start in several turns.
    assert {(one.state, one.attempt, one.claimed_from) for one in ended} == {("succeeded", 1, "sweep")}
    assert (flood.others, flood.worked_off) == (LOST, flood.published)  # each started once
    assert flood.outstanding is not None
    assert flood.outstanding > 0


def keep_flooding(executing: Executing, name: str) -> None:
    """Publish more whenever little is left, until the flood is over."""
    flood, topic = FLOODS[name], executing.topics.runs("default", Lane.STANDARD)
    producer = Producer({**executing.kafka})
    some = [{"type": "job.trigger", "key": "drops", "payload": name}] * (MAX_OUTSTANDING // 2)
    while not flood.over.is_set():
        executing.database.apply_batch(*some)
        flood.published += len(some)
        for (value,) in executing.database.rows(
            "DELETE FROM outbox WHERE topic = %s AND value LIKE '%%flood.drop%%'::bytea RETURNING value", [topic]
        ):
            producer.produce(topic, value=value, headers=executing.database.signed(topic, None, value))
        assert producer.flush(30) == 0
        until(lambda: flood.over.is_set() or flood.published - flood.worked_off < MAX_OUTSTANDING, "most is worked off")


def brought_by_messages(executing: Executing) -> int:
    return int(executing.database.value("SELECT count(*) FROM ended_attempts WHERE claimed_from <> 'sweep'"))
