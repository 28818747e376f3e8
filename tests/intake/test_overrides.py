"""`job.skip`, `job.move` and `job.unskip` keep an occurrence's nominal instant."""

from datetime import datetime, timedelta

import pytest

from tests.fixtures.acts import about
from tests.fixtures.database import ClockedDatabase
from tests.intake.minutes import (
    MINUTE,
    MINUTELY,
    SECOND,
    fire_for,
    kinds,
    manual_skips,
    minute,
    override,
    request_override,
    runs,
)
from tests.scheduler.firing import fire_due
from tidewheel.ids import job_id


def test_skipped_occurrence_does_not_fire_and_is_recorded_as_manual(minutely: ClockedDatabase) -> None:
    reply = request_override(minutely, "skip", 2, reason="maintenance")
    assert (reply.status, reply.job_version, reply.unchanged) == ("accepted", 1, False)
    assert (reply.job_id, reply.next_run_at) == (str(job_id("default", "job")), minute(minutely, 1))
    fire_for(minutely, 4)
    assert runs(minutely) == [(1, 1), (3, 3), (4, 4)]
    assert manual_skips(minutely) == [2]
    [event] = [event for event in minutely.lifecycle() if "job.occurrence" in event.type]
    assert (event.type, event.reason, event.job_version) == ("io.tidewheel.job.occurrence_skipped.v1", "maintenance", 1)
    assert datetime.fromisoformat(event.detail["at"]) == minute(minutely, 2)


def test_moved_occurrence_fires_at_its_new_time_with_its_nominal_instant(minutely: ClockedDatabase) -> None:
    assert override(minutely, "move", 2, to=3.5).next_run_at == minute(minutely, 1)
    fire_for(minutely, 4)
    assert runs(minutely) == [(1, 1), (3, 3), (2, 3.5), (4, 4)]
    assert minutely.rows("SELECT done_at IS NOT NULL FROM overrides") == [(True,)]
    assert manual_skips(minutely) == []
    [event] = [event for event in minutely.lifecycle() if "job.occurrence" in event.type]
    assert event.type == "io.tidewheel.job.occurrence_moved.v1"
    assert datetime.fromisoformat(event.detail["to"]) == minute(minutely, 3.5)


@pytest.mark.landing
@pytest.mark.parametrize("to", [0.5, 1.5, 2, 2.5, 6, 6.25], ids=lambda to: f"to_{to}")
def test_occurrence_may_move_before_behind_or_onto_another(minutely: ClockedDatabase, to: float) -> None:
    override(minutely, "move", 3, to=to)
    fire_for(minutely, 7)
    wanted = [(float(n), float(n)) for n in range(1, 8) if n != 3] + [(3.0, to)]
    assert runs(minutely) == sorted(wanted, key=lambda run: (run[1], run[0]))


def test_moved_run_waits_for_its_new_time_without_jitter(still: ClockedDatabase) -> None:
    still.submit(**MINUTELY, jitter="50%")
    override(still, "move", 1, to=1.25)
    fire_for(still, 2)
    first = next(run for run in runs(still) if run[0] == 1)
    assert first == (1, 1.25)


def test_override_replaces_the_previous_one_and_is_idempotent(minutely: ClockedDatabase) -> None:
    assert [override(minutely, "skip", 2).unchanged for _ in range(2)] == [False, True]
    assert [override(minutely, "move", 2, to=2.5).unchanged for _ in range(2)] == [False, True]
    assert override(minutely, "move", 2, to=1.5).unchanged is False
    assert kinds(minutely)[1:] == ["job.occurrence_skipped", "job.occurrence_moved", "job.occurrence_moved"]
    fire_for(minutely, 3)
    assert runs(minutely) == [(1, 1), (2, 1.5), (3, 3)]


