"""Missed occurrences: caught up in batches, decided after pauses that end."""

from datetime import datetime
from uuid import UUID

import pytest

from tests.fixtures.acts import about, ending, submission
from tests.fixtures.database import ClockedDatabase
from tests.scheduler.firing import EACH_SECOND, HOUR, MINUTE, SECOND, fire_all, fire_due, instants, skips
from tests.scheduler.test_firing import scheduler_of
from tidewheel.errors import Unavailable
from tidewheel.runs import RunState
from tidewheel.schemas.generated.records import Reply


def test_fire_all_creates_every_missed_run_in_window_with_lateness(still: ClockedDatabase) -> None:
    still.submit(schedule="@every 1h", catch_up="fire_all", window="3h")
    still.advance(6 * HOUR + 30 * MINUTE)
    fire_all(still)
    late = [request.late_ms for request in still.requests()]
    assert late == [hours * 3_600_000 for hours in (2.5, 1.5, 0.5)]
    assert skips(still) == [("misfire", 3)]


def test_lateness_is_kept_until_completion(still: ClockedDatabase) -> None:
    still.submit(schedule="@every 1h")
    still.advance(90 * MINUTE)
    fire_all(still)
    [run] = still.job_runs()
    still.end(ending(still.begin(run.run_id), RunState.SUCCEEDED))
    [completion] = still.completions()
    assert completion.late_ms == 1_800_000


def test_catch_up_is_published_at_fleet_rate(still: ClockedDatabase) -> None:
    for name in ("a", "b"):
        still.submit(name, schedule="@every 1h", catch_up="fire_all", overlap="allow_all")
    now = still.advance(10 * HOUR + 2 * MINUTE)
    fire_all(still)
    leaving = sorted(run.publish_at for run in still.job_runs())
    every = SECOND / still.installation.catch_up_rate
    assert leaving == [now + number * every for number in range(20)]


