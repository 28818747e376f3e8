"""The sweep claims what no message brings, also under load."""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, LiteralString
from uuid import UUID, uuid4

import pytest
from confluent_kafka import Producer

import tidewheel
from tests.executor.handlers import GATES, Gate
from tests.executor.running import ENTER, Executing
from tests.executor.test_claim import claimer
from tests.fixtures.acts import EXECUTOR, HANDLER, submission
from tests.fixtures.database import Database
from tests.fixtures.services import until
from tests.transitions.stepping import in_background
from tidewheel.control.client.client import Client
from tidewheel.executor.handlers import registered
from tidewheel.executor.run_messages import ClaimedRun, StartRuns
from tidewheel.executor.slots import HeldBytes, Slots
from tidewheel.executor.sweep import LaneSchedule, Sweep
from tidewheel.local.stack import StackInfo
from tidewheel.process.service import Shutdown
from tidewheel.runs import Lane, RunState

pytestmark = pytest.mark.kafka
HALF_A_SECOND: dict[str, Any] = {"sweep": timedelta(milliseconds=500)}


@pytest.mark.landing
def test_sweep_claims_messages_that_a_full_executor_holds(executing: Executing, gate: str) -> None:
    """One executor has fetched the message and has every partition; the other claims the run by sweep."""

    def message_brings_a_run() -> bool:
        run_id = executing.trigger("acts.echo", 0)
        executing.publish(run_id)
        return executing.ended(run_id).claimed_from != "sweep"

    with executing.running(slots=1, **HALF_A_SECOND):
        until(message_brings_a_run, "the first executor has its partitions")
        held = executing.trigger("acts.wait", gate)
        executing.publish(held)
        until(lambda: GATES[gate].entered, "the first executor is full")
        others = [executing.trigger("acts.echo", number) for number in range(5)]
        for run_id in others:
            executing.publish(run_id)
        with executing.running(slots=1, **HALF_A_SECOND):
            ways = [executing.ended(run_id).claimed_from for run_id in others]
            assert ways[0] == "sweep"  # the later ones may still lie in Kafka when the partition goes to the other
            GATES[gate].opened.set()
            assert executing.ended(held).state == "succeeded"
            last = executing.trigger("acts.echo", 6)
            executing.publish(last)
            assert executing.ended(last).state == "succeeded"
    assert [executing.database.attempts(run_id) for run_id in others] == [[(1, "succeeded")]] * 5


def test_lost_message_is_swept_while_messages_arrive(executing: Executing) -> None:
    """Messages that keep coming are no reason to leave one that does not."""
    with executing.running(slots=4, **HALF_A_SECOND):
        executing.ended(executing.trigger("acts.echo", 0))
        lost = executing.trigger("acts.echo", 1)
        executing.database.execute("DELETE FROM outbox WHERE key = %s", [str(lost).encode()])

        def found_while_messages_come() -> bool:
            executing.publish(executing.trigger("acts.echo", 2))
            return is_over(executing, lost)

        until(found_while_messages_come, "the lost one has ended")
    assert executing.ended(lost).claimed_from == "sweep"


def test_timely_message_is_not_swept(executing: Executing) -> None:
    with executing.running(slots=4, sweep=timedelta(seconds=60)):
        runs = [executing.trigger("acts.echo", number) for number in range(20)]
        for run_id in runs:
            executing.publish(run_id)
        came = {executing.ended(run_id).claimed_from for run_id in runs}
    assert "sweep" not in came


@pytest.mark.landing
def test_sweep_waits_for_slots_and_not_for_its_interval_while_runs_are_due(executing: Executing) -> None:
    """While the slots are full, a look at the critical lane finds nothing."""
    runs = [executing.trigger("acts.brief", number) for number in range(60)]
    executing.database.execute("UPDATE job_runs SET publish_at = publish_at - interval '2 h'")
    executing.database.execute("TRUNCATE outbox")
    with executing.running(slots=20, sweep=timedelta(hours=1)):
        assert {executing.ended(run_id).claimed_from for run_id in runs} == {"sweep"}


