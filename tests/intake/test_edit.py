"""An edit near a fire neither doubles nor loses an occurrence."""

from datetime import timedelta
from uuid import UUID

import pytest

from tests.fixtures.acts import EXECUTOR, about
from tests.fixtures.database import ClockedDatabase
from tests.scheduler.firing import fire_due
from tidewheel.transitions.claim import claim_runs

SECOND = timedelta(seconds=1)
AHEAD = 5 * SECOND
EACH_SECOND = {"schedule": "@every 1s", "overlap": "allow_all"}


@pytest.fixture
def ticking(clocked: ClockedDatabase) -> ClockedDatabase:
    """A job that fires each second and may overlap; the clock is stopped."""
    clocked.stop_clock()
    clocked.submit(**EACH_SECOND)
    return clocked


def made(database: ClockedDatabase) -> list[tuple[float, int]]:
    """The runs there are: instant in seconds from the first acceptance, and version."""
    [(accepted_at,)] = database.rows("SELECT created_at FROM jobs")
    found = database.rows("SELECT scheduled_at, job_version FROM runs ORDER BY scheduled_at")
    return [((at - accepted_at).total_seconds(), version) for at, version in found]


def test_edit_within_the_lookahead_keeps_one_run_per_unchanged_instant(
    ticking: ClockedDatabase,
) -> None:
    fire_due(ticking, lookahead=AHEAD)
    before = {run.run_id for run in ticking.job_runs()}
    edited = ticking.submit(**EACH_SECOND, payload=1)
    assert edited.next_run_at == ticking.now() + SECOND
    fire_due(ticking, lookahead=AHEAD)
    assert made(ticking) == [(n, 2) for n in (1, 2, 3, 4, 5)]
    assert {run.run_id for run in ticking.job_runs()} == before


def test_stale_message_after_an_edit_claims_nothing(ticking: ClockedDatabase) -> None:
    """The run has its old id and a new version: the message of the old version finds nothing that fits."""
    fire_due(ticking, lookahead=AHEAD)
    stale = ticking.requested_claim(ticking.job_runs()[0].run_id)
    ticking.submit(**EACH_SECOND, payload=1)
    fire_due(ticking, lookahead=AHEAD)
    ticking.advance(SECOND)
    with ticking.transaction() as connection:
        assert claim_runs(connection, ticking.installation, [stale], executor_id=EXECUTOR).started == []
    assert len(ticking.claim(stale.run_id).started) == 1


def test_edit_within_the_lookahead_retracts_runs_of_old_instants(
    ticking: ClockedDatabase,
) -> None:
    fire_due(ticking, lookahead=AHEAD)
    ticking.advance(timedelta(seconds=1.5))
    ticking.submit(schedule="@every 3s", overlap="allow_all")
    assert made(ticking) == [(1, 1)]
    fire_due(ticking, lookahead=AHEAD)
    assert made(ticking) == [(1, 1), (4.5, 2)]


def test_edit_applies_overdue_occurrences_by_the_version_in_force(ticking: ClockedDatabase) -> None:
    ticking.advance(timedelta(seconds=3.5))
    ticking.submit(**EACH_SECOND, payload=1)
    assert made(ticking) == [(1, 1), (2, 1), (3, 1)]
    fire_due(ticking, lookahead=2 * SECOND)
    assert made(ticking) == [(1, 1), (2, 1), (3, 1), (4, 2), (5, 2)]


def test_edit_after_an_outage_catches_up_once_and_records_skips(ticking: ClockedDatabase) -> None:
    ticking.advance(600 * SECOND)
    ticking.submit(schedule="@every 1h", overlap="allow_all")
    assert [version for _, version in made(ticking)] == [1] * 61
    assert ticking.rows("SELECT reason, occurrences, is_exact, job_version FROM skips") == [("misfire", 539, True, 1)]
    [event] = [event for event in ticking.lifecycle() if event.type.startswith("io.tidewheel.occurrence")]
    assert event.job_version == 1


def test_edit_does_not_change_started_runs(ticking: ClockedDatabase) -> None:
    fire_due(ticking, lookahead=AHEAD)
    ticking.advance(SECOND)
    first = ticking.job_runs()[0]
    ticking.begin(first.run_id)
    ticking.submit(schedule="@every 1h")
    assert [(run.run_id, run.state, run.job_version) for run in ticking.job_runs()] == [(first.run_id, "running", 1)]


def test_identical_submit_within_the_lookahead_retracts_nothing(ticking: ClockedDatabase) -> None:
    fire_due(ticking, lookahead=AHEAD)
    before = ticking.job_runs()
    again = ticking.submit(**EACH_SECOND)
    assert (again.unchanged, again.next_run_at) == (True, ticking.now() + SECOND)
    assert ticking.job_runs() == before


def test_delete_retracts_runs_ahead_and_cancels_unstarted_ones(ticking: ClockedDatabase) -> None:
    fire_due(ticking, lookahead=AHEAD)
    ticking.advance(2 * SECOND)
    first, second = ticking.job_runs()[:2]
    ticking.begin(first.run_id)
    [reply] = ticking.apply_batch(about("job.delete", reason="gone"))
    assert (reply.status, reply.job_version) == ("accepted", 1)
    assert [run.run_id for run in ticking.job_runs()] == [first.run_id]
    rows = ticking.rows("SELECT run_id, state, reason FROM runs ORDER BY scheduled_at")
    assert rows == [(first.run_id, "running", None), (second.run_id, "cancelled", "job_deleted")]
    assert ticking.count("timers") == 0
    assert (ticking.lifecycle()[-1].type, ticking.lifecycle()[-1].reason) == ("io.tidewheel.job.deleted.v1", "gone")


def test_repeated_delete_finds_no_job(ticking: ClockedDatabase) -> None:
    replies = ticking.apply_batch(about("job.delete"), about("job.delete"))
    assert [(reply.status, reply.code) for reply in replies] == [("accepted", None), ("rejected", "unknown_job")]


def test_job_recreated_within_the_lookahead_fires_each_instant_once(ticking: ClockedDatabase) -> None:
    """The instants are those of the new anchor; none of the old job's may be left beside them."""
    fire_due(ticking, lookahead=AHEAD)
    ticking.apply_batch(about("job.delete"))
    again = ticking.submit(**EACH_SECOND)
    assert again.job_version == 2
    fire_due(ticking, lookahead=AHEAD)
    assert made(ticking) == [(n, 2) for n in (1, 2, 3, 4, 5)]
    assert len({UUID(int=run.run_id.int) for run in ticking.job_runs()}) == 5
