"""`explain`: for any instant of a job, its one outcome and why."""

from datetime import timedelta
from uuid import UUID

import pytest

from tests.control.explain.explaining import calendar, done, explanation_of, fire_all, t
from tests.fixtures.acts import EXECUTOR, ending
from tests.fixtures.database import ClockedDatabase
from tests.scheduler.firing import fire_due
from tests.scheduler.test_freezing import release
from tidewheel.control.explain.explanation import OccurrenceOutcome
from tidewheel.ids import job_id, run_id
from tidewheel.runs import Cause, RunState

JOB = job_id("default", "job")
DAILY = {"cron": "0 9 * * *"}
MINUTES = {"cron": "* * * * *"}


def at_clock(database: ClockedDatabase, text: str) -> None:
    database.stop_clock(t(text))


def run_of(text: str) -> UUID:
    return run_id(JOB, t(text), Cause.TIMER)


def test_an_occurrence_that_fired_shows_its_run_and_every_attempt(clocked: ClockedDatabase) -> None:
    at_clock(clocked, "03-02T08:00")
    clocked.submit(schedule=DAILY)
    at_clock(clocked, "03-02T09:00:02")
    fire_all(clocked)
    waiting = explanation_of(clocked, t("03-02T09:00"))
    assert waiting.outcome is OccurrenceOutcome.FIRED
    assert "Its run is queued: no live executor serves queue default." in waiting.words
    started = clocked.begin(run_of("03-02T09:00"))
    running = explanation_of(clocked, t("03-02T09:00"))
    assert running.run is not None
    assert [(each.attempt, each.outcome, each.executor_id) for each in running.run.attempts] == [(1, None, EXECUTOR)]
    assert "Its run is running: executor " in running.words
    clocked.end(ending(started, RunState.FAILED, error_type="ValueError", error_message="no such address"))
    fired = explanation_of(clocked, t("03-02T09:00"))
    assert fired.run is not None
    assert (fired.outcome, fired.run.state, fired.run.run_id) == (
        OccurrenceOutcome.FIRED,
        RunState.FAILED,
        started.run_id,
    )
    assert [(each.outcome, each.error_message) for each in fired.run.attempts] == [("failed", "no such address")]
    assert fired.run.late == timedelta(seconds=2)
    assert "2.00 s late" in fired.words
    assert "ValueError" in fired.words
    assert (fired.before, fired.after) == (None, t("03-03T09:00"))
    assert fired.version is not None
    assert (fired.version.number, fired.version.until) == (1, None)


def test_triggers_of_the_same_instant_are_listed_with_the_occurrence(clocked: ClockedDatabase) -> None:
    at_clock(clocked, "03-02T08:00")
    clocked.submit(schedule=DAILY)
    at_clock(clocked, "03-02T09:00")
    run = clocked.trigger()
    fire_all(clocked)
    both = explanation_of(clocked, t("03-02T09:00"))
    assert both.run is not None
    assert both.run.cause == Cause.TIMER
    assert [(other.run_id, other.cause) for other in both.others] == [(run, "trigger")]
    alone = explanation_of(clocked, t("03-02T08:59:59"))
    assert (alone.outcome, alone.run, alone.others) == (OccurrenceOutcome.NO_OCCURRENCE, None, ())


def test_skip_after_downtime_names_the_policy_and_the_span(clocked: ClockedDatabase) -> None:
    at_clock(clocked, "03-02T08:00:30")
    clocked.submit(schedule=MINUTES)
    at_clock(clocked, "03-02T09:00:30")
    fire_all(clocked)
    missed = explanation_of(clocked, t("03-02T08:30"))
    assert (missed.outcome, missed.reason) == (OccurrenceOutcome.SKIPPED, "misfire")
    assert missed.span is not None
    assert (missed.span.first_at, missed.span.last_at) == (t("03-02T08:01"), t("03-02T08:58"))
    assert missed.span.occurrences == 58
    assert "catch_up is fire_once: only the latest occurrence fires" in missed.words
    latest = explanation_of(clocked, t("03-02T08:59"))
    assert latest.run is not None
    assert latest.run.caught_up
    assert "caught up" in latest.words
    within = explanation_of(clocked, t("03-02T08:30:30"))
    assert within.outcome is OccurrenceOutcome.NO_OCCURRENCE
    assert (within.before, within.after) == (t("03-02T08:30"), t("03-02T08:31"))