def test_unused_slots_are_those_free_all_the_time() -> None:
    slots = Slots(20)
    slots.take(Lane.STANDARD, 5)
    slots.watch()
    assert slots.unused(Lane.STANDARD) == 13
    slots.take(Lane.STANDARD, 10)
    slots.release(Lane.STANDARD, 12)
    assert slots.unused(Lane.STANDARD) == 3
    assert slots.unused(Lane.CRITICAL) == 5
    assert slots.free(Lane.STANDARD) == 15
    slots.watch()
    assert slots.unused(Lane.STANDARD) == 15


def sweep_of(
    database: Database,
    slots: Slots,
    start: StartRuns,
    *,
    every: timedelta,
    idle: bool,
) -> Sweep:
    return Sweep(
        database.session(),
        claimer=claimer(database),
        slots=slots,
        held=HeldBytes(),
        queues=["default"],
        handlers=frozenset({HANDLER}),
        start=start,
        idle=lambda: idle,
        overloaded=lambda: False,
        every=every,
        stop=Shutdown(),
    )


def test_overdue_runs_get_a_tenth_of_the_slots_by_one_claim(database: Database) -> None:
    """Slots are free for moments only, for messages fill them at once."""
    database.execute(ENTER, [EXECUTOR])
    database.submit()
    for _ in range(4):
        database.trigger()
    slots, swept = Slots(30), list[int]()
    slots.take(Lane.STANDARD, 27)  # all but the critical lane's
    sweep = sweep_of(
        database, slots, lambda claimed: swept.append(len(claimed)), every=timedelta(milliseconds=10), idle=False
    )
    refilling = in_background(lambda: free_and_fill(slots, 3))
    while not refilling.done():
        sweep.step()
    refilling.result()
    assert swept == [3]


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE job_runs SET scheduled_at = '294000-01-01Z' WHERE run_id = %s",
        "UPDATE job_runs SET schedule_to_close_at = '294000-01-01Z' WHERE run_id = %s",
        "UPDATE job_runs SET job_version = 7 WHERE run_id = %s",
    ],
)
def test_oldest_run_that_cannot_be_read_keeps_no_slot(database: Database, damage: LiteralString) -> None:
    database.execute(ENTER, [EXECUTOR])
    database.submit(overlap="allow_all")
    damaged, whole = database.trigger(), database.trigger()
    database.execute("UPDATE job_runs SET publish_at = publish_at - interval '2 min'")
    database.execute(damage, [damaged])
    swept = list[UUID]()

    def start(claimed: Sequence[ClaimedRun]) -> None:
        swept.extend(one.run_id for one, _, _ in claimed)

    sweep = sweep_of(database, Slots(1), start, every=timedelta(minutes=1), idle=True)
    until(lambda: sweep.step() >= 0 and swept == [whole], "the other run starts")


def test_lane_is_served_after_ten_intervals_with_backoff() -> None:
    turns, now, waits = LaneSchedule(timedelta(seconds=1), now=0.0), 10.0, list[float]()
    assert turns.next_lane(9.9) is None
    for lane in (Lane.CRITICAL, Lane.BATCH):
        turns.served(lane, 1000.0)
    for _ in range(6):
        assert turns.next_lane(now) is Lane.STANDARD
        turns.missed(Lane.STANDARD, now)
        waits.append(next(wait for wait in range(1, 100) if turns.next_lane(now + wait)))
        now += waits[-1]
    assert waits == [1, 2, 4, 8, 10, 10]
    assert turns.has_missed(Lane.STANDARD)
    turns.served(Lane.STANDARD, now)
    assert not turns.has_missed(Lane.STANDARD)
    assert turns.next_lane(now + 9.9) is None
    assert turns.next_lane(now + 10) is Lane.STANDARD
    turns.missed(Lane.STANDARD, now + 10)
    assert turns.next_lane(now + 11) is Lane.STANDARD


