"""Skipped and moved occurrences keep one outcome when their job changes."""

from typing import Any

import pytest

from tests.fixtures.acts import about, refusal, submission
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
    skipped,
)
from tests.scheduler.firing import fire_due


@pytest.mark.landing
def test_edit_keeps_overrides_of_its_schedules_occurrences_only(minutely: ClockedDatabase) -> None:
    anchor = minute(minutely, 0).isoformat()
    override(minutely, "skip", 2)
    override(minutely, "move", 3, to=3.25)
    override(minutely, "move", 4, to=4.25)
    minutely.submit(schedule={"interval": "2m", "anchor": anchor}, overlap="allow_all")
    fire_for(minutely, 6)
    assert runs(minutely) == [(4, 4.25), (6, 6)]
    assert manual_skips(minutely) == [2]


def test_edit_recreates_a_moved_run_by_the_new_version(minutely: ClockedDatabase) -> None:
    override(minutely, "move", 3, to=1)
    minutely.advance(57 * SECOND)
    fire_due(minutely, lookahead=5 * SECOND)
    before = {run.run_id for run in minutely.job_runs()}
    minutely.submit(**MINUTELY, payload=1)
    assert runs(minutely) == []
    fire_due(minutely, lookahead=5 * SECOND)
    assert runs(minutely) == [(1, 1), (3, 1)]
    assert {run.run_id for run in minutely.job_runs()} == before
    assert {run.job_version for run in minutely.job_runs()} == {2}


@pytest.mark.landing
def test_edit_does_not_retract_a_run_moved_to_an_earlier_past_time(minutely: ClockedDatabase) -> None:
    """Its own instant is ahead, but it has fired: an edit neither takes it back nor fires it again."""
    override(minutely, "move", 3, to=0.5)
    fire_for(minutely, 0.5)
    minutely.submit(**MINUTELY, payload=1)
    assert [(run.job_version, run.scheduled_at) for run in minutely.job_runs()] == [(1, minute(minutely, 3))]
    assert "which has passed" in refusal(request_override(minutely, "unskip", 3))[1]
    fire_for(minutely, 3.5)
    assert runs(minutely) == [(3, 0.5), (1, 1), (2, 2), (4, 4)]


@pytest.mark.landing
@pytest.mark.parametrize(
    "change", [submission(**MINUTELY, payload=1), about("job.pause"), "skip"], ids=["edit", "pause", "skip"]
)
def test_occurrence_moved_ahead_into_a_pause_stays_skipped(minutely: ClockedDatabase, change: Any) -> None:  # noqa: ANN401
    """The time it was moved to has passed; a change opens what is still ahead, and that only."""
    override(minutely, "move", 6, to=0.5)
    minutely.apply_batch(about("job.pause"))
    minutely.advance(MINUTE)
    minutely.apply_batch(about("job.resume"))
    fire_for(minutely, 1.5)
    reply = request_override(minutely, change, 3) if change == "skip" else minutely.apply_batch(change)[0]
    assert reply.next_run_at is None or reply.next_run_at > minutely.now()
    if change != "skip":
        minutely.submit(**MINUTELY, payload=2)
        minutely.apply_batch(about("job.resume"))
    assert "which has passed" in refusal(request_override(minutely, "unskip", 6))[1]
    fire_for(minutely, 5)
    assert {6, 7} & {nominal for nominal, _ in runs(minutely)} == {7}
    assert skipped(minutely, "paused")[-1] == (6, 6, 1)


def move_into_a_pause(minutely: ClockedDatabase, on_resume: str) -> None:
    """Move the sixth occurrence ahead, pause the job before it, and let it pass."""
    fire_for(minutely, 1.2)
    minutely.submit(**MINUTELY, on_resume=on_resume)
    override(minutely, "move", 6, to=1.5)
    minutely.apply_batch(about("job.pause"))
    minutely.advance(0.5 * MINUTE)


@pytest.mark.landing
@pytest.mark.parametrize("schedule", ["@every 1m", "@every 10m"], ids=["with the instant", "without it"])
@pytest.mark.parametrize("on_resume", ["skip", "fire_once", "fire_all"])
def test_edit_amid_a_pause_records_an_occurrence_moved_ahead_into_it(
    minutely: ClockedDatabase, schedule: str, on_resume: str
) -> None:
    """As any other occurrence of the pause: its own instant is ahead, and does not fire it again."""
    move_into_a_pause(minutely, on_resume)
    every = {"interval": schedule.removeprefix("@every "), "anchor": minute(minutely, 0).isoformat()}
    minutely.submit(schedule=every, overlap="allow_all", on_resume=on_resume)
    assert skipped(minutely, "paused") == [(6, 6, 1)], "by the edit, whatever on_resume says"
    minutely.apply_batch(about("job.resume"))
    assert "which has passed" in refusal(request_override(minutely, "unskip", 6))[1]
    fire_for(minutely, 10)
    nominal = [each for each, _ in runs(minutely)]
    assert nominal == ([1, 2, 3, 4, 5, 7, 8, 9, 10, 11] if schedule == "@every 1m" else [1, 10])
    assert skipped(minutely, "paused") == [(6, 6, 1)]


