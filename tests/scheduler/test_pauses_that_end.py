"""A pause with an end: firing resumes the job at `paused_until`, and decides as a resume does."""

from datetime import timedelta

import pytest

from tests.fixtures.acts import about, ending
from tests.fixtures.database import ClockedDatabase
from tests.scheduler.firing import fire_all, fire_due
from tidewheel.runs import RunState
from tidewheel.schemas.generated.records import Reply

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
AHEAD = 5 * SECOND


def pause(database: ClockedDatabase, minutes: int | None) -> Reply:
    until = {} if minutes is None else {"until": (database.now() + minutes * MINUTE).isoformat()}
    return database.apply_batch(about("job.pause", **until))[0]


def instants(database: ClockedDatabase) -> list[float]:
    [(accepted_at,)] = database.rows("SELECT created_at FROM jobs")
    found = database.rows("SELECT scheduled_at FROM runs ORDER BY scheduled_at")
    return [(at - accepted_at) / MINUTE for (at,) in found]


def paused(database: ClockedDatabase) -> bool:
    return bool(database.value("SELECT paused FROM jobs"))


def test_pause_ends_at_its_instant_and_not_within_the_lookahead(still: ClockedDatabase) -> None:
    still.submit(schedule="@every 1m", overlap="allow_all")
    pause(still, 3)
    still.advance(3 * MINUTE - SECOND)
    assert fire_due(still, lookahead=AHEAD) == 0
    assert paused(still)
    still.advance(SECOND)
    fire_all(still, lookahead=AHEAD)
    assert not paused(still)
    assert instants(still) == [3.0]
    assert still.rows("SELECT reason, occurrences FROM skips") == [("paused", 2)]
    [resumed] = [event for event in still.lifecycle() if event.type == "io.tidewheel.job.resumed.v1"]
    assert resumed.reason == "paused_until has passed"


@pytest.mark.parametrize(("policy", "made"), [("skip", []), ("fire_once", [2.0]), ("fire_all", [1.0, 2.0])])
def test_on_resume_decides_occurrences_of_an_expired_pause(
    still: ClockedDatabase, policy: str, made: list[float]
) -> None:
    still.submit(schedule="@every 1m", overlap="allow_all", on_resume=policy)
    pause(still, 3)
    still.advance(3 * MINUTE)
    fire_all(still)
    assert instants(still) == [*made, 3.0]


def test_occurrences_after_the_pauses_end_are_downtime(still: ClockedDatabase) -> None:
    still.submit(schedule="@every 1m", overlap="allow_all", on_resume="skip", catch_up="fire_all")
    pause(still, 3)
    still.advance(10 * MINUTE)
    fire_all(still)
    assert instants(still) == [float(minute) for minute in range(3, 11)]
    assert still.rows("SELECT reason, occurrences FROM skips") == [("paused", 2)]


def test_repeated_pause_replaces_or_removes_its_end(still: ClockedDatabase) -> None:
    still.submit(schedule="@every 1m")
    pause(still, 3)
    assert not pause(still, 5).unchanged
    still.advance(4 * MINUTE)
    assert fire_due(still) == 0
    assert not pause(still, None).unchanged
    assert pause(still, None).unchanged
    still.advance(60 * MINUTE)
    assert fire_due(still) == 0
    assert paused(still)


def test_past_end_of_a_pause_is_refused(still: ClockedDatabase) -> None:
    still.submit(schedule="@every 1m")
    reply = pause(still, -1)
    assert [error.path for error in reply.errors] == ["until"]
    assert not paused(still)


def test_edit_keeps_the_pause_and_its_end(still: ClockedDatabase) -> None:
    still.submit(schedule="@every 1m", overlap="allow_all")
    pause(still, 3)
    still.submit(schedule="@every 1m", overlap="allow_all", description="edited")
    assert paused(still)
    still.advance(3 * MINUTE)
    fire_all(still)
    assert not paused(still)
    assert instants(still) == [3.0]


@pytest.mark.parametrize("request_kind", ["edit", "resume", "pause"])
def test_request_before_firing_applies_the_expired_pause(still: ClockedDatabase, request_kind: str) -> None:
    still.submit(schedule="@every 1m", overlap="allow_all")
    pause(still, 3)
    still.advance(5 * MINUTE)
    if request_kind == "edit":
        still.submit(schedule="@every 1m", overlap="allow_all", description="edited")
    else:
        still.apply_batch(about(f"job.{request_kind}"))
    fire_all(still)
    assert instants(still) == [4.0, 5.0]  # missed at 3.0 by two minutes: misfire, not pause
    assert still.rows("SELECT reason, occurrences FROM skips ORDER BY skip_id") == [("paused", 2), ("misfire", 1)]
    assert paused(still) is (request_kind == "pause")


def test_fixed_delay_with_an_open_run_waits_after_its_pause_expires(still: ClockedDatabase) -> None:
    still.submit(schedule={"fixed_delay": "60s"})
    fire_due(still)
    [run] = still.job_runs()
    started = still.begin(run.run_id)
    pause(still, 3)
    still.advance(3 * MINUTE)
    fire_due(still)
    assert still.rows("SELECT hold_reason FROM timers") == [("run",)]
    still.end(ending(started, RunState.SUCCEEDED))
    assert still.value("SELECT due_at - tidewheel_now() FROM timers") == MINUTE


def test_end_of_a_pause_for_a_job_without_a_timer_is_refused(still: ClockedDatabase) -> None:
    still.submit(schedule="manual")
    reply = pause(still, 3)
    assert [(error.path, "nothing would end the pause" in error.problem) for error in reply.errors] == [("until", True)]
