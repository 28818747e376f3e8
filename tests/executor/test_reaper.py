"""An executor is lost only after its counter was seen unchanged for the whole lease."""

from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.executor.running import ENTER, hold_row
from tests.fixtures.database import Database
from tests.transitions.stepping import in_background, until_blocked
from tidewheel.executor.reaper import Reaper, Watch
from tidewheel.process.service import Shutdown
from tidewheel.transitions.requeue import Wait, wait_runs

LEASE = timedelta(seconds=15)
A, B = UUID(int=1), UUID(int=2)


def test_database_restart_ends_no_lease() -> None:
    watch = Watch(LEASE)
    for now in range(15):
        assert watch.observe({A: 5}, "before", float(now)) == []
    assert watch.observe({A: 5}, "after", 15.0) == []
    for now in range(16, 21):
        assert watch.observe({A: 5}, "after", float(now)) == []  # it may beat only now
    assert watch.observe({A: 5}, "after", 21.0) == [(A, 5)]  # 14 s before, 1 s after


def test_database_outage_counts_for_no_lease() -> None:
    watch = Watch(LEASE)
    for now in range(15):
        watch.observe({A: 5}, "s", float(now))
    watch.interrupt()
    assert watch.observe({A: 5}, "s", 15.0) == []
    assert [watch.observe({A: 5}, "s", float(now)) for now in range(100, 106)] == [[]] * 6
    assert watch.observe({A: 5}, "s", 106.0) == [(A, 5)]


def at(*seconds: float, of: UUID = A, counter: int = 5) -> list[tuple[float, dict[UUID, int]]]:
    return [(second, {of: counter}) for second in seconds]


NONE: list[list[UUID]] = [[]]


@pytest.mark.parametrize(
    ("looks", "found"),
    [
        # 13 s before the gap, two after five of grace.
        ([*at(*range(14)), *at(*range(20, 28))], NONE * 21 + [[A]]),
        ([*at(*range(17)), *at(*range(20, 26))], NONE * 15 + [[A]] * 2 + NONE * 5 + [[A]]),
        ([*at(*range(10)), *at(10, 11, of=B, counter=1), *at(12, 16)], NONE * 14),
    ],
    ids=["suspended reaper", "silence before a break", "executor that returns"],
)
def test_gap_counts_for_no_lease(looks: list[tuple[float, dict[UUID, int]]], found: list[list[UUID]]) -> None:
    watch = Watch(LEASE)
    assert [[executor for executor, _ in watch.observe(counters, "s", now)] for now, counters in looks] == found


Outages = list[tuple[float, float]]


def starts_after(outages: Outages) -> tuple[list[tuple[float, float]], float]:
    """Turn pairs of answering and silent seconds into outages with their instants; return also the end."""
    found: list[tuple[float, float]] = []
    now = 0.0
    for answering, away in outages:
        found.append((now + answering, now + answering + away))
        now += answering + away
    return found, now + 60.0


def away(outages: list[tuple[float, float]], now: float) -> int | None:
    return next((number for number, (start, end) in enumerate(outages) if start <= now < end), None)


def first_reaped(outages: list[tuple[float, float]], until: float, *, dies_at: float, beat_phase: float) -> float:
    """Play an executor and a reaper beside a server that goes away and returns.

    The executor sends a heartbeat every 5 s, and a failed one again after 4 s.

    Returns:
        The instant at which the reaper finds the executor silent; infinity if it does not.
    """
    watch, counter, next_beat, next_poll, tick = Watch(LEASE), 1, beat_phase, 0.0, 0.1
    for step in range(int(until / tick)):
        now = step * tick
        if next_beat <= now < dies_at:
            answered = away(outages, now) is None
            counter += answered
            next_beat = now + (5.0 if answered else 4.0)
        if next_poll <= now:
            next_poll = now + 1.0
            if away(outages, now) is not None:
                watch.interrupt()
            else:
                restarts = sum(end <= now for _, end in outages)
                if watch.observe({A: counter}, restarts, now):
                    return now
    return float("inf")


