"""A pause with an end: firing resumes the job at `paused_until`, and decides as a resume does."""

from datetime import timedelta

import pytest

from tests.fixtures.database import ClockedDatabase
from tests.scheduler.firing import fire_due
from tests.transitions.acts import about, apply_batch, begin, end, ending, job_runs, lifecycle, submit
from tidewheel.runs import RunState
from tidewheel.schemas.generated.records import Reply

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
AHEAD = 5 * SECOND


@pytest.fixture
def ticking(clocked: ClockedDatabase) -> ClockedDatabase:
    clocked.stop_clock()
    return clocked


def pause(database: ClockedDatabase, minutes: int | None) -> Reply:
    until = {} if minutes is None else {"until": (database.now() + minutes * MINUTE).isoformat()}
    return apply_batch(database, about("job.pause", **until))[0]


def instants(database: ClockedDatabase) -> list[float]:
    [(accepted_at,)] = database.rows("SELECT created_at FROM jobs")
    found = database.rows("SELECT scheduled_at FROM runs ORDER BY scheduled_at")
    return [(at - accepted_at) / MINUTE for (at,) in found]


def paused(database: ClockedDatabase) -> bool:
    return bool(database.value("SELECT paused FROM jobs"))


def test_pause_ends_at_its_instant_and_not_within_the_lookahead(ticking: ClockedDatabase) -> None:
    submit(ticking, schedule="@every 1m", overlap="allow_all")
    pause(ticking, 3)
    ticking.advance(3 * MINUTE - SECOND)
    assert fire_due(ticking, lookahead=AHEAD) == 0
    assert paused(ticking)
    ticking.advance(SECOND)
    while fire_due(ticking, lookahead=AHEAD):
        pass
    assert not paused(ticking)
    assert instants(ticking) == [3.0]
    assert ticking.rows("SELECT reason, occurrences FROM skips") == [("paused", 2)]
    [resumed] = [event for event in lifecycle(ticking) if event.type == "io.tidewheel.job.resumed.v1"]
    assert resumed.reason == "paused_until has passed"


@pytest.mark.parametrize(("policy", "made"), [("skip", []), ("fire_once", [2.0]), ("fire_all", [1.0, 2.0])])
def test_on_resume_decides_occurrences_of_an_expired_pause(
    ticking: ClockedDatabase, policy: str, made: list[float]
) -> None:
    submit(ticking, schedule="@every 1m", overlap="allow_all", on_resume=policy)
    pause(ticking, 3)
    ticking.advance(3 * MINUTE)
    while fire_due(ticking):
        pass
    assert instants(ticking) == [*made, 3.0]


def test_occurrences_after_the_pauses_end_are_downtime(ticking: ClockedDatabase) -> None:
    submit(ticking, schedule="@every 1m", overlap="allow_all", on_resume="skip", catch_up="fire_all")
    pause(ticking, 3)
    ticking.advance(10 * MINUTE)
    while fire_due(ticking):
        pass
    assert instants(ticking) == [float(minute) for minute in range(3, 11)]
    assert ticking.rows("SELECT reason, occurrences FROM skips") == [("paused", 2)]


def test_repeated_pause_replaces_or_removes_its_end(ticking: ClockedDatabase) -> None:
    submit(ticking, schedule="@every 1m")
    pause(ticking, 3)
    assert not pause(ticking, 5).unchanged
    ticking.advance(4 * MINUTE)
    assert fire_due(ticking) == 0
    assert not pause(ticking, None).unchanged
    assert pause(ticking, None).unchanged
    ticking.advance(60 * MINUTE)
    assert fire_due(ticking) == 0
    assert paused(ticking)


def test_past_end_of_a_pause_is_refused(ticking: ClockedDatabase) -> None:
    submit(ticking, schedule="@every 1m")
    reply = pause(ticking, -1)
    assert [error.path for error in reply.errors] == ["until"]
    assert not paused(ticking)


def test_edit_keeps_the_pause_and_its_end(ticking: ClockedDatabase) -> None:
    submit(ticking, schedule="@every 1m", overlap="allow_all")
    pause(ticking, 3)
    submit(ticking, schedule="@every 1m", overlap="allow_all", description="edited")
    assert paused(ticking)
    ticking.advance(3 * MINUTE)
    while fire_due(ticking):
        pass
    assert not paused(ticking)
    assert instants(ticking) == [3.0]


@pytest.mark.parametrize("request_kind", ["edit", "resume", "pause"])
def test_request_before_firing_applies_the_expired_pause(ticking: ClockedDatabase, request_kind: str) -> None:
    submit(ticking, schedule="@every 1m", overlap="allow_all")
    pause(ticking, 3)
    ticking.advance(5 * MINUTE)
    if request_kind == "edit":
        submit(ticking, schedule="@every 1m", overlap="allow_all", description="edited")
    else:
        apply_batch(ticking, about(f"job.{request_kind}"))
    while fire_due(ticking):
        pass
    assert instants(ticking) == [4.0, 5.0]  # missed at 3.0 by two minutes: misfire, not pause
    assert ticking.rows("SELECT reason, occurrences FROM skips ORDER BY skip_id") == [("paused", 2), ("misfire", 1)]
    assert paused(ticking) is (request_kind == "pause")


def test_fixed_delay_with_an_open_run_waits_after_its_pause_expires(ticking: ClockedDatabase) -> None:
    submit(ticking, schedule={"fixed_delay": "60s"})
    fire_due(ticking)
    [run] = job_runs(ticking)
    started = begin(ticking, run.run_id)
    pause(ticking, 3)
    ticking.advance(3 * MINUTE)
    fire_due(ticking)
    assert ticking.rows("SELECT hold_reason FROM timers") == [("run",)]
    end(ticking, ending(started, RunState.SUCCEEDED))
    assert ticking.value("SELECT due_at - tidewheel_now() FROM timers") == MINUTE


def test_end_of_a_pause_for_a_job_without_a_timer_is_refused(ticking: ClockedDatabase) -> None:
    submit(ticking, schedule="manual")
    reply = pause(ticking, 3)
    assert [(error.path, "nothing would end the pause" in error.problem) for error in reply.errors] == [("until", True)]