def test_late_occurrence_names_its_outcome(clocked: ClockedDatabase) -> None:
    at_clock(clocked, "03-02T08:00:30")
    clocked.submit(schedule=MINUTES, catch_up="skip")
    at_clock(clocked, "03-02T08:10:30")
    late = explanation_of(clocked, t("03-02T08:10"))
    assert late.outcome is OccurrenceOutcome.WAITING
    assert "30.0 s late" in late.words
    assert "The next poll creates its run" in late.words
    assert "The timer is at 2026-03-02T08:01:00Z" in late.words
    missed = explanation_of(clocked, t("03-02T08:05"))
    assert missed.outcome is OccurrenceOutcome.WAITING
    assert "skips it" in missed.words
    fire_all(clocked)
    assert explanation_of(clocked, t("03-02T08:10")).outcome is OccurrenceOutcome.FIRED
    assert explanation_of(clocked, t("03-02T08:05")).outcome is OccurrenceOutcome.SKIPPED


def test_overlap_names_the_policy(clocked: ClockedDatabase) -> None:
    at_clock(clocked, "03-02T08:00:30")
    clocked.submit(schedule=MINUTES, overlap="skip")
    at_clock(clocked, "03-02T08:01")
    fire_all(clocked)
    clocked.begin(run_of("03-02T08:01"))
    at_clock(clocked, "03-02T08:02")
    fire_all(clocked)
    with pytest.raises(ValueError, match="unpack"):
        clocked.begin(run_of("03-02T08:02"))
    skipped = explanation_of(clocked, t("03-02T08:02"))
    assert (skipped.outcome, skipped.reason) == (OccurrenceOutcome.SKIPPED, "overlap")
    assert "overlap is skip" in skipped.words


def test_waiting_run_that_a_newer_one_replaced_is_explained(clocked: ClockedDatabase) -> None:
    at_clock(clocked, "03-02T08:00:30")
    clocked.submit(schedule=MINUTES, overlap="cancel_other")
    at_clock(clocked, "03-02T08:01")
    fire_all(clocked)
    clocked.begin(run_of("03-02T08:01"))
    for text in ("03-02T08:02", "03-02T08:03"):
        at_clock(clocked, text)
        fire_all(clocked)
        with pytest.raises(ValueError, match="unpack"):
            clocked.begin(run_of(text))
    replaced = explanation_of(clocked, t("03-02T08:02"))
    assert (replaced.outcome, replaced.reason) == (OccurrenceOutcome.SKIPPED, "overlap")
    assert "overlap is cancel_other. Only the newest of the runs that would replace the active one" in replaced.words
    newest = explanation_of(clocked, t("03-02T08:03"))
    assert newest.run is not None
    assert newest.run.state == RunState.BUFFERED


def test_run_that_a_freeze_skipped_is_explained_by_the_freeze(clocked: ClockedDatabase) -> None:
    at_clock(clocked, "03-02T08:00:30")
    clocked.submit(schedule=MINUTES)
    fire_due(clocked, lookahead=timedelta(minutes=1))
    freezing = clocked.connection()
    clocked.apply_batch_within(freezing, {"type": "freeze", "scope": "tenant"})
    at_clock(clocked, "03-02T08:01:30")
    clocked.submit(schedule=DAILY)
    freezing.commit()
    release(clocked)
    skipped = explanation_of(clocked, t("03-02T08:01"))
    assert (skipped.outcome, skipped.reason) == (OccurrenceOutcome.SKIPPED, "frozen")
    assert skipped.words == "Its run was skipped at 2026-03-02T08:01:30Z: a freeze was in force."


def test_buffered_run_waits_for_the_active_run(clocked: ClockedDatabase) -> None:
    at_clock(clocked, "03-02T08:00:30")
    clocked.submit(schedule=MINUTES, overlap="buffer_all")
    at_clock(clocked, "03-02T08:02")
    fire_all(clocked)
    clocked.begin(run_of("03-02T08:01"))
    with pytest.raises(ValueError, match="unpack"):
        clocked.begin(run_of("03-02T08:02"))
    buffered = explanation_of(clocked, t("03-02T08:02"))
    assert buffered.run is not None
    assert (buffered.outcome, buffered.run.state) == (OccurrenceOutcome.FIRED, RunState.BUFFERED)
    assert str(clocked.active_run_of(JOB)) in buffered.words


