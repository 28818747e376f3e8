"""`job.backfill` bounds, counts and stores a past range once, or refuses it with a remedy."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from tests.fixtures.acts import about, refusal, submission
from tests.fixtures.database import ClockedDatabase
from tests.fixtures.work import counted
from tests.scheduler.backfills import accept, ask_backfill, asking, move, progress
from tests.scheduler.firing import fire_due
from tests.transitions.stepping import in_background, until_blocked
from tidewheel.errors import UnknownJob
from tidewheel.nouns.works.operations import list_works

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
HOURLY = {"schedule": "0 * * * *"}


@pytest.fixture
def hourly(clocked: ClockedDatabase) -> ClockedDatabase:
    """An hourly job, ten days old, without a run; the clock is stopped at noon."""
    clocked.stop_clock(NOON - 10 * DAY - HOUR / 2)
    clocked.submit(**HOURLY)
    clocked.stop_clock(NOON)
    # Whatever was missed is decided, as a scheduler does before it looks at backfills.
    clocked.execute("UPDATE timers SET scheduled_at = %s, due_at = %s", [NOON + HOUR, NOON + HOUR])
    return clocked


def test_new_backfill_is_stored_with_an_event_and_a_dry_run_writes_nothing(hourly: ClockedDatabase) -> None:
    before = hourly.count("outbox")
    dry = ask_backfill(hourly, NOON - 5 * HOUR, NOON, dry_run=True)
    assert (dry.status, dry.occurrences, dry.backfill_id) == ("accepted", 6, None)
    assert (hourly.count("backfills"), hourly.count("outbox")) == (0, before)
    reply = ask_backfill(hourly, NOON - 5 * HOUR, NOON, request_id="r-1", reason="the source was empty")
    assert (reply.status, reply.occurrences, reply.unchanged, reply.job_version) == ("accepted", 6, False, 1)
    shown = progress(hourly, UUID(reply.backfill_id))
    assert (shown.state, shown.matched_count, shown.done_count, shown.created_at) == ("running", 6, 0, NOON)
    assert {name: shown.filter[name] for name in ("job", "from", "to", "order", "versions")} == {
        "job": "job", "from": "2026-11-20T07:00:00Z", "to": "2026-11-20T12:00:00Z", "order": "oldest_first",
        "versions": "as_of",
    }  # fmt: skip
    assert shown.facts == {"needed": 6, "created": 0, "next_at": "2026-11-20T07:00:00Z", "ending": False, "runs": {}}
    [event] = [event for event in hourly.lifecycle() if event.type == "io.tidewheel.job.backfill_started.v1"]
    assert (event.reason, event.detail["occurrences"]) == ("the source was empty", "6")
    assert event.detail["backfill_id"] == reply.backfill_id
    assert hourly.job_runs() == []


def test_repeated_backfill_request_is_idempotent(hourly: ClockedDatabase) -> None:
    first = ask_backfill(hourly, NOON - 5 * HOUR, NOON, request_id="r-1")
    hourly.execute("DELETE FROM requests")  # the first answer is older than answers are kept
    again = ask_backfill(hourly, NOON - 5 * HOUR, NOON, request_id="r-1")
    assert (again.backfill_id, again.occurrences, again.unchanged) == (first.backfill_id, 6, True)
    assert hourly.count("backfills") == 1


def test_two_backfills_of_one_instant_have_different_ids(hourly: ClockedDatabase) -> None:
    hourly.apply_batch(asking(NOON - HOUR, NOON), asking(NOON - HOUR, NOON))
    with hourly.transaction() as connection:
        second, first = list_works(connection, "default", key="job")
        assert list_works(connection, "default") == [second, first]
        with pytest.raises(UnknownJob):
            list_works(connection, "default", key="other")
    assert second.created_at - first.created_at == timedelta(milliseconds=1)


def test_backfill_of_a_clock_before_1970_is_shown_and_counted(hourly: ClockedDatabase) -> None:
    backfill_id = accept(hourly, NOON - 5 * HOUR, NOON)
    hourly.execute("UPDATE backfills SET created_at = '1969-12-31T23:00:00Z', occurrences = 10001")
    shown = progress(hourly, backfill_id)
    assert (shown.created_at.year, shown.facts["runs"]) == (1969, {})
    assert (shown.matched_count, shown.is_counted) == (10_001, True), "each occurrence is counted"
    assert move(hourly, "cancel", backfill_id).backfill_status == "cancelled"


def test_missing_only_counts_occurrences_that_did_not_fire(clocked: ClockedDatabase) -> None:
    """Seven occurrences: run, open, missed, skipped for overlap, and three in a pause."""
    clocked.stop_clock(NOON)
    clocked.submit(**HOURLY)
    clocked.stop_clock(NOON + 1.5 * HOUR)
    fire_due(clocked)
    clocked.succeed(clocked.begin(clocked.job_runs()[0].run_id))
    clocked.stop_clock(NOON + 3.5 * HOUR)
    fire_due(clocked)  # fire_once: 14:00 is passed over, 15:00 runs
    clocked.begin(clocked.job_runs()[0].run_id)
    clocked.stop_clock(NOON + 4 * HOUR)
    fire_due(clocked)
    [_, second] = clocked.job_runs()
    with pytest.raises(ValueError, match="not enough values"):
        clocked.begin(second.run_id)
    clocked.apply_batch(about("job.pause"))
    clocked.stop_clock(NOON + 7.5 * HOUR)
    whole = (NOON, NOON + 7.5 * HOUR)
    assert ask_backfill(clocked, *whole, dry_run=True).occurrences == 5
    assert ask_backfill(clocked, *whole, dry_run=True, what="all").occurrences == 7


@pytest.mark.parametrize(("on_resume", "missing"), [("skip", 3), ("fire_all", 0), ("no pause", 0)])
def test_occurrences_that_are_yet_to_fire_are_not_missing(
    clocked: ClockedDatabase, on_resume: str, missing: int
) -> None:
    clocked.stop_clock(NOON)
    if on_resume == "no pause":
        clocked.submit(**HOURLY)
    else:
        clocked.submit(**HOURLY, on_resume=on_resume)
        clocked.apply(about("job.pause"))
    clocked.stop_clock(NOON + 3.5 * HOUR)
    assert ask_backfill(clocked, NOON, NOON + 3.5 * HOUR, dry_run=True).occurrences == missing


REFUSED: dict[str, tuple[tuple[datetime, datetime], dict[str, str], tuple[str, str, str]]] = {
    "in the future": (
        (NOON - HOUR, NOON + 2 * HOUR),
        {},
        ("to", "in the future", "write 2026-11-20T12:00:00.000000Z or earlier"),
    ),
    "unknown how it went": (
        (NOON - 12 * DAY, NOON),
        {},
        ("from", "runs of that time are deleted", "write 2026-11-09T00:00:00.000000Z or later, or what: all"),
    ),
    "no such job then": (
        (NOON - 12 * DAY, NOON - 11 * DAY),
        {},
        ("from", "no version of the job was in force in that range", "write versions: current"),
    ),
    "between two": (
        (NOON - HOUR / 3, NOON - HOUR / 4),
        {},
        ("from", "no occurrence in the range", "the nearest is 2026-11-20T12:00:00.000000Z"),
    ),
    "before time": (
        (datetime(1970, 1, 1, tzinfo=UTC), NOON),
        {"what": "all", "versions": "current"},
        ("to", "at least 100001 occurrences", "split the range into several"),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_range_is_refused_with_a_valid_one(hourly: ClockedDatabase, case: str) -> None:
    between, fields, (path, problem, remedy) = REFUSED[case]
    if case == "unknown how it went":
        hourly.execute("INSERT INTO run_days (day, waits_for, dropped_at) VALUES ('2026-11-08', '{}', now())")
    error = refusal(ask_backfill(hourly, *between, "job", **fields))
    assert (error.path, error.remedy) == (path, remedy)
    assert problem in error.problem
    assert hourly.count("backfills") == 0


@pytest.mark.parametrize(
    ("schedule", "problem"),
    [
        ("manual", "the job is manual and has no occurrences"),
        ({"fixed_delay": "1h"}, "version 1 is a fixed_delay, which has no occurrences to backfill"),
    ],
)
def test_a_job_without_computed_occurrences_is_refused(
    clocked: ClockedDatabase, schedule: object, problem: str
) -> None:
    clocked.stop_clock(NOON - 10 * DAY)
    clocked.submit(schedule=schedule)
    clocked.stop_clock(NOON)
    error = refusal(ask_backfill(clocked, NOON - HOUR, NOON))
    assert (error.path, error.problem.partition(":")[0]) == ("key", problem)


def test_million_instants_are_refused_without_listing_them(clocked: ClockedDatabase) -> None:
    clocked.stop_clock(NOON - 12 * DAY)
    clocked.submit(schedule="* * * * * *")
    clocked.stop_clock(NOON)
    with counted() as work:
        reply = ask_backfill(clocked, NOON - 12 * DAY, NOON)
    assert work.calls < 20_000
    assert "at least 100001 occurrences; a backfill runs at most 100000" in refusal(reply)[1]


def test_current_version_backfills_before_the_job_existed(hourly: ClockedDatabase) -> None:
    reply = ask_backfill(hourly, NOON - 400 * DAY, NOON - 399 * DAY, what="all", versions="current")
    assert reply.occurrences == 25


def test_once_in_the_range_is_run_again(clocked: ClockedDatabase) -> None:
    clocked.stop_clock(NOON)
    clocked.submit(schedule={"once": (NOON + HOUR).isoformat()})
    clocked.stop_clock(NOON + 2 * HOUR)
    fire_due(clocked)
    between = NOON, NOON + 2 * HOUR
    assert ask_backfill(clocked, *between, dry_run=True).occurrences == 0
    assert ask_backfill(clocked, *between, dry_run=True, what="all").occurrences == 1


@pytest.mark.landing
def test_job_has_at_most_a_hundred_unfinished_backfills(hourly: ClockedDatabase) -> None:
    hourly.apply_batch(*(asking(NOON - HOUR, NOON) for _ in range(100)))
    assert refusal(ask_backfill(hourly, NOON - HOUR, NOON))[2] == "wait for them, or cancel some"
    assert ask_backfill(hourly, NOON - HOUR, NOON, dry_run=True).occurrences == 2
    [(some,)] = hourly.rows("SELECT backfill_id FROM backfills LIMIT 1")
    move(hourly, "cancel", some)
    accept(hourly, NOON - HOUR, NOON)
    hourly.accept(about("job.delete"))
    hourly.submit(**HOURLY)
    accept(hourly, NOON - HOUR, NOON, versions="current")  # the deletion has ended the others


def test_backfill_state_changes_are_idempotent_and_report_the_state(hourly: ClockedDatabase) -> None:
    made = accept(hourly, NOON - 5 * HOUR, NOON)

    def said(kind: str) -> tuple[str | None, bool]:
        reply = move(hourly, kind, made)
        assert (reply.status, reply.backfill_id, reply.key) == ("accepted", str(made), "job")
        return reply.backfill_status, reply.unchanged

    assert said("resume") == ("running", True)
    assert said("pause") == ("paused", False)
    assert said("pause") == ("paused", True)
    assert said("resume") == ("running", False)
    assert said("cancel") == ("cancelled", False)
    assert [said(kind) for kind in ("cancel", "pause", "resume")] == [("cancelled", True)] * 3
    kinds = [event.type.split(".")[3] for event in hourly.lifecycle() if "backfill" in event.type]
    assert kinds == ["backfill_started", "backfill_paused", "backfill_resumed", "backfill_cancelled"]
    assert progress(hourly, made).finished_at == NOON


def test_backfill_of_another_tenant_cannot_be_changed(hourly: ClockedDatabase) -> None:
    made = accept(hourly, NOON - 5 * HOUR, NOON)
    hourly.execute("INSERT INTO tenants (tenant) VALUES ('other')")
    assert move(hourly, "cancel", made, tenant="other").code == "unknown_backfill"
    assert move(hourly, "cancel", UUID(int=7)).code == "unknown_backfill"
    assert progress(hourly, made).state == "running"


def test_calendars_of_the_versions_exclude_days_of_a_backfill(clocked: ClockedDatabase) -> None:
    clocked.stop_clock(NOON - 10 * DAY)
    weekend = {"type": "calendar.put", "name": "weekend", "weekdays": ["SAT", "SUN"]}
    clocked.apply_batch(weekend, submission(schedule="0 9 * * *", exclude_calendars=["weekend"]))
    clocked.stop_clock(NOON)
    assert ask_backfill(clocked, NOON - 7 * DAY, NOON, what="all").occurrences == 5
    # A version that is not current any more may name a calendar that is gone.
    clocked.submit(schedule="0 9 * * *")
    clocked.execute("DELETE FROM calendars")
    path, problem, _ = refusal(ask_backfill(clocked, NOON - 7 * DAY, NOON, what="all"))
    assert (path, problem) == ("from", "version 1 names the calendar 'weekend', which was deleted")
    assert ask_backfill(clocked, NOON - 7 * DAY, NOON, what="all", versions="current").occurrences == 7


def test_backfill_locks_the_timer_before_the_job(hourly: ClockedDatabase) -> None:
    """While it waits for the timer it holds no lock that the timer's owner may need."""
    firing, asked = hourly.connection(), hourly.connection()
    firing.execute("SELECT FROM timers FOR UPDATE")
    waiting = in_background(lambda: hourly.apply_batch_within(asked, asking(NOON - 5 * HOUR, NOON), about("job.pause")))
    until_blocked(hourly, asked)
    firing.execute("SELECT FROM jobs FOR NO KEY UPDATE NOWAIT")
    firing.commit()
    assert [reply.status for reply in waiting.result(30)] == ["accepted"] * 2