def test_unskipped_occurrence_fires_at_its_nominal_instant(minutely: ClockedDatabase) -> None:
    override(minutely, "skip", 2)
    override(minutely, "move", 3, to=3.5)
    assert override(minutely, "unskip", 2).next_run_at == minute(minutely, 1)
    override(minutely, "unskip", 3)
    assert minutely.count("overrides") == 0
    fire_for(minutely, 4)
    assert runs(minutely) == [(n, n) for n in (1, 2, 3, 4)]
    assert kinds(minutely).count("job.occurrence_restored") == 2
    assert minutely.value("SELECT overridden FROM timers") is False


def test_one_batch_may_override_several_occurrences_and_jobs(minutely: ClockedDatabase) -> None:
    minutely.submit("other", **MINUTELY)
    at = [minute(minutely, n).isoformat() for n in range(6)]
    replies = minutely.apply_batch(
        about("job.skip", at=at[1]),
        about("job.skip", at=at[2]),
        about("job.skip", "other", at=at[1]),
        about("job.move", at=at[3], to=at[5]),
        about("job.unskip", at=at[1]),
        about("job.skip", "nobody", at=at[1]),
    )
    assert [(reply.status, reply.code) for reply in replies] == [("accepted", None)] * 5 + [("rejected", "unknown_job")]
    fire_for(minutely, 5)
    for key, wanted in {"job": [1, 3, 4, 5], "other": [2, 3, 4, 5]}.items():
        found = [run.scheduled_at for run in minutely.job_runs() if run.job_id == job_id("default", key)]
        assert found == [minute(minutely, number) for number in wanted]


@pytest.mark.landing
@pytest.mark.parametrize("ahead", [5 * SECOND, 60 * SECOND])
def test_override_within_the_lookahead_retracts_and_recreates_runs(minutely: ClockedDatabase, ahead: timedelta) -> None:
    minutely.advance(57 * SECOND)
    fire_due(minutely, lookahead=ahead)
    before = runs(minutely)
    assert (1, 1) in before
    override(minutely, "skip", 1)
    assert (1, 1) not in runs(minutely)
    fire_due(minutely, lookahead=ahead)
    assert manual_skips(minutely) == [1], "recorded ahead of its time"
    assert runs(minutely) == before[1:]
    override(minutely, "unskip", 1)
    assert manual_skips(minutely) == []
    fire_due(minutely, lookahead=ahead)
    assert runs(minutely) == before
    override(minutely, "move", 1, to=1.02)
    fire_due(minutely, lookahead=ahead)
    assert [run for run in runs(minutely) if run[0] == 1] == [(1, 1.02)]
    override(minutely, "unskip", 1)
    fire_for(minutely, 2, step=SECOND, ahead=ahead)
    assert [run for run in runs(minutely) if run[0] <= 2] == [(1, 1), (2, 2)]
    assert manual_skips(minutely) == []


def test_skip_within_the_lookahead_leaves_no_due_timer(minutely: ClockedDatabase) -> None:
    """A timer that waited for the instant would stay due and be set to the same position again."""
    override(minutely, "skip", 1)
    minutely.advance(57 * SECOND)
    assert [fire_due(minutely, lookahead=5 * SECOND) for _ in range(2)] == [1, 0]


def test_skip_of_the_last_occurrence_finishes_the_job(still: ClockedDatabase) -> None:
    still.submit(**MINUTELY, max_runs=2)
    override(still, "skip", 2)
    fire_for(still, 3)
    assert runs(still) == [(1, 1)]
    assert manual_skips(still) == [2]
    assert still.value("SELECT finished_at IS NOT NULL FROM jobs")
    assert still.count("timers") == 0


def test_occurrence_may_be_moved_beyond_its_jobs_bounds(still: ClockedDatabase) -> None:
    still.submit(**MINUTELY, max_runs=2)
    assert override(still, "move", 2, to=5).next_run_at == minute(still, 1)
    fire_for(still, 6)
    assert runs(still) == [(1, 1), (2, 5)]
    assert still.value("SELECT finished_at IS NOT NULL FROM jobs")