def test_pause_names_author_reason_and_effect(clocked: ClockedDatabase) -> None:
    at_clock(clocked, "03-02T08:00:30")
    clocked.submit(schedule=MINUTES, on_resume="fire_once")
    done(clocked, "job.pause", reason="maintenance", until="2026-03-02T08:10:00Z")
    at_clock(clocked, "03-02T08:05:30")
    inside = explanation_of(clocked, t("03-02T08:03"))
    assert (inside.outcome, inside.reason) == (OccurrenceOutcome.PAUSED, "paused")
    for part in ("paused at 2026-03-02T08:00:30Z", "maintenance", "ends at 2026-03-02T08:10:00Z", "fire_once"):
        assert part in inside.words
    assert explanation_of(clocked, t("03-02T08:08")).outcome is OccurrenceOutcome.PAUSED
    assert explanation_of(clocked, t("03-02T08:11")).outcome is OccurrenceOutcome.SCHEDULED
    done(clocked, "job.resume")
    fire_all(clocked)
    over = explanation_of(clocked, t("03-02T08:03"))
    assert (over.outcome, over.reason) == (OccurrenceOutcome.SKIPPED, "paused")
    assert "on_resume is fire_once" in over.words
    assert explanation_of(clocked, t("03-02T08:05")).outcome is OccurrenceOutcome.FIRED


def test_calendar_is_named_with_its_day(clocked: ClockedDatabase) -> None:
    at_clock(clocked, "03-06T12:00")
    calendar(clocked, days=["2026-03-09"], weekdays=["SUN"])
    clocked.submit(schedule=DAILY, exclude_calendars=["closed"])
    ahead = explanation_of(clocked, t("03-09T09:00"))
    assert (ahead.outcome, ahead.reason) == (OccurrenceOutcome.WILL_BE_EXCLUDED, "excluded")
    assert "calendar 'closed' excludes Monday 2026-03-09" in ahead.words
    assert "excludes Sunday 2026-03-08" in explanation_of(clocked, t("03-08T09:00")).words
    at_clock(clocked, "03-08T10:00")
    not_written = explanation_of(clocked, t("03-08T09:00"))
    assert (not_written.outcome, not_written.reason, not_written.span) == (OccurrenceOutcome.SKIPPED, "excluded", None)
    at_clock(clocked, "03-10T10:00")
    fire_all(clocked)
    written = explanation_of(clocked, t("03-09T09:00"))
    assert (written.outcome, written.reason) == (OccurrenceOutcome.SKIPPED, "excluded")
    assert written.span is not None
    assert written.span.occurrences == 2
    assert (written.before, written.after) == (t("03-07T09:00"), t("03-10T09:00"))
    calendar(clocked, days=["2026-12-25"])
    assert "changed since" in explanation_of(clocked, t("03-09T09:00")).words


def test_skip_and_move_are_explained_before_and_after(clocked: ClockedDatabase) -> None:
    at_clock(clocked, "03-02T08:00")
    clocked.submit(schedule=DAILY)
    done(clocked, "job.skip", at="2026-03-02T09:00:00Z", reason="closed")
    done(clocked, "job.move", at="2026-03-03T09:00:00Z", to="2026-03-03T11:30:00Z", reason="inventory")
    skipped, moved = explanation_of(clocked, t("03-02T09:00")), explanation_of(clocked, t("03-03T09:00"))
    assert (skipped.outcome, skipped.reason) == (OccurrenceOutcome.WILL_BE_SKIPPED, "manual")
    assert "skipped by request at 2026-03-02T08:00:00Z: closed" in skipped.words
    assert "by request at 2026-03-02T08:00:00Z: inventory" in moved.words
    assert (moved.outcome, moved.reason, moved.moved_to) == (OccurrenceOutcome.WILL_BE_MOVED, "moved", t("03-03T11:30"))
    there = explanation_of(clocked, t("03-03T11:30"))
    assert there.outcome is OccurrenceOutcome.NO_OCCURRENCE
    assert "The occurrence of 2026-03-03T09:00:00Z was moved to this instant" in there.words
    for clock in ("03-02T09:00:01", "03-03T09:00:01"):
        at_clock(clocked, clock)
        fire_all(clocked)
    gone = explanation_of(clocked, t("03-02T09:00"))
    assert gone.outcome is OccurrenceOutcome.SKIPPED
    assert "by request at 2026-03-02T08:00:00Z: closed" in gone.words
    assert explanation_of(clocked, t("03-03T09:00")).outcome is OccurrenceOutcome.WILL_BE_MOVED, (
        "its own time has come, not the other"
    )
    at_clock(clocked, "03-03T11:30:10")
    assert explanation_of(clocked, t("03-03T09:00")).outcome is OccurrenceOutcome.WAITING
    fire_all(clocked)
    fired = explanation_of(clocked, t("03-03T09:00"))
    assert (fired.outcome, fired.reason, fired.moved_to) == (OccurrenceOutcome.FIRED, "moved", t("03-03T11:30"))
    assert "by request at 2026-03-02T08:00:00Z: inventory" in fired.words
    assert fired.run is not None
    assert fired.run.late == timedelta(seconds=10), "counted from where it was moved to"


