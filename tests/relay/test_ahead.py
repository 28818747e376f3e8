"""Runs leave up to a second before they are due, if all executors of their queue keep such messages."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.database import ClockedDatabase
from tests.fixtures.services import until
from tests.relay.relaying import Relaying
from tests.relay.test_hold_back import open_runs, runs
from tidewheel.local.stack import StackInfo
from tidewheel.outbox import OutboxLane
from tidewheel.relay.ahead import Ahead

pytestmark = pytest.mark.kafka

SOON, LATER = timedelta(milliseconds=600), timedelta(seconds=30)
SLOTS, PER_SLOT = 4, 50
NOON = datetime(2026, 3, 29, 12, tzinfo=UTC)
CREDIT = 128  # what may leave without a count


@pytest.fixture
def stopped(clocked: ClockedDatabase, info: StackInfo) -> Iterator[Relaying]:
    """A relay whose database's clock is stopped."""
    clocked.stop_clock()
    made = Relaying(clocked, info.kafka)
    yield made
    made.close()


def register(relaying: Relaying, queue: str, *, keeps_early: bool) -> None:
    relaying.database.execute(
        "INSERT INTO executors (executor_id, name, queues, handlers, slots, last_heartbeat_at, started_at, keeps_early)"
        " VALUES (%s, 'e', %s, '{h}', %s, tidewheel_now(), tidewheel_now(), %s)",
        [uuid4(), [queue], SLOTS, keeps_early],
    )


def test_run_leaves_early_where_every_executor_keeps_it(stopped: Relaying, clocked: ClockedDatabase) -> None:
    early, mixed, other = (stopped.topic(f"runs.{name}standard") for name in ("", "mixed.", "other."))
    register(stopped, "default", keeps_early=True)
    register(stopped, "mixed", keeps_early=True)
    register(stopped, "mixed", keeps_early=False)
    for topic in (early, mixed, other):
        stopped.write(*runs(stopped, topic, "a", 3, publish_at=stopped.due_at(SOON)))
    stopped.write(*runs(stopped, early, "b", 2, publish_at=stopped.due_at(LATER)))
    with stopped.running(topic_prefix=stopped.prefix):
        until(lambda: len(stopped.arrived(early)) == 3, "those of the first queue have left")
        assert stopped.left() == 3 + 3 + 2
        clocked.advance(SOON)
        until(lambda: stopped.left() == 2, "the others leave at their time")
        clocked.advance(LATER - SOON)
        stopped.until_empty()
    assert stopped.values(early) == [b"a"] * 3 + [b"b"] * 2


def test_early_runs_are_bounded_and_the_rest_leaves_at_its_time(stopped: Relaying, clocked: ClockedDatabase) -> None:
    topic = stopped.topic("runs.standard")
    register(stopped, "default", keeps_early=True)
    burst = runs(stopped, topic, "a", 1000, publish_at=stopped.due_at(SOON))
    open_runs(stopped.database, burst)
    stopped.write(*burst)
    with stopped.running(topic_prefix=stopped.prefix):
        until(lambda: 1000 - stopped.left() >= SLOTS * PER_SLOT - 1, "as many have left as the slots allow")
        stopped.write(*runs(stopped, topic, "b", 1))
        until(lambda: b"b" in stopped.values(topic), "a run that is due passes those that are not")
        assert len(stopped.arrived(topic)) <= SLOTS * PER_SLOT + CREDIT + 1
        clocked.advance(SOON)
        stopped.database.execute("DELETE FROM job_runs")  # all are claimed
        stopped.until_empty()
    assert sorted(each.key or b"" for each in stopped.arrived(topic) if each.value == b"a") == sorted(
        row.key or b"" for row in burst
    )


@given(
    st.lists(
        st.tuples(st.floats(0, 0.5), st.sampled_from(["read", "cut short", "some left", "all left"]), st.floats(0, 1)),
        max_size=30,
    ),
    st.floats(0, 3),
)
def test_relay_wakes_only_to_read(steps: list[tuple[float, str, float]], later: float) -> None:
    """A relay that wakes for a row that it may not read yet would turn in circles until then."""
    now, lane = NOON, OutboxLane.STANDARD
    ahead = Ahead(None, lambda: now)
    ahead.slots = {"t": 1}
    for pause, event, at in steps:
        now += timedelta(seconds=pause)
        reach = ahead.reach()
        if event in ("read", "cut short"):
            ahead.read(reach, now, [lane] if event == "cut short" else [])
        elif lane in reach:
            ahead.left(lane, now + at * reach[lane], all_of_them=event == "all left")
    due = now + timedelta(seconds=later)
    wakes_at = ahead.wakes_at(lane, due)
    assert wakes_at <= due
    now = max(now, wakes_at)
    assert due <= now + ahead.reach().get(lane, timedelta(0))
