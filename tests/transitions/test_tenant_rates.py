"""Rates of keys and of tenants: kept although promotions and claims come late, also after an outage."""

import heapq
import random
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from uuid import UUID, uuid4

import pytest
from psycopg.conninfo import make_conninfo

from tests.fixtures.acts import cancelling, ending, submission
from tests.fixtures.database import ClockedDatabase, Database
from tests.transitions.graphs import end_and_drain
from tidewheel.control.client.client import Client
from tidewheel.postgres.session import RowsLocked, connect
from tidewheel.runs import RunState
from tidewheel.scheduler import concurrency_keys
from tidewheel.scheduler.concurrency_keys import KeyDuties
from tidewheel.transitions import held_back
from tidewheel.transitions.places import Arrival, KeyRow, Limit, admit
from tidewheel.transitions.tenant_rates import Ring, TenantRates

TRIGGER = {"type": "job.trigger", "key": "job"}
HELD = "SELECT count(*) FROM job_runs WHERE waits_for IS NOT NULL"


class _Run(NamedTuple):
    run_id: UUID
    tenant: str
    publish_at: datetime


@pytest.fixture
def rated(clocked: ClockedDatabase) -> ClockedDatabase:
    clocked.stop_clock()
    clocked.submit()
    return clocked


@pytest.fixture
def duties(rated: ClockedDatabase) -> KeyDuties:
    return KeyDuties(rated.session(), rated.installation)


def limit(database: ClockedDatabase, rate: float | None) -> None:
    with Client(database.url) as client:
        client.tenants.limit("default", triggers_per_second=rate)
    database.installation.rates.forget()


def flood(database: ClockedDatabase, runs: int) -> None:
    replies = database.apply_batch(*[TRIGGER] * runs)
    assert {reply.status for reply in replies} == {"accepted"}


def test_flood_is_delayed_and_held_and_none_is_lost(rated: ClockedDatabase, duties: KeyDuties) -> None:
    limit(rated, 10)
    for _ in range(3):
        flood(rated, 100)
        rated.advance(timedelta(milliseconds=1))
    assert rated.value(HELD) == 300 - 110
    for _ in range(32):
        rated.advance(timedelta(seconds=1))
        duties.pace()
    assert rated.value(HELD) == 0
    due = [run.publish_at for run in rated.job_runs()]
    assert len(due) == 300
    assert max(due[:100]) <= min(due[100:200])
    assert max(due[100:200]) <= min(due[200:])
    assert most_in(timedelta(seconds=1), due) <= 20
    assert most_in(timedelta(seconds=10), due) <= 110
    assert len(rated.requests()) == 300


def test_edit_during_a_backlog_applies_and_a_lifted_rate_queues_all(rated: ClockedDatabase, duties: KeyDuties) -> None:
    limit(rated, 1)
    flood(rated, 300)
    held = rated.value(HELD)
    limit(rated, 50)
    for _ in range(2):
        rated.advance(timedelta(seconds=1))
        duties.pace()
    left = rated.value(HELD)
    assert held - left >= 100
    limit(rated, None)
    duties.pace()
    assert rated.value(HELD) == 0
    assert rated.count("tenant_rates") == 0
    assert len(rated.requests()) == 300


def test_runs_under_the_rate_and_of_tenants_without_one_leave_at_once(
    rated: ClockedDatabase, duties: KeyDuties
) -> None:
    flood(rated, 5)
    assert rated.count("tenant_rates") == 0
    limit(rated, 10)
    flood(rated, 5)
    assert len({run.publish_at for run in rated.job_runs()}) == 1
    rated.apply_batch(TRIGGER | {"delay": "1h"})
    assert rated.value(HELD) == 1
    flood(rated, 1)
    assert rated.value(HELD) == 1
    assert duties.pace() == (0, False)
    rated.advance(timedelta(minutes=59, seconds=59))
    assert duties.pace() == (1, False)
    [late] = [run for run in rated.job_runs() if run.publish_at > rated.job_runs()[0].publish_at]
    assert late.publish_at == late.scheduled_at


def test_held_run_can_be_cancelled(rated: ClockedDatabase) -> None:
    limit(rated, 1)
    flood(rated, 30)
    [(run,)] = rated.rows("SELECT run_id FROM job_runs WHERE waits_for IS NOT NULL LIMIT 1")
    held = rated.value(HELD)
    rated.apply(cancelling(run))
    assert rated.value(HELD) == held - 1