def test_retracted_last_run_reopens_its_finished_job(clocked: ClockedDatabase) -> None:
    now = clocked.stop_clock()
    clocked.submit(schedule={"once": (now + MINUTE).isoformat()})
    clocked.advance(57 * SECOND)
    fire_due(clocked, lookahead=5 * SECOND)
    assert clocked.count("timers") == 0
    override(clocked, "move", 1, to=3)
    assert clocked.rows("SELECT finished_at FROM jobs") == [(None,)]
    override(clocked, "skip", 1)
    fire_due(clocked, lookahead=5 * SECOND)
    assert clocked.value("SELECT finished_at IS NOT NULL FROM jobs")
    assert override(clocked, "unskip", 1).next_run_at == minute(clocked, 1)
    fire_for(clocked, 2)
    assert runs(clocked) == [(1, 1)]


def test_pause_retracts_a_moved_run_and_resume_fires_it(minutely: ClockedDatabase) -> None:
    override(minutely, "move", 1, to=2.5)
    minutely.advance(2.45 * MINUTE)
    fire_due(minutely, lookahead=5 * SECOND)
    assert (1, 2.5) in runs(minutely)
    minutely.apply_batch(about("job.pause"))
    assert runs(minutely) == [(2, 2.45)]
    minutely.apply_batch(about("job.resume"))
    fire_for(minutely, 1)
    assert runs(minutely) == [(2, 2.45), (1, 2.5), (3, 3)]


def test_pause_skips_occurrences_moved_into_it(minutely: ClockedDatabase) -> None:
    override(minutely, "move", 1, to=2.5)
    override(minutely, "move", 6, to=2.75)
    fire_for(minutely, 2)
    minutely.apply_batch(about("job.pause"))
    minutely.advance(2 * MINUTE)
    minutely.apply_batch(about("job.resume"))
    fire_for(minutely, 3)
    assert runs(minutely) == [(2, 2), (5, 5), (7, 7)]
    found = minutely.rows("SELECT reason, first_at, last_at, occurrences FROM skips ORDER BY first_at")
    spans = [(1, 1, 1), (3, 4, 2), (6, 6, 1)]
    assert found == [("paused", minute(minutely, first), minute(minutely, last), n) for first, last, n in spans]


@pytest.mark.parametrize("on_resume", ["skip", "fire_all"])
def test_override_of_a_paused_job_keeps_instants_for_on_resume(still: ClockedDatabase, on_resume: str) -> None:
    still.submit(**MINUTELY, on_resume=on_resume)
    still.apply_batch(about("job.pause"))
    still.advance(2.5 * MINUTE)
    assert override(still, "skip", 4).next_run_at is None
    assert override(still, "move", 5, to=5.5).next_run_at is None
    assert still.count("skips") == 0
    still.apply_batch(about("job.resume"))
    fire_for(still, 4)
    later = [(3, 3), (5, 5.5), (6, 6)]
    nominal = sorted(nominal for nominal, _ in runs(still))
    assert nominal == [3, 5, 6] if on_resume == "skip" else nominal == [1, 2, 3, 5, 6]
    assert set(later) <= set(runs(still))
    assert manual_skips(still) == [4]


def test_override_keeps_the_end_of_a_pause(minutely: ClockedDatabase) -> None:
    minutely.apply_batch(about("job.pause", until=minute(minutely, 1.5).isoformat()))
    override(minutely, "skip", 2)
    fire_for(minutely, 3)
    assert runs(minutely) == [(3, 3)]
    assert manual_skips(minutely) == [2]


def test_override_keeps_a_job_in_quarantine(minutely: ClockedDatabase) -> None:
    minutely.execute("UPDATE timers SET due_at = 'infinity', hold_reason = 'quarantine'")
    assert override(minutely, "skip", 2).next_run_at is None
    assert minutely.rows("SELECT hold_reason, due_at = 'infinity' FROM timers") == [("quarantine", True)]


def test_override_applies_overdue_occurrences_first(minutely: ClockedDatabase) -> None:
    minutely.advance(2.5 * MINUTE)
    override(minutely, "skip", 3)
    assert [nominal for nominal, _ in runs(minutely)] == [1, 2]