@pytest.mark.parametrize("on_resume", ["skip", "fire_all"])
def test_other_edits_leave_an_occurrence_moved_ahead_into_a_pause_to_on_resume(
    minutely: ClockedDatabase, on_resume: str
) -> None:
    move_into_a_pause(minutely, on_resume)
    minutely.submit(**MINUTELY, on_resume=on_resume, payload=1)
    assert skipped(minutely, "paused") == []
    minutely.apply_batch(about("job.resume"))
    fire_for(minutely, 6)
    assert (6 in {nominal for nominal, _ in runs(minutely)}) == (on_resume == "fire_all")
    assert skipped(minutely, "paused") == ([(6, 6, 1)] if on_resume == "skip" else [])


def test_occurrence_moved_past_its_own_instant_survives_an_edit(minutely: ClockedDatabase) -> None:
    """It was an occurrence when its instant came: it is owed, whatever the schedule says by now."""
    override(minutely, "move", 1, to=3.5)
    fire_for(minutely, 2)
    minutely.submit(schedule="@every 10m", overlap="allow_all")
    fire_for(minutely, 2)
    assert runs(minutely) == [(2, 2), (1, 3.5)]


@pytest.mark.parametrize(
    "change",
    [about("job.delete"), submission(), submission(schedule={"fixed_delay": "1h"})],
    ids=["delete", "manual", "fixed_delay"],
)
def test_moved_occurrence_that_cannot_fire_is_recorded_as_skipped(
    minutely: ClockedDatabase, change: dict[str, object]
) -> None:
    override(minutely, "move", 1, to=3)
    fire_for(minutely, 2)
    minutely.advance(0.95 * MINUTE)
    fire_due(minutely, lookahead=5 * SECOND)
    assert (1, 3) in runs(minutely), "written ahead"
    minutely.accept(change)
    assert manual_skips(minutely) == [1]
    assert "occurrence.skipped" in kinds(minutely)
    assert 1 not in [nominal for nominal, _ in runs(minutely)]


def test_recreated_job_has_no_overrides_of_the_deleted_one(minutely: ClockedDatabase) -> None:
    start = minute(minutely, 0)
    anchor: dict[str, Any] = MINUTELY | {"schedule": {"interval": "1m", "anchor": start.isoformat()}}
    minutely.submit(**anchor)
    override(minutely, "skip", 1)
    override(minutely, "move", 2, to=3)
    minutely.apply_batch(about("job.delete"))
    minutely.submit(**anchor)
    minutely.advance(2 * MINUTE)
    fire_due(minutely)
    assert [run.scheduled_at for run in minutely.job_runs()] == [start + MINUTE, start + 2 * MINUTE]


def test_moved_occurrence_with_a_past_instant_can_be_overridden_again(minutely: ClockedDatabase) -> None:
    for number in (1, 2, 3):
        override(minutely, "move", number, to=9)
    fire_for(minutely, 4)
    override(minutely, "move", 1, to=5.5)
    override(minutely, "skip", 2)
    assert override(minutely, "unskip", 3).next_run_at == minute(minutely, 5)
    assert manual_skips(minutely) == [2]
    fire_for(minutely, 2)
    assert [run for run in runs(minutely) if run[0] == 3] == [(3, 4)]
    assert runs(minutely)[-3:] == [(5, 5), (1, 5.5), (6, 6)]


def test_last_occurrence_moved_and_then_skipped_finishes_its_job(still: ClockedDatabase) -> None:
    still.submit(**MINUTELY, max_runs=1)
    override(still, "move", 1, to=3)
    fire_for(still, 2)
    override(still, "skip", 1)
    fire_for(still, 2)
    assert runs(still) == []
    assert manual_skips(still) == [1]
    assert still.value("SELECT finished_at IS NOT NULL FROM jobs")


def test_edit_does_not_change_a_started_moved_run(minutely: ClockedDatabase) -> None:
    override(minutely, "move", 3, to=0.5)
    fire_for(minutely, 0.5)
    [run] = minutely.job_runs()
    assert minutely.begin(run.run_id).attempt == 1
    assert refusal(request_override(minutely, "skip", 3))[0] == "at"
    minutely.submit(**MINUTELY, payload=1)
    assert [(run.state, run.job_version) for run in minutely.job_runs()] == [("running", 1)]