GAPS = st.lists(st.tuples(st.floats(0.5, 40.0), st.floats(0.1, 20.0)), max_size=20)


@given(GAPS, st.floats(0.0, 5.0))
def test_no_sequence_of_outages_ends_the_lease_of_a_live_executor(gaps: Outages, beat_phase: float) -> None:
    outages, until = starts_after(gaps)
    assert first_reaped(outages, until, dies_at=until, beat_phase=beat_phase) == float("inf")


@given(st.lists(st.tuples(st.floats(10.0, 12.0), st.floats(0.1, 3.0)), min_size=10, max_size=10), st.floats(0.0, 40.0))
def test_frequent_short_outages_delay_a_reap_to_three_leases_of_answering_time(gaps: Outages, dies_at: float) -> None:
    outages, until = starts_after(gaps)
    reaped = first_reaped(outages, until, dies_at=dies_at, beat_phase=0.0)
    answering = sum(1 for tenth in range(int(dies_at * 10), int(reaped * 10)) if away(outages, tenth / 10) is None) / 10
    assert answering <= 3 * LEASE.total_seconds()


def test_outage_each_quarter_of_a_minute_delays_a_reap_to_two_leases() -> None:
    outages, until = starts_after([(15.0, 1.0)] * 10)
    assert first_reaped(outages, until, dies_at=1.0, beat_phase=0.0) <= 2 * LEASE.total_seconds() + 5.0


@pytest.fixture
def ghost(database: Database) -> UUID:
    executor_id = uuid4()
    database.execute(ENTER, [executor_id])
    database.submit(payload="job")
    return executor_id


def reap(database: Database, *, max_lost: int = 10, looks: int = 1) -> None:
    """Look as a reaper does, with a lease of no length, so that the first look decides."""
    reaper = Reaper(database.session(), database.installation, lease=timedelta(0), max_lost=max_lost, stop=Shutdown())
    for _ in range(looks):
        reaper.step()


def test_reaper_waits_for_the_lease_that_the_executor_registered() -> None:
    watch, told = Watch(timedelta(seconds=2)), {A: 15.0}
    looks = [watch.observe({A: 1}, "up", float(now), told) for now in range(17)]
    assert [bool(silent) for silent in looks] == [False] * 15 + [True] * 2


def test_lost_attempts_are_requeued_uncounted_with_their_payload(database: Database, ghost: UUID) -> None:
    run_id = database.trigger(payload="own")
    database.begin(run_id, ghost)
    for _ in range(2):  # two reapers end it once
        reap(database, looks=2)
    run = database.open_run(run_id)
    assert (run.state, run.attempt, run.failed_attempts, run.lost_attempts, run.executor_id) == (
        "retrying",
        1,
        0,
        1,
        None,
    )
    assert database.attempts(run_id) == [(1, "lost")]
    assert [(request.attempt, request.payload) for request in database.requests()] == [(1, b'"own"'), (2, b'"own"')]
    assert database.count("executors") == 0


def test_lost_run_under_cancellation_ends_cancelled(database: Database, ghost: UUID) -> None:
    runs: dict[str, UUID] = {}
    for delivery in ("at_least_once", "at_most_once"):
        database.submit(delivery, delivery=delivery)
        runs[delivery] = database.trigger(delivery)
        database.begin(runs[delivery], ghost)
        database.apply_batch({"type": "run.cancel", "run_id": str(runs[delivery])})
    reap(database)
    for delivery, run_id in runs.items():
        assert database.final_state(run_id) == ("cancelled", "requested"), delivery
    assert database.count("signals") == 0


def test_run_that_loses_every_executor_fails(database: Database, ghost: UUID) -> None:
    run_id = database.trigger()
    database.execute("UPDATE job_runs SET lost_attempts = 2")
    database.begin(run_id, ghost)
    reap(database, max_lost=3)
    assert database.final_state(run_id) == ("failed", "max_lost")
    assert database.attempts(run_id) == [(1, "lost")]
    [letter] = database.dead_letters()
    assert letter.error is not None
    assert (letter.error.type, letter.error.message) == (
        "Lost",
        "the executor was lost 3 times during attempts of this run",
    )
    assert [attempt.outcome for attempt in letter.attempts] == ["lost"]