def lost_on_the_way(database: ClockedDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """A firing that has written everything and dies before its COMMIT."""

    def die(name: str) -> None:
        if name == "firing.before_commit":
            raise Unavailable(name)

    with monkeypatch.context() as patched:
        patched.setattr("tidewheel.scheduler.firing.failpoint", die)
        with pytest.raises(Unavailable):
            fire_due(database)


def test_catch_up_of_thousand_runs_in_batches_survives_crash(
    still: ClockedDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    still.submit(schedule="@every 1s", catch_up="fire_all", overlap="allow_all")
    still.advance(2 * HOUR)
    decided_end: set[datetime | None] = set()
    for crash in range(30):
        if crash % 3 == 2:
            lost_on_the_way(still, monkeypatch)
        if not fire_due(still):
            break
        decided_end |= {row[0] for row in still.rows("SELECT catch_up_end FROM timers")}
        still.advance(SECOND)
    [(runs, first, last)] = still.rows("SELECT count(*), min(scheduled_at), max(scheduled_at) FROM runs")
    assert runs == (last - first) // SECOND + 1
    assert len(decided_end - {None}) == 1
    assert [reason for reason, _ in skips(still)] == ["catch_up_limit"]
    [(covered,)] = still.rows("SELECT sum(occurrences) + (SELECT count(*) FROM runs) FROM skips")
    [(elapsed,)] = still.rows("SELECT scheduled_at - (SELECT created_at FROM jobs) FROM timers")
    assert covered == elapsed // SECOND - 1


def test_timers_on_time_fire_before_missed_ones(still: ClockedDatabase) -> None:
    for number in range(40):
        still.submit(f"behind-{number}", schedule="@every 1h", catch_up="fire_all", overlap="allow_all")
    still.advance(3 * HOUR)
    still.submit("on-time", schedule="@every 10s")
    still.advance(10 * SECOND)
    with scheduler_of(still, fire_batch=8, lookahead=0) as scheduler:
        scheduler.step()
    on_time = still.value("SELECT run_id FROM runs JOIN jobs USING (job_id) WHERE key = 'on-time'")
    sent = [key for (key,) in still.rows("SELECT key FROM outbox WHERE topic LIKE '%.runs.%' ORDER BY id")]
    assert len(sent) > 1
    assert sent[0] == str(on_time).encode()


def test_missed_timer_fires_beside_a_flow_that_fills_every_batch(still: ClockedDatabase) -> None:
    still.submit("missed", schedule="@every 1h")
    still.advance(HOUR + 2 * MINUTE)
    still.apply_batch(*[submission(f"flow-{number}", **EACH_SECOND) for number in range(1000)])
    with scheduler_of(still, fire_batch=64, lookahead=0) as scheduler:
        for _ in range(6):
            still.advance(SECOND)
            scheduler.step()
    fired = "SELECT count(*) FROM runs JOIN jobs USING (job_id) WHERE key = 'missed'"
    assert still.value(fired) == 1


def test_change_during_a_catch_up_finishes_it_by_the_version_in_force(still: ClockedDatabase) -> None:
    still.submit(schedule="@every 10s", catch_up="fire_all", overlap="allow_all")
    still.advance(HOUR)
    fire_due(still)
    still.apply_batch(about("job.pause"))
    assert still.count("runs") == 360
    assert {row[0] for row in still.rows("SELECT job_version FROM runs")} == {1}


def test_past_once_with_catch_up_skip_is_refused(still: ClockedDatabase) -> None:
    past = (still.now() - MINUTE).isoformat()
    [reply] = still.apply_batch(
        {"type": "job.submit", "job": {"key": "k", "schedule": {"once": past}, "target": "t", "catch_up": "skip"}},
    )
    assert [(error.path, "catch_up is skip" in error.problem) for error in reply.errors] == [
        ("job.schedule.once", True)
    ]
    assert still.count("jobs") == 0


def test_catch_up_does_not_block_other_jobs(still: ClockedDatabase) -> None:
    """A lock on the pace would, and close a cycle with the timers' locks."""
    still.submit("late", schedule="@every 1h")
    still.submit("later", schedule="@every 1h")
    still.advance(3 * HOUR)
    editing = still.connection()
    still.apply_batch_within(editing, submission("late", schedule="@every 2h"))
    assert fire_due(still) == 1
    editing.commit()
    assert len({run.publish_at for run in still.job_runs()}) == 2


@pytest.mark.parametrize("overlap", ["skip", "buffer_one", "cancel_other"])
def test_several_late_runs_are_buffered(still: ClockedDatabase, overlap: str) -> None:
    still.submit(schedule="@every 10s", overlap=overlap)
    still.advance(45 * SECOND)
    fire_all(still)
    runs = [run.run_id for run in still.job_runs()]
    assert len(runs) == 4
    started = still.claim(*runs).started
    ran: list[UUID] = []
    while started:
        [one] = started
        ran.append(one.run_id)
        still.end(ending(one, RunState.SUCCEEDED))
        queued = [run.run_id for run in still.job_runs() if run.state == RunState.QUEUED]
        started = still.claim(*queued).started if queued else []
    assert ran == runs


def test_single_late_run_follows_overlap_policy(still: ClockedDatabase) -> None:
    still.submit(schedule="@every 60s", overlap="skip")
    still.advance(65 * SECOND)
    fire_all(still)
    assert still.rows("SELECT overlap FROM job_runs") == [("skip",)]


AHEAD = 5 * SECOND


def pause(database: ClockedDatabase, minutes: int | None) -> Reply:
    until = {} if minutes is None else {"until": (database.now() + minutes * MINUTE).isoformat()}
    return database.apply_batch(about("job.pause", **until))[0]


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
    assert instants(still, MINUTE) == [3.0]
    assert skips(still) == [("paused", 2)]
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
    assert instants(still, MINUTE) == [*made, 3.0]


def test_occurrences_after_the_pauses_end_are_downtime(still: ClockedDatabase) -> None:
    still.submit(schedule="@every 1m", overlap="allow_all", on_resume="skip", catch_up="fire_all")
    pause(still, 3)
    still.advance(10 * MINUTE)
    fire_all(still)
    assert instants(still, MINUTE) == [float(minute) for minute in range(3, 11)]
    assert skips(still) == [("paused", 2)]


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


def test_end_of_a_pause_that_has_passed_or_that_no_timer_has_is_refused(still: ClockedDatabase) -> None:
    still.submit(schedule="@every 1m")
    reply = pause(still, -1)
    assert [error.path for error in reply.errors] == ["until"]
    assert not paused(still)
    still.submit(schedule="manual")
    [error] = pause(still, 3).errors
    assert (error.path, "the pause would never end" in error.problem) == ("until", True)


def test_edit_keeps_the_pause_and_its_end(still: ClockedDatabase) -> None:
    still.submit(schedule="@every 1m", overlap="allow_all")
    pause(still, 3)
    still.submit(schedule="@every 1m", overlap="allow_all", description="edited")
    assert paused(still)
    still.advance(3 * MINUTE)
    fire_all(still)
    assert not paused(still)
    assert instants(still, MINUTE) == [3.0]


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
    assert instants(still, MINUTE) == [4.0, 5.0]  # missed at 3.0 by two minutes: misfire, not pause
    assert skips(still) == [("paused", 2), ("misfire", 1)]
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
