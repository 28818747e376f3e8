"""Low-water marks hide processed rows only: a timer due before its shard's mark is still found."""

from datetime import UTC, datetime, timedelta
from typing import LiteralString

import pytest

from tests.fixtures.database import Database
from tests.fixtures.services import until
from tests.scheduler.test_loop import members, running
from tidewheel.postgres.low_water import BEGINNING, FullScanPacer, LowWaterMarks

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
LEFT: LiteralString = "SELECT t.due_at FROM timers AS t JOIN jobs AS j USING (job_id) WHERE j.key = 'late'"


def polled(earliest: dict[int, datetime | None], *, now: datetime = NOON) -> LowWaterMarks[int]:
    """Return marks after one full scan with these earliest rows."""
    marks = LowWaterMarks[int]()
    marks.scan_from(sorted(earliest))
    marks.record(earliest, now)
    return marks


def test_next_poll_starts_a_second_before_the_clock_or_at_the_backlog() -> None:
    marks = polled({0: NOON + 5 * SECOND, 1: None, 2: NOON - 60 * SECOND})
    assert marks.scan_from([0, 1, 2, 3]) == [NOON - SECOND, NOON - SECOND, NOON - 61 * SECOND, BEGINNING]


def test_marks_of_more_keys_than_are_kept_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tenants come and go; a key without a mark is read from the start."""
    monkeypatch.setattr("tidewheel.postgres.low_water._MOST_MARKS", 3)
    marks = polled({0: None, 1: None})
    for keys in ([2, 3], [4, 5]):
        marks.scan_from(keys)
        marks.record(dict.fromkeys(keys), NOON)
    assert marks.of(range(6)) == dict.fromkeys(range(4), BEGINNING) | dict.fromkeys((4, 5), NOON - SECOND)


def test_clock_jump_back_lowers_the_marks() -> None:
    marks = polled({0: None})
    marks.scan_from([0])
    marks.record({0: None}, NOON - timedelta(hours=1))
    assert marks.of([0]) == {0: NOON - timedelta(hours=1) - SECOND}


def test_woken_loop_scans_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("tidewheel.postgres.low_water.monotonic_seconds", lambda: now)
    marks = polled({0: None})
    now += 0.1
    assert marks.scan_from([0]) != [BEGINNING]
    marks.scan_soon()
    assert marks.scan_from([0]) == [BEGINNING]


def test_partial_scan_does_not_end_slow_pacing(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("tidewheel.postgres.low_water.monotonic_seconds", lambda: now)
    pacer = FullScanPacer()
    pacer.record(3.0)
    pacer.record(0.01, whole=False)
    assert pacer.slow
    now += 59.9
    assert not pacer.start(), "nor sooner due"
    now += 0.2
    assert pacer.start()
    pacer.record(0.01)
    assert not pacer.slow


def test_long_full_scans_are_split(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes a second for each shard; in the end each shard is walked alone, and all of them in turn."""
    now = 100.0
    monkeypatch.setattr("tidewheel.postgres.low_water.monotonic_seconds", lambda: now)
    shards = list(range(8))
    marks = polled(dict.fromkeys(shards))
    walked: list[list[int]] = []
    for _ in range(20):
        now += 1000.0
        walked.append([shard for shard, at in zip(shards, marks.scan_from(shards), strict=True) if at == BEGINNING])
        now += len(walked[-1])
        marks.record(dict.fromkeys(shards), NOON)
    assert [len(some) for some in walked[:4]] == [8, 4, 2, 1]
    assert sorted(shard for some in walked[-8:] for shard in some) == shards
    for _ in range(5):
        now += 1000.0
        walked.append([shard for shard, at in zip(shards, marks.scan_from(shards), strict=True) if at == BEGINNING])
        marks.record(dict.fromkeys(shards), NOON)
    assert walked[-1] == shards, "quick again, all at once"


def test_shard_absent_from_some_polls_is_scanned_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a lane is that has no free slot at the moment."""
    now = 100.0
    monkeypatch.setattr("tidewheel.postgres.low_water.monotonic_seconds", lambda: now)
    marks = polled(dict.fromkeys([0, 1, 2]))
    walked: list[int] = []
    for keys in [[0, 1, 2], [0]] * 10:
        now += 1000.0
        walked += [key for key, at in zip(keys, marks.scan_from(keys), strict=True) if at == BEGINNING]
        now += 1.0
        marks.record(dict.fromkeys(keys), NOON)
    assert {0, 1, 2} <= set(walked[-8:])


def test_full_scans_take_at_most_a_twentieth_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("tidewheel.postgres.low_water.monotonic_seconds", lambda: now)
    pacer = FullScanPacer()
    assert pacer.start()
    now += 3.0
    pacer.finish()
    pacer.scan_soon()
    now += 59.9
    assert not pacer.start()
    now += 0.2
    assert pacer.start()
    assert pacer.start(), "one that has failed is made again at once"
    now += 0.01
    pacer.finish()
    now += 0.9
    assert not pacer.start()
    pacer.scan_soon()
    assert pacer.start()


@pytest.mark.postgres
def test_timer_due_before_the_mark_is_found_by_the_next_full_scan(database: Database) -> None:
    database.submit("steady", schedule="@every 1s", overlap="allow_all")
    database.submit("late", schedule={"once": (database.now() + timedelta(hours=1)).isoformat()})
    with running(database, lookahead=timedelta(0)):
        until(lambda: members(database) == 1 and len(database.job_runs()) >= 2, "it has looked more than once")
        # Its own instant is an hour ahead: the scheduler that reads it puts it back there.
        database.execute(
            "UPDATE timers AS t SET due_at = %(at)s FROM jobs AS j WHERE j.job_id = t.job_id AND j.key = 'late'",
            {"at": database.now() - 30 * SECOND},
        )
        until(lambda: database.value(LEFT) > database.now(), "it was looked at")
