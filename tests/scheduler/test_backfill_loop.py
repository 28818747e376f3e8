"""Backfills create each run once, in order, and never more at once than requested."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from tests.fixtures.acts import about, ending, submission
from tests.fixtures.database import ClockedDatabase, Database
from tests.scheduler.backfills import accept, created_instants, look, make_batch, move, progress
from tests.scheduler.firing import fire_due
from tests.transitions.graphs import drain_some, never
from tests.transitions.stepping import in_background, until_blocked
from tidewheel.ids import job_id, run_id
from tidewheel.nouns.works.operations import Work
from tidewheel.runs import Cause, RunState
from tidewheel.scheduler.backfill_loop import create_next_runs

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
HOURLY = {"schedule": "0 * * * *", "overlap": "allow_all"}
FIVE = [NOON + n * HOUR for n in range(-4, 1)]
RANGE = (NOON - 4 * HOUR, NOON)


def decided(database: ClockedDatabase) -> None:
    """Whatever was missed is decided, as a scheduler does before it looks at backfills."""
    database.execute("UPDATE timers SET scheduled_at = %s, due_at = %s", [NOON + DAY, NOON + DAY])


def stopped_at_noon(database: ClockedDatabase, **job: Any) -> None:  # noqa: ANN401
    """Submit a job that has never fired in ten days; the clock is stopped at noon."""
    database.stop_clock(NOON - 10 * DAY)
    database.submit(**job)
    database.stop_clock(NOON)
    decided(database)


@pytest.fixture
def hourly(clocked: ClockedDatabase) -> ClockedDatabase:
    stopped_at_noon(clocked, **HOURLY)
    return clocked


def finish(database: Database) -> list[UUID]:
    started = database.claim(*(run.run_id for run in database.job_runs() if run.state == RunState.QUEUED)).started
    for each in started:
        database.succeed(each)
    return [each.run_id for each in started]


def through(database: Database, backfill_id: UUID) -> Work:
    summary = progress(database, backfill_id)
    for _ in range(200):
        if summary.state != "running":
            return summary
        make_batch(database, backfill_id)
        finish(database)
        summary = progress(database, backfill_id)
    raise AssertionError(summary)


def test_backfill_run_has_its_versions_columns_and_own_id(hourly: ClockedDatabase) -> None:
    made = accept(
        hourly, NOON, NOON, request_id="r-1", overlap="buffer_one", traceparent=f"00-{'a' * 32}-{'b' * 16}-01"
    )
    assert make_batch(hourly, made) == 1
    [run] = hourly.job_runs()
    expected = run_id(job_id("default", "job"), NOON, Cause.BACKFILL, made.bytes, at=progress(hourly, made).created_at)
    assert (run.run_id, run.cause, run.scheduled_at, run.publish_at) == (expected, "backfill", NOON, NOON)
    [message] = hourly.requests()
    assert (message.cause, message.scheduled_at, message.job_version) == ("backfill", NOON, 1)
    assert message.traceparent is not None
    assert hourly.rows("SELECT overlap FROM run_inputs") == [("buffer_one",)]
    assert hourly.rows("SELECT request_id FROM job_runs") == [("r-1",)]


def test_backfill_runs_of_an_ordered_job_start_one_after_another(hourly: ClockedDatabase) -> None:
    hourly.submit(**HOURLY, ordering_key="k")
    backfill = about("job.backfill") | {"from": NOON - HOUR, "to": NOON}
    [refusal] = hourly.apply_batch(backfill | {"overlap": "skip"})
    assert [(error.path, error.problem) for error in refusal.errors] == [("overlap", "the job has an ordering_key")]
    [reply] = hourly.apply_batch(backfill | {"versions": "current"})
    assert make_batch(hourly, UUID(reply.backfill_id)) == 2
    first, second = hourly.job_runs()
    assert (first.state, second.state) == ("queued", "buffered")
    assert [finish(hourly), finish(hourly)] == [[first.run_id], [second.run_id]]
    hourly.advance(3 * HOUR)
    hourly.submit(**HOURLY | {"overlap": "skip"})
    later = {"from": NOON + HOUR, "to": NOON + 2 * HOUR, "what": "all", "overlap": "buffer_all"}
    [reply] = hourly.apply_batch(about("job.backfill") | later)
    assert make_batch(hourly, UUID(reply.backfill_id)) == 2, "of the version with an order, which they keep"
    columns = "SELECT job_version, overlap, order_no FROM job_runs WHERE cause = 'backfill' ORDER BY order_no"
    assert hourly.rows(columns) == [(2, "allow_all", 2), (2, "allow_all", 3)], "behind two occurrences of that version"


@pytest.mark.parametrize(("order", "instants"), [("oldest_first", FIVE), ("newest_first", FIVE[::-1])])
def test_backfill_runs_are_created_in_requested_order(
    hourly: ClockedDatabase, order: str, instants: Sequence[datetime]
) -> None:
    made = accept(hourly, *RANGE, order=order, max_concurrent=1)
    seen: list[datetime] = []
    while make_batch(hourly, made):
        [run] = hourly.job_runs()
        seen.append(run.scheduled_at)
        assert make_batch(hourly, made) == 0
        finish(hourly)
    assert seen == list(instants)
    assert progress(hourly, made).state == "finished"


def test_backfill_finishes_with_its_last_run(hourly: ClockedDatabase) -> None:
    made = accept(hourly, *RANGE)
    assert make_batch(hourly, made) == 5
    make_batch(hourly, made)
    stands = progress(hourly, made)
    assert (stands.state, stands.facts["runs"], stands.processed) == ("running", {"queued": 5}, 5)
    assert "next_at" not in stands.facts
    runs = hourly.claim(*(run.run_id for run in hourly.job_runs())).started
    hourly.end(ending(runs[0], RunState.FAILED, error_type="ValueError"))
    for run in runs[1:]:
        hourly.succeed(run)
    make_batch(hourly, made)
    stands = progress(hourly, made)
    assert (stands.state, stands.facts["runs"]) == ("finished", {"succeeded": 4, "failed": 1})
    assert stands.finished_at == NOON
    [event] = [event for event in hourly.lifecycle() if event.type == "io.tidewheel.job.backfill_finished.v1"]
    assert (event.detail["created_count"], event.detail["existing_count"]) == ("5", "0")


@pytest.mark.parametrize("order", ["oldest_first", "newest_first"])
def test_missing_only_skips_recorded_instants(clocked: ClockedDatabase, order: str) -> None:
    """Three instants ran or run; one was passed over in an outage, one lost its turn, one was cancelled."""
    clocked.stop_clock(NOON - 6.5 * HOUR)
    clocked.submit(schedule="0 * * * *")
    clocked.stop_clock(NOON - 5.5 * HOUR)
    fire_due(clocked)
    finish(clocked)
    clocked.stop_clock(NOON - 3.5 * HOUR)
    fire_due(clocked)  # 07:00 is passed over, 08:00 runs
    first = clocked.begin(clocked.job_runs()[0].run_id)
    clocked.stop_clock(NOON - 3 * HOUR)
    fire_due(clocked)
    assert clocked.claim(clocked.job_runs()[1].run_id).overlaps.skipped
    clocked.stop_clock(NOON - 2 * HOUR)
    fire_due(clocked)
    [_, second] = clocked.job_runs()
    clocked.apply_batch({"type": "run.cancel", "run_id": str(second.run_id)})
    clocked.stop_clock(NOON - 1.5 * HOUR)
    fire_due(clocked)
    made = accept(clocked, NOON - 7 * HOUR, NOON - 1.5 * HOUR, order=order)
    assert progress(clocked, made).facts["needed"] == 3
    clocked.succeed(first)
    summary = through(clocked, made)
    missing = [NOON - 5 * HOUR, NOON - 3 * HOUR, NOON - 2 * HOUR]
    assert sorted(created_instants(clocked)) == missing
    assert (summary.facts["created"], summary.done_count, summary.matched_count) == (3, 5, 5)
    # What this one has run is not missing for the next.
    again = accept(clocked, NOON - 7 * HOUR, NOON - 1.5 * HOUR)
    assert through(clocked, again).facts["created"] == 0


def test_each_instant_runs_version_in_force_then(clocked: ClockedDatabase) -> None:
    """Hourly until 04:30, two-hourly until the deletion at 08:30, three-hourly since 10:30."""
    midnight = NOON - 12 * HOUR
    clocked.stop_clock(midnight + HOUR / 2)
    clocked.submit(schedule="0 * * * *", overlap="allow_all", lane="batch")
    clocked.stop_clock(midnight + 4.5 * HOUR)
    clocked.submit(schedule="0 */2 * * *", overlap="allow_all", lane="critical")
    clocked.stop_clock(midnight + 8.5 * HOUR)
    clocked.apply_batch(about("job.delete"))
    clocked.stop_clock(midnight + 10.5 * HOUR)
    clocked.submit(schedule="0 */3 * * *", overlap="allow_all")
    clocked.stop_clock(NOON + 3 * HOUR)
    decided(clocked)
    made = accept(clocked, midnight, NOON + 3 * HOUR, what="all", max_concurrent=100)
    make_batch(clocked, made)
    found = clocked.rows("SELECT scheduled_at, job_version, lane FROM runs WHERE cause = 'backfill' ORDER BY 1")
    hours = [(int((at - midnight) / HOUR), version, lane) for at, version, lane in found]
    first, second = [(n, 1, "batch") for n in (1, 2, 3, 4)], [(n, 2, "critical") for n in (6, 8)]
    assert hours == [*first, *second, (12, 3, "standard"), (15, 3, "standard")]
    assert clocked.claim(*(run.run_id for run in clocked.job_runs())).started


def test_current_version_is_the_one_at_acceptance(hourly: ClockedDatabase) -> None:
    hourly.submit(schedule="30 * * * *", overlap="allow_all")
    made = accept(hourly, NOON - 2 * HOUR, NOON, versions="current", what="all", max_concurrent=1)
    make_batch(hourly, made)
    hourly.submit(schedule="45 * * * *", overlap="allow_all")
    through(hourly, made)
    versions = {version for (version,) in hourly.rows("SELECT job_version FROM runs WHERE cause = 'backfill'")}
    assert (created_instants(hourly), versions) == ([NOON - 1.5 * HOUR, NOON - 0.5 * HOUR], {2})


def test_max_concurrent_bounds_open_backfill_runs(hourly: ClockedDatabase) -> None:
    made = accept(hourly, NOON - 3 * DAY, NOON, max_concurrent=7)
    while progress(hourly, made).state == "running":
        look(hourly)
        assert len(hourly.job_runs()) <= 7
        some = [run.run_id for run in hourly.job_runs()][::2]
        for started in hourly.claim(*some).started:
            hourly.succeed(started)
    assert len(created_instants(hourly)) == len(set(created_instants(hourly))) == 73


def test_max_concurrent_counts_open_occurrences_of_a_root(clocked: ClockedDatabase) -> None:
    clocked.stop_clock(NOON - 10 * DAY)
    clocked.submit(**HOURLY)
    clocked.apply_batch(submission("child", schedule={"after": ["job"]}))
    clocked.stop_clock(NOON)
    decided(clocked)
    made = accept(clocked, *RANGE, max_concurrent=2)
    for created in (2, 4, 5):
        make_batch(clocked, made)
        finish(clocked)  # the roots
        make_batch(clocked, made)
        drain_some(clocked, never())
        make_batch(clocked, made)
        finish(clocked)  # the children
        make_batch(clocked, made)
        assert len(created_instants(clocked)) == created
        drain_some(clocked, never())
    assert through(clocked, made).state == "finished"
    assert clocked.value("SELECT count(*) FROM workflows WHERE state = 'succeeded'") == 5


def test_backfill_runs_are_buffered_when_overlap_is_forbidden(clocked: ClockedDatabase) -> None:
    stopped_at_noon(clocked, schedule="0 * * * *")
    made = accept(clocked, *RANGE)
    assert make_batch(clocked, made) == 5
    claimed = clocked.claim(*(run.run_id for run in clocked.job_runs()))
    assert (len(claimed.started), len(claimed.overlaps.buffered), claimed.overlaps.skipped) == (1, 4, set())
    clocked.succeed(claimed.started[0])
    assert through(clocked, made).state == "finished"
    assert progress(clocked, made).facts["runs"] == {"succeeded": 5}


def test_newest_first_holds_with_buffered_runs(clocked: ClockedDatabase) -> None:
    stopped_at_noon(clocked, schedule="0 * * * *")
    made = accept(clocked, *RANGE, order="newest_first")
    seen: list[datetime] = []
    while make_batch(clocked, made):
        [run] = clocked.job_runs()
        seen.append(run.scheduled_at)
        clocked.succeed(clocked.begin(run.run_id))
    assert seen == FIVE[::-1]


def test_paused_backfill_creates_nothing_and_resumes_at_cursor(hourly: ClockedDatabase) -> None:
    made = accept(hourly, *RANGE, max_concurrent=2)
    assert look(hourly) == 2
    move(hourly, "pause", made)
    finish(hourly)
    assert look(hourly) == 0
    move(hourly, "resume", made)
    assert through(hourly, made).state == "finished"
    assert created_instants(hourly) == FIVE


def test_cancelled_backfill_ends_unstarted_runs_only(hourly: ClockedDatabase) -> None:
    made = accept(hourly, *RANGE, max_concurrent=3)
    other = accept(hourly, *RANGE, what="all", max_concurrent=2)
    make_batch(hourly, made)
    begun = hourly.begin(hourly.job_runs()[0].run_id)
    make_batch(hourly, other)
    assert move(hourly, "cancel", made, reason="wrong range").backfill_status == "cancelled"
    ended = [event for event in hourly.completions() if event.status == "cancelled"]
    assert [(event.cause, event.reason, event.attempt) for event in ended] == [("backfill", "wrong range", 0)] * 2
    assert hourly.open_run(begun.run_id).state == RunState.RUNNING
    assert len(hourly.job_runs()) == 3  # the other backfill's two are not touched
    assert make_batch(hourly, made) == 0
    hourly.succeed(begun)
    stands = progress(hourly, made)
    assert (stands.state, stands.facts["runs"]) == ("cancelled", {"succeeded": 1, "cancelled": 2})


def test_deleting_job_cancels_its_backfills(hourly: ClockedDatabase) -> None:
    """Also a job that exists again before the next step."""
    made = accept(hourly, *RANGE, max_concurrent=2)
    make_batch(hourly, made)
    [first, second] = hourly.job_runs()
    hourly.apply_batch(about("job.delete"), submission(**HOURLY))
    assert make_batch(hourly, made) == 0
    summary = progress(hourly, made)
    assert (summary.state, summary.reason, summary.done_count) == ("cancelled", "job_deleted", 2)
    assert [hourly.final_state(run.run_id) for run in (first, second)] == [("cancelled", "job_deleted")] * 2
    [event] = [event for event in hourly.lifecycle() if event.type == "io.tidewheel.job.backfill_cancelled.v1"]
    assert event.reason == "job_deleted"


def test_paused_backfill_is_cancelled_with_its_job(hourly: ClockedDatabase) -> None:
    made = accept(hourly, *RANGE)
    move(hourly, "pause", made, reason="later")
    look(hourly)
    assert progress(hourly, made).state == "paused"
    hourly.apply_batch(about("job.delete"), submission(**HOURLY))
    look(hourly)
    summary = progress(hourly, made)
    assert (summary.state, summary.reason, summary.finished_at) == ("cancelled", "job_deleted", NOON)


def test_failing_backfill_is_paused_with_reason_and_others_continue(hourly: ClockedDatabase) -> None:
    bad, good = accept(hourly, *RANGE), accept(hourly, *RANGE, what="all")
    hourly.execute("UPDATE backfills SET versions = 'current', job_version = 99 WHERE backfill_id = %s", [bad])
    hourly.execute(
        "INSERT INTO job_versions (job_id, version, tenant, effective_at, spec, schedule_json, handler, queue, lane,"
        " overlap, definition) SELECT job_id, 99, tenant, '2100-01-01', '{}', '{}', '-', 'default', 'standard',"
        " 'skip', '' FROM jobs"
    )
    look(hourly)
    summary = progress(hourly, bad)
    assert summary.state == "paused"
    assert summary.reason is not None
    assert summary.reason.startswith("ScheduleRefused")
    assert progress(hourly, good).done_count == 5


def test_long_range_is_scanned_in_bounded_batches(hourly: ClockedDatabase) -> None:
    hourly.submit(schedule="* * * * * *", overlap="allow_all")
    hourly.stop_clock(NOON + HOUR)
    hourly.execute("UPDATE timers SET scheduled_at = %s, due_at = %s", [NOON + DAY, NOON + DAY])
    made = accept(hourly, NOON, NOON + HOUR, max_concurrent=1000)
    assert [make_batch(hourly, made) for _ in range(11)] == [100] * 10 + [0]
    again = accept(hourly, NOON, NOON + timedelta(seconds=1000), max_concurrent=1000)
    make_batch(hourly, again)
    summary = progress(hourly, again)
    assert (summary.facts["created"], summary.done_count) == (0, 500)
    assert summary.facts["next_at"] == "2026-11-20T12:08:20Z"


def test_two_schedulers_create_each_backfill_run_once(hourly: ClockedDatabase) -> None:
    """The second starts before the first commits: it skips all backfills of the job."""
    made, other = accept(hourly, *RANGE), accept(hourly, *RANGE)
    first, second = hourly.session(), hourly.session()
    blocking, writer = hourly.connection(), first.connection()
    # The first one blocks where it writes its runs, behind a lock of the table.
    blocking.execute("LOCK TABLE backfills IN SHARE MODE")
    writing = in_background(lambda: create_next_runs(first, hourly.installation, made))
    until_blocked(hourly, writer)
    assert create_next_runs(second, hourly.installation, made) == (0, False)
    blocking.rollback()
    assert writing.result(30)[0] == 5
    assert create_next_runs(second, hourly.installation, other)[0] == 0
    assert created_instants(hourly) == FIVE