def test_lane_that_waited_longest_is_served_first() -> None:
    turns = LaneSchedule(timedelta(seconds=1), now=0.0)
    for at, lane in enumerate((Lane.BATCH, Lane.CRITICAL, Lane.STANDARD)):
        turns.served(lane, float(at))
    assert turns.next_lane(20.0) is Lane.BATCH
    turns.missed(Lane.BATCH, 20.0)
    assert turns.next_lane(20.0) is Lane.CRITICAL


def free_and_fill(slots: Slots, count: int) -> None:
    """Free slots and take them as a message would, until another thread has taken them."""
    pause = threading.Event()
    slots.release(Lane.STANDARD, count)
    while slots.take(Lane.STANDARD, count):
        pause.wait(0.001)
        slots.release(Lane.STANDARD, count)


def is_over(executing: Executing, run_id: UUID) -> bool:
    return bool(executing.database.value("SELECT NOT EXISTS (SELECT FROM job_runs WHERE run_id = %s)", [run_id]))


LARGE_BYTES = 250_000
FULL = 56  # attempts whose payload, in three forms each, is more than 40 MiB


@pytest.fixture
def large_gate() -> Iterator[str]:
    """A gate whose name is a large payload."""
    name = uuid4().hex.ljust(LARGE_BYTES, "x")
    GATES[name] = Gate()
    yield name
    GATES[name].opened.set()


@pytest.mark.landing
def test_large_payloads_of_one_tenant_stop_no_other_tenant_and_no_critical_run(
    executing: Executing, large_gate: str
) -> None:
    database = executing.database
    with Client(database.url) as client:
        client.tenants.create("acme")
    of_acme = {
        "small": submission("small", target="acts.echo"),
        "batch": submission("batch", target="acts.echo", lane="batch"),
        "large": submission("large", target="acts.order", payload={"to": "y" * LARGE_BYTES}),
    }
    database.submit("held", target="acts.wait", payload=large_gate)
    database.apply_batch(*(each | {"tenant": "acme"} for each in of_acme.values()))
    with executing.running(slots=100):
        for number in range(FULL):
            database.trigger("held")
            until(lambda: len(GATES[large_gate].entered) == number + 1, "it runs")  # noqa: B023 - called at once
        beyond = database.trigger("held")
        critical = executing.trigger("acts.echo", 1, lane="critical")
        assert executing.ended(critical).state == "succeeded"
        for key in of_acme:
            assert executing.ended(database.trigger(key, tenant="acme")).state == "succeeded"
        published = database.trigger("small", tenant="acme")
        executing.publish(published)
        assert executing.ended(published).state == "succeeded"
        assert executing.state(beyond) is RunState.QUEUED
        GATES[large_gate].opened.set()
        until(lambda: str(beyond) in GATES[large_gate].entered, "it runs once there is room")


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
def loaded(fresh_database: Database, info: StackInfo) -> Executing:
    return Executing(fresh_database, info.kafka).with_topics()


@pytest.mark.slow
def test_lost_message_is_swept_while_messages_fill_every_slot(loaded: Executing) -> None:
    name = uuid4().hex
    flood = FLOODS[name] = Flood()
    loaded.database.submit("drops", target="flood.drop")
    loaded.database.submit("others", target="flood.other")
    known = {handler: found for handler, found in registered().items() if handler.startswith("flood.")}
    with loaded.running(known=known, slots=10 * LOST, sweep=timedelta(milliseconds=200)):
        flooding = in_background(lambda: keep_flooding(loaded, name))
        try:
            until(lambda: brought_by_messages(loaded) > 2 * MAX_OUTSTANDING, "messages keep the executor busy")
            # Due at the same moment, and their messages are not published.
            lost = loaded.database.apply_batch(*[{"type": "job.trigger", "key": "others", "payload": name}] * LOST)
            ended = [loaded.ended(UUID(reply.run_id)) for reply in lost]
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