def test_future_occurrence_is_explained_with_its_run_created_ahead(clocked: ClockedDatabase) -> None:
    at_clock(clocked, "03-02T08:59:58")
    clocked.submit(schedule=DAILY)
    assert explanation_of(clocked, t("03-02T09:00")).run is None
    fire_due(clocked, lookahead=timedelta(seconds=5))
    ahead = explanation_of(clocked, t("03-02T09:00"))
    assert ahead.run is not None
    assert (ahead.outcome, ahead.run.run_id) == (OccurrenceOutcome.SCHEDULED, clocked.job_runs()[0].run_id)
    assert explanation_of(clocked, t("03-20T09:00")).outcome is OccurrenceOutcome.SCHEDULED


def test_version_in_force_at_the_instant_decides(clocked: ClockedDatabase) -> None:
    at_clock(clocked, "03-02T08:00")
    clocked.submit(schedule=DAILY)
    at_clock(clocked, "03-03T08:00")
    fire_all(clocked)
    clocked.submit(schedule={"cron": "0 10 * * *"})
    at_clock(clocked, "03-04T08:00")
    fire_all(clocked)
    first, second = explanation_of(clocked, t("03-02T09:00")), explanation_of(clocked, t("03-03T10:00"))
    assert first.version is not None
    assert second.version is not None
    assert (first.version.number, first.version.until) == (1, t("03-03T08:00"))
    assert (second.version.number, second.outcome) == (2, OccurrenceOutcome.FIRED)
    assert first.after == t("03-03T10:00"), "of the version that came next"
    none = explanation_of(clocked, t("03-03T09:00"))
    assert none.outcome is OccurrenceOutcome.NO_OCCURRENCE
    assert none.words == "The schedule of version 2 has no occurrence at this instant."
    clocked.execute("DELETE FROM job_versions WHERE version = 1")  # as retention does
    early = explanation_of(clocked, t("03-02T10:00"))
    assert early.outcome is OccurrenceOutcome.UNKNOWN
    assert early.words == "The job's versions before 2026-03-03T08:00:00Z are no longer kept."


def test_instant_before_or_after_the_job_has_no_occurrence(clocked: ClockedDatabase) -> None:
    at_clock(clocked, "03-02T08:00")
    clocked.submit(schedule=DAILY)
    early = explanation_of(clocked, t("03-01T09:00"))
    assert (early.outcome, early.after) == (OccurrenceOutcome.NOT_YET, t("03-02T09:00"))
    assert early.words == "Did not fire: the job was first submitted at 2026-03-02T08:00:00Z."
    at_clock(clocked, "03-02T08:30")
    done(clocked, "job.delete")
    deleted = explanation_of(clocked, t("03-02T09:00"))
    assert deleted.outcome is OccurrenceOutcome.DELETED
    assert "2026-03-02T08:30:00Z" in deleted.words
    at_clock(clocked, "03-05T08:00")
    clocked.submit(schedule=DAILY)
    between = explanation_of(clocked, t("03-04T09:00"))
    assert between.outcome is OccurrenceOutcome.DELETED
    assert "submitted again at 2026-03-05T08:00:00Z" in between.words
    assert explanation_of(clocked, t("03-05T09:00")).outcome is OccurrenceOutcome.SCHEDULED


def test_bounds_are_named(clocked: ClockedDatabase) -> None:
    at_clock(clocked, "03-02T08:00")
    clocked.submit(schedule=DAILY, start_at="2026-03-03T00:00:00Z", end_at="2026-03-06T00:00:00Z")
    early, late = explanation_of(clocked, t("03-02T09:00")), explanation_of(clocked, t("03-06T09:00"))
    assert [(each.outcome, each.reason) for each in (early, late)] == [(OccurrenceOutcome.NO_OCCURRENCE, "bound")] * 2
    assert "before start_at, 2026-03-03T00:00:00Z" in early.words
    assert "after end_at, 2026-03-06T00:00:00Z" in late.words
    clocked.submit("limited", schedule=DAILY, max_runs=2)
    over = explanation_of(clocked, t("03-04T09:00"), "limited")
    assert over.reason == "bound"
    assert "max_runs is 2, and the last occurrence was 2026-03-03T09:00:00Z" in over.words
    at_clock(clocked, "03-05T10:00")
    fire_all(clocked)
    assert explanation_of(clocked, t("03-04T09:00"), "limited").reason == "bound", "also when the job is finished"