def test_places_are_taken_in_the_schema_of_the_users_search_path(fresh_database: Database) -> None:
    with Client(fresh_database.url) as client:
        client.tenants.limit("default", triggers_per_second=1)
    run = _Run(uuid4(), "default", fresh_database.now())
    fresh_database.execute("ALTER SCHEMA public RENAME TO shop")
    with (
        closing(TenantRates()) as rates,
        closing(connect(make_conninfo(fresh_database.url, options="-c search_path=shop"), "test")) as connection,
    ):
        assert rates.shape(connection, [run]) == ({}, set())
        assert connection.execute("SELECT count(*) FROM tenant_rates").fetchone() == (1,)


def test_run_held_by_an_open_transaction_survives_a_lifted_rate(rated: ClockedDatabase, duties: KeyDuties) -> None:
    limit(rated, 1)
    with connect(rated.url, "second") as second:
        with second.transaction():
            rated.apply_batch_within(second, *[TRIGGER] * 30)
            limit(rated, None)
            duties.pace()
        assert rated.value(HELD) == 19
    duties.pace()
    assert rated.value(HELD) == 0
    assert len(rated.requests()) == 30
    assert rated.count("tenant_rates") == 0


def test_newcomers_stay_behind_runs_that_an_open_transaction_holds(rated: ClockedDatabase, duties: KeyDuties) -> None:
    limit(rated, 1)
    with connect(rated.url, "second") as second, second.transaction():
        rated.apply_batch_within(second, *[TRIGGER] * 30)
        rated.advance(timedelta(seconds=20))
        duties.pace()
        flood(rated, 1)
        assert rated.value(HELD) == 1
    duties.pace()
    [(newest,)] = rated.rows("SELECT run_id FROM job_runs ORDER BY created_at DESC, run_id DESC LIMIT 1")
    waiting = {run for (run,) in rated.rows("SELECT run_id FROM job_runs WHERE waits_for IS NOT NULL")}
    assert newest in waiting
    assert len(waiting) < 20


def test_held_run_keeps_its_own_time(rated: ClockedDatabase, duties: KeyDuties) -> None:
    failed = rated.begun()
    rated.end(ending(failed, RunState.FAILED))
    limit(rated, 1)
    retried_at = rated.advance(timedelta(seconds=1))
    rated.apply_batch({"type": "run.retry", "run_id": str(failed.run_id), "delay": "1h"})
    assert rated.value(HELD) == 1
    assert duties.pace() == (0, False)
    rated.advance(timedelta(minutes=59, seconds=59))
    assert duties.pace() == (1, False)
    [run] = rated.job_runs()
    assert run.publish_at == retried_at + timedelta(hours=1)