def test_lost_at_most_once_run_has_an_unknown_outcome(database: Database, ghost: UUID) -> None:
    database.submit("once", delivery="at_most_once")
    once, other = database.trigger("once"), database.trigger()
    for run_id in (once, other):
        database.begin(run_id, ghost)
    reap(database)
    assert database.final_state(once) == ("failed", "unknown_outcome")
    assert database.attempts(once) == [(1, "lost")]
    [letter] = database.dead_letters()
    assert letter.error is not None
    assert letter.error.type == "unknown_outcome"
    assert "may have had its effect" in letter.error.message
    assert database.open_run(other).state == "retrying"


def test_executor_with_a_new_heartbeat_is_not_reaped(database: Database, ghost: UUID) -> None:
    run_id = database.trigger()
    database.begin(run_id, ghost)
    reaper = Reaper(
        database.session(), database.installation, lease=timedelta(seconds=15), max_lost=10, stop=Shutdown()
    )
    reaper.step()
    database.execute("UPDATE executors SET heartbeat_count = heartbeat_count + 1")
    reaper.step()
    assert database.open_run(run_id).state == "running"
    assert database.count("executors") == 1


def test_locked_row_is_reaped_later(database: Database, ghost: UUID, caplog: pytest.LogCaptureFixture) -> None:
    """The others go back at once; the lease stays open until the last of its runs is off it."""
    held, free = database.trigger(), database.trigger()
    for run_id in (held, free):
        database.begin(run_id, ghost)
    holding = hold_row(database, held)
    with caplog.at_level("INFO", "tidewheel.executor"):
        reap(database, looks=3)
    lines = [record.getMessage().removeprefix(f"executor {ghost} ") for record in caplog.records]
    assert lines == [
        "missed its lease; attempts ended as lost: 1",
        "missed its lease, but other transactions lock 1 of its runs, which end as lost later",
    ]
    assert database.open_run(free).state == "retrying"
    assert database.open_run(held).state == "running"
    assert database.count("executors") == 1
    holding.rollback()
    reap(database)
    assert database.open_run(held).state == "retrying"
    assert database.count("executors") == 0


def test_lost_attempt_cannot_start_to_wait_after_the_reaper_has_read_it(database: Database, ghost: UUID) -> None:
    """Else the target that accepted the work with 202 is called again: a waiting run may be requeued too."""
    started = database.begin(database.trigger(), ghost)
    waits = [Wait(started.run_id, started.attempt, ghost, timedelta(hours=1))]
    blocking, session = database.connection(), database.session()
    reaping_connection = session.connection()
    blocking.execute("LOCK TABLE job_versions")  # the reaper reads definitions between its read and its writes
    reaper = Reaper(session, database.installation, lease=timedelta(0), max_lost=10, stop=Shutdown())
    reaping = in_background(reaper.step)
    until_blocked(database, reaping_connection)
    with database.transaction() as connection:
        assert wait_runs(connection, waits).busy == {started.run_id}
    blocking.rollback()
    reaping.result(timeout=30)
    assert database.open_run(started.run_id).state == "retrying"
    with database.transaction() as connection:
        assert not wait_runs(connection, waits).busy
    assert database.attempts(started.run_id) == [(1, "lost")]


def test_wait_that_commits_during_a_reap_keeps_its_attempt(database: Database, ghost: UUID) -> None:
    started = database.begin(database.trigger(), ghost)
    waits = [Wait(started.run_id, started.attempt, ghost, timedelta(hours=1))]
    executor = database.connection()
    wait_runs(executor, waits)
    reap(database)
    assert database.count("executors") == 1
    executor.commit()
    reap(database)
    run = database.open_run(started.run_id)
    assert (run.state, run.attempt, run.executor_id) == ("waiting", 1, ghost)
    assert database.attempts(started.run_id) == []
    assert database.count("executors") == 0