def test_clock_change_is_named_as_the_reason(clocked: ClockedDatabase) -> None:
    cases: list[tuple[dict[str, object], str, OccurrenceOutcome, str]] = [
        ({}, "03-29T01:00", OccurrenceOutcome.SCHEDULED, "2026-03-29 02:30 does not exist"),
        ({"dst_gap": "skip"}, "03-29T01:00", OccurrenceOutcome.NO_OCCURRENCE, "02:30 does not exist"),
        ({}, "03-29T01:30", OccurrenceOutcome.NO_OCCURRENCE, "02:30 does not exist"),
        ({}, "10-25T00:30", OccurrenceOutcome.SCHEDULED, "occurs twice: fires the first time"),
        ({}, "10-25T01:30", OccurrenceOutcome.NO_OCCURRENCE, "02:30 occurs twice: fires the first time"),
        (
            {"dst_overlap": "second"},
            "10-25T00:30",
            OccurrenceOutcome.NO_OCCURRENCE,
            "occurs twice: fires the second time",
        ),
    ]
    at_clock(clocked, "03-02T08:00")
    for number, (schedule, at, outcome, note) in enumerate(cases):
        clocked.submit(key := f"job-{number}", schedule={"cron": "30 2 * * *", "timezone": "Europe/Berlin"} | schedule)
        said = explanation_of(clocked, t(at), key)
        assert said.outcome is outcome, (schedule, at)
        assert note in " ".join(said.notes), (schedule, at)
        assert said.zone == "Europe/Berlin"
        assert said.local == said.at
        assert said.local.utcoffset() == timedelta(hours=2 if at != "10-25T01:30" else 1), (schedule, at)


def test_fixed_delay_knows_only_recorded_occurrences(clocked: ClockedDatabase) -> None:
    at_clock(clocked, "03-02T08:00")
    clocked.submit(schedule={"fixed_delay": "10m"})
    fire_all(clocked)
    first = explanation_of(clocked, t("03-02T08:00"))
    assert first.outcome is OccurrenceOutcome.FIRED
    open_now = explanation_of(clocked, t("03-02T08:05"))
    assert open_now.outcome is OccurrenceOutcome.NO_OCCURRENCE
    assert "after the end of the open run" in open_now.words
    clocked.succeed(clocked.begin(run_of("03-02T08:00")))
    assert explanation_of(clocked, t("03-02T08:10")).outcome is OccurrenceOutcome.SCHEDULED
    between = explanation_of(clocked, t("03-02T08:05"))
    assert (between.before, between.after) == (t("03-02T08:00"), t("03-02T08:10"))


def test_quarantined_job_shows_its_error(clocked: ClockedDatabase) -> None:
    at_clock(clocked, "03-02T08:00")
    clocked.submit(schedule=DAILY)
    clocked.execute("UPDATE job_versions SET policy_json = 'no JSON'")
    at_clock(clocked, "03-02T09:00:05")
    fire_all(clocked)
    clocked.execute("UPDATE job_versions SET policy_json = '{}'")
    aside = explanation_of(clocked, t("03-02T09:00"))
    assert aside.outcome is OccurrenceOutcome.WAITING
    assert "quarantined" in aside.words
    assert "JSONDecodeError" in aside.words


def test_a_once_fires_late_and_in_a_pause_waits_for_its_end(clocked: ClockedDatabase) -> None:
    at_clock(clocked, "03-02T08:00")
    clocked.submit(schedule={"once": "2026-03-02T07:00:00Z"})
    late = explanation_of(clocked, t("03-02T07:00"))
    assert late.outcome is OccurrenceOutcome.WAITING, "its time had passed when it was submitted"
    fire_all(clocked)
    assert explanation_of(clocked, t("03-02T07:00")).outcome is OccurrenceOutcome.FIRED
    clocked.submit("held", schedule={"once": "2026-03-02T08:10:00Z"})
    done(clocked, "job.pause", "held")
    at_clock(clocked, "03-02T08:20")
    held = explanation_of(clocked, t("03-02T08:10"), "held")
    assert held.outcome is OccurrenceOutcome.PAUSED
    assert "fires when the pause ends" in held.words