def test_lifted_rate_queues_a_backlog_in_steps(
    rated: ClockedDatabase, duties: KeyDuties, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(rated, 1)
    flood(rated, 311)
    limit(rated, None)
    for module in (concurrency_keys, held_back):
        monkeypatch.setattr(module, "MAX_RELEASED", 5)
    monkeypatch.setattr(concurrency_keys, "_STEP_SECONDS", 0.02)
    steps = [duties.pace()]
    while steps[-1][1]:
        steps.append(duties.pace())
    assert len(steps) > 1
    assert sum(queued for queued, _ in steps) == 300


def test_locked_places_stop_runs_of_limited_tenants_only_and_not_for_long(rated: ClockedDatabase) -> None:
    with Client(rated.url) as client:
        client.tenants.create("limited", triggers_per_second=1)
    limited = {"tenant": "limited"}
    rated.apply_batch(submission() | limited)
    rated.apply_batch(TRIGGER | limited)
    with connect(rated.url, "second") as second, second.transaction():
        second.execute("SELECT FROM tenant_rates FOR UPDATE")
        with pytest.raises(RowsLocked):
            rated.apply_batch(TRIGGER | limited)
        flood(rated, 1)
    rated.apply_batch(TRIGGER | limited)
    assert len(rated.requests()) == 3


def test_unblocked_runs_take_places(rated: ClockedDatabase, duties: KeyDuties) -> None:
    children: list[dict[str, object]] = [{"ref": str(n), "key": "job", "after": ["root"]} for n in range(30)]
    rated.apply_batch({"type": "batch.submit", "runs": [{"ref": "root", "key": "job"}, *children]})
    limit(rated, 1)
    end_and_drain(rated)
    assert rated.value(HELD) == 19
    assert len(rated.requests()) == 1 + 11
    for _ in range(30):
        rated.advance(timedelta(seconds=1))
        duties.pace()
    due = sorted(run.publish_at for run in rated.job_runs())
    assert len(rated.requests()) == 31
    assert due[-1] - due[0] >= timedelta(seconds=28)


START = datetime(2026, 11, 20, 12, tzinfo=UTC)
HOLDER = Arrival(UUID(int=1), 1, holds=True, scheduled_at=START)
LATE = timedelta(milliseconds=250)


def starts(
    every: timedelta, burst: int, until: timedelta, claimed_at: Callable[[datetime], datetime]
) -> list[datetime]:
    """Return the times at which waiting runs of a key start; `claimed_at` has the claim of a promotion."""
    chance = random.Random(1)  # noqa: S311 - repeatable
    limit = Limit(None, every // timedelta(microseconds=1), burst)
    row = KeyRow(1, running=0, unclaimed=0, has_waiters=True, limit=limit, tat=None, wake_at=START)
    claims: list[tuple[datetime, int]] = []  # when so many promoted runs start
    started: list[datetime] = []
    wake: datetime | None = START
    while (now := min([*(at for at, _ in claims[:1]), wake or START + until])) < START + until:
        claimed = heapq.heappop(claims)[1] if claims and claims[0][0] == now else 0
        started += [now] * claimed
        assert admit({1: row}, [HOLDER] * claimed, now) == []
        found = row.wanted(now)
        row.promote(found, found, now, more=True)
        if found:
            heapq.heappush(claims, (claimed_at(now), found))
        wake = row.wake_at and row.wake_at + timedelta(milliseconds=chance.uniform(0, 50))
    return started


@pytest.mark.parametrize(("a_minute", "hop"), [(1, 20), (100, 20), (600, 20), (6_000, 20), (600, 200), (60_000, 150)])
def test_rate_is_kept_within_a_hundredth(a_minute: int, hop: int) -> None:
    minutes = 10 if a_minute < 6_000 else 1
    found = starts(
        timedelta(minutes=1) / a_minute, 1, timedelta(minutes=minutes), lambda now: now + timedelta(milliseconds=hop)
    )
    assert abs(len(found) - a_minute * minutes) <= max(a_minute * minutes / 100, 1)


@pytest.mark.parametrize("a_minute", [1, 60, 600, 6_000])
@pytest.mark.parametrize("burst", [1, 5])
def test_outage_adds_a_quarter_of_a_second_to_the_burst(a_minute: int, burst: int) -> None:
    every, back = timedelta(minutes=1) / a_minute, START + timedelta(minutes=10)
    found = starts(every, burst, timedelta(minutes=12), lambda now: max(now, back) + timedelta(milliseconds=20))
    for window in (timedelta(seconds=1), timedelta(seconds=10), timedelta(minutes=1)):
        most = (window + LATE) // every + burst
        for first, last in zip(found, found[most:], strict=False):
            assert last - first >= window, f"more than {most} starts in {window} from {first}"
    assert len(found) >= (timedelta(minutes=2) // every) * 0.99


MINUTE = timedelta(minutes=1)


def most_in(window: timedelta, times: list[datetime]) -> int:
    times = sorted(times)
    first, most = 0, 0
    for last, at in enumerate(times):
        while at - times[first] >= window:
            first += 1
        most = max(most, last - first + 1)
    return most


def flood_of(per_second: float, offered: int, seconds: int) -> list[datetime]:
    """Return the times at which runs are due that a flood_of offers, with the pacer's looks each second."""
    ring, held, due = Ring(per_second), 0, list[datetime]()
    for second in range(seconds):
        for tick in range(10):
            now = START + timedelta(seconds=second, milliseconds=100 * tick + 3)
            ring.forget_past(now)
            for _ in range(offered // 10):
                at = None if held else ring.place(now)
                held += at is None
                due += [] if at is None else [at]
            if tick == 5:
                while held and (at := ring.place(now, reach=2, spaced=True)) is not None:
                    held -= 1
                    due.append(at)
    return due


@pytest.mark.parametrize("per_second", [100.0, 7.5, 1.0, 0.5, 0.01])
def test_flood_is_within_a_hundredth_of_the_rate_in_any_minute(per_second: float) -> None:
    due = flood_of(per_second, 1000, 180 if per_second > 0.1 else 600)
    within = [at for at in due if at >= START + timedelta(seconds=1)]
    assert most_in(MINUTE, within) <= max(per_second * 60 * 1.01, per_second * 60 + 1)
    assert len(due) >= per_second * (170 if per_second > 0.1 else 590) - 1


def test_timers_written_ahead_delay_no_trigger_under_the_limit() -> None:
    chance = random.Random(1)  # noqa: S311 - repeatable
    ring, delays = Ring(100), list[timedelta]()
    for step in range(600):
        now = START + timedelta(milliseconds=100 * step)
        ring.forget_past(now)
        for _ in range(2):
            assert ring.place(now + timedelta(seconds=5)) is not None
        for _ in range(2):
            at = now + timedelta(milliseconds=chance.uniform(0, 50))
            due = ring.place(at)
            assert due is not None
            delays.append(due - at)
    assert max(delays) == timedelta(0)
