"""A change of a calendar holds at once and exactly for every job that names it."""

from datetime import UTC, datetime, timedelta
from typing import Any

from tests.fixtures.acts import about, refusal, submission
from tests.fixtures.database import ClockedDatabase, Database
from tests.scheduler.firing import fire_due
from tests.transitions.stepping import batch_behind
from tidewheel.schemas.generated.records import Reply

SECOND = timedelta(seconds=1)
DAY = timedelta(days=1)
FRIDAY_NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
DAILY: dict[str, Any] = {"schedule": {"cron": "0 9 * * *"}, "overlap": "allow_all"}


def put(database: Database, name: str = "holidays", **fields: object) -> Reply:
    return database.apply(putting(name, **fields))


def putting(name: str = "holidays", **fields: object) -> dict[str, object]:
    return {"type": "calendar.put", "name": name} | (fields or {"weekdays": ["SAT", "SUN"]})


def deleting(name: str = "holidays") -> dict[str, object]:
    return {"type": "calendar.delete", "name": name}


def fired(database: Database) -> list[datetime]:
    return [at for (at,) in database.rows("SELECT scheduled_at FROM runs ORDER BY scheduled_at")]


def skipped(database: Database) -> list[tuple[str, datetime, datetime, int]]:
    return database.rows("SELECT reason, first_at, last_at, occurrences FROM skips ORDER BY first_at")


def timer(database: Database) -> tuple[datetime, datetime]:
    [row] = database.rows("SELECT scheduled_at, due_at FROM timers")
    return row


def november(day: int, hour: int = 9, minute: int = 0, second: int = 0) -> datetime:
    return datetime(2026, 11, day, hour, minute, second, tzinfo=UTC)


def test_identical_calendar_put_changes_nothing(friday: Database) -> None:
    first = put(friday, days=["2026-12-26", "2026-12-25", "2026-12-25"], weekdays=["SUN"], source="by hand")
    again = put(friday, days=["2026-12-25", "2026-12-26"], weekdays=[0], source="by hand")
    assert [(r.status, r.unchanged, r.key) for r in (first, again)] == [
        ("accepted", False, None),
        ("accepted", True, None),
    ]
    [row] = friday.rows("SELECT version, days::text[], weekdays, source FROM calendars")
    assert row == (1, ["2026-12-25", "2026-12-26"], [0], "by hand")
    assert not put(friday, days=["2026-12-25"]).unchanged
    assert friday.rows("SELECT version, weekdays, source FROM calendars") == [(2, [], None)]


def test_job_fires_on_open_days_only_and_excluded_days_are_recorded(friday: ClockedDatabase) -> None:
    put(friday)
    assert friday.submit(**DAILY, exclude_calendars=["holidays"]).next_run_at == november(23)
    friday.stop_clock(november(24, 10))
    fire_due(friday)
    friday.stop_clock(november(24, 10))
    assert fired(friday) == [november(24)]
    assert ("excluded", november(21), november(22), 2) in skipped(friday)
    assert timer(friday) == (november(25), november(25))


def test_job_with_included_days_fires_on_them_only(friday: ClockedDatabase) -> None:
    put(friday, "paydays", days=["2026-11-26", "2026-12-26"])
    put(friday, "weekend")
    reply = friday.submit(**DAILY, include_calendars=["paydays"], exclude_calendars=["weekend"])
    assert reply.next_run_at == november(26)
    friday.stop_clock(november(26))
    fire_due(friday)
    assert fired(friday) == [november(26)]
    assert friday.submit(**DAILY, include_calendars=["paydays"], exclude_calendars=["weekend"]).next_run_at is None
    friday.stop_clock(november(26) + 366 * DAY)  # 26 December was a Saturday: what is left out is recorded once a year
    fire_due(friday)
    assert fired(friday) == [november(26)]
    assert skipped(friday)[-1] == ("excluded", november(27), november(26) + 366 * DAY, 366)


def test_put_retracts_runs_ahead_of_a_newly_excluded_day(friday: ClockedDatabase) -> None:
    put(friday, days=["2027-01-01"])
    friday.submit(schedule="@every 1s", overlap="allow_all", exclude_calendars=["holidays"])
    friday.advance(2 * SECOND)
    fire_due(friday, lookahead=5 * SECOND)
    assert len(fired(friday)) == 7
    put(friday, days=["2026-11-20"])
    assert fired(friday) == [FRIDAY_NOON + SECOND, FRIDAY_NOON + 2 * SECOND]
    assert timer(friday)[1] == november(21, 0)
    fire_due(friday, lookahead=5 * SECOND)
    assert len(friday.job_runs()) == 2


def test_occurrences_excluded_before_a_put_stay_excluded(friday: ClockedDatabase) -> None:
    put(friday, days=["2026-11-20"])
    friday.submit(schedule="@every 1s", overlap="allow_all", exclude_calendars=["holidays"])
    friday.advance(3 * SECOND)
    put(friday, days=["2027-01-01"])
    assert skipped(friday) == [("excluded", FRIDAY_NOON + SECOND, FRIDAY_NOON + 3 * SECOND, 3)]
    friday.advance(SECOND)
    fire_due(friday)
    assert fired(friday) == [FRIDAY_NOON + 4 * SECOND]


def test_job_without_open_days_continues_when_a_put_opens_days(friday: ClockedDatabase) -> None:
    put(friday, "only", days=["2026-11-25"])
    friday.submit(**DAILY, include_calendars=["only"])
    put(friday, "only", days=["2026-11-19"])
    fire_due(friday)
    assert fired(friday) == []
    put(friday, "only", days=["2026-11-19", "2026-11-30"])
    assert timer(friday)[1] == november(30)
    assert friday.value("SELECT finished_at IS NULL FROM jobs")


def test_fired_once_does_not_fire_again_when_its_day_is_opened(friday: ClockedDatabase) -> None:
    put(friday, days=["2027-01-01"])
    friday.submit(schedule={"once": "2026-11-20T12:00:10Z"}, exclude_calendars=["holidays"])
    friday.advance(10 * SECOND)
    fire_due(friday)
    put(friday, days=["2026-11-20"])
    put(friday, days=["2027-01-01"])
    assert (fired(friday), friday.count("timers")) == ([FRIDAY_NOON + 10 * SECOND], 0)


def test_once_on_a_day_excluded_and_opened_again_fires_at_its_time(friday: ClockedDatabase) -> None:
    put(friday, days=["2027-01-01"])
    friday.submit(schedule={"once": "2026-11-20T12:00:10Z"}, exclude_calendars=["holidays"])
    fire_due(friday, lookahead=20 * SECOND)
    put(friday, days=["2026-11-20"])
    assert fired(friday) == []
    put(friday, days=["2027-01-01"])
    friday.advance(10 * SECOND)
    fire_due(friday)
    assert fired(friday) == [FRIDAY_NOON + 10 * SECOND]


def test_pause_survives_a_put_and_ends_by_the_new_days(friday: ClockedDatabase) -> None:
    put(friday, days=["2027-01-01"])
    friday.submit(**DAILY, exclude_calendars=["holidays"], on_resume="fire_all", window="240h")
    friday.apply_batch(about("job.pause"))
    friday.stop_clock(november(23, 10))
    put(friday)
    assert friday.rows("SELECT hold_reason, due_at = 'infinity' FROM timers") == [("pause", True)]
    friday.stop_clock(november(28, 10))
    friday.accept(about("job.resume"))
    fire_due(friday)
    assert [count for reason, _, _, count in skipped(friday) if reason == "paused"] == []
    assert fired(friday) == [november(day) for day in (23, 24, 25, 26, 27)]


def test_unknown_calendar_is_refused_with_the_nearest_name(friday: Database) -> None:
    put(friday, "german-holidays")
    names = ["german-holidays", "german-holiday"]
    error = friday.refuse(submission(**DAILY, exclude_calendars=names[:1], include_calendars=names))
    assert (error.path, error.remedy) == ("job.include_calendars.1", "did you mean 'german-holidays'?")
    assert friday.count("jobs") == 0


def test_calendars_of_another_tenant_are_unknown(friday: Database) -> None:
    friday.execute("INSERT INTO tenants (tenant) VALUES ('other')")
    friday.apply_batch(putting() | {"tenant": "other"})
    assert friday.refuse(submission(**DAILY, exclude_calendars=["holidays"])).remedy == "create the calendar first"


def test_job_without_any_open_day_is_refused(friday: Database) -> None:
    put(friday)
    saturdays = submission(schedule={"cron": "0 9 * * SAT"}, exclude_calendars=["holidays"])
    assert friday.refuse(saturdays).path == "job.exclude_calendars"


def test_calendar_is_deleted_once_no_job_names_it(friday: Database) -> None:
    put(friday)
    for key in ("b", "a"):
        friday.submit(key, **DAILY, exclude_calendars=["holidays"])
    error = friday.refuse(deleting())
    assert (error.path, error.problem) == ("name", "2 jobs use it, 'a' first")
    friday.submit("a", **DAILY)
    friday.apply_batch(about("job.delete", "b"))
    assert [reply.status for reply in friday.apply_batch(deleting(), deleting())] == ["accepted", "rejected"]
    assert friday.count("calendars") == 0


def test_deletion_of_an_unknown_calendar_is_refused_with_the_known_ones(friday: Database) -> None:
    put(friday, "holidays")
    reply = friday.apply(deleting("weekends-and-more"))
    assert (reply.code, refusal(reply).path) == ("unknown_calendar", "name")
    assert refusal(reply).remedy == "write one of holidays"


def test_job_follows_the_calendars_of_its_current_version_only(friday: ClockedDatabase) -> None:
    put(friday, "old", days=["2027-01-01"])
    put(friday, "new", days=["2027-01-01"])
    friday.submit(**DAILY, exclude_calendars=["old"])
    friday.submit(**DAILY, exclude_calendars=["new"], include_calendars=[])
    put(friday, "old", days=["2026-11-21"])
    assert timer(friday)[1] == november(21)
    put(friday, "new", days=["2026-11-21"])
    assert timer(friday)[1] == november(22)


def test_submit_waits_for_a_concurrent_put_and_follows_its_days(friday: ClockedDatabase) -> None:
    put(friday, days=["2027-01-01"])
    [reply] = batch_behind(
        friday,
        lambda connection: friday.apply_batch_within(connection, putting(days=["2026-11-21"])),
        submission(**DAILY, exclude_calendars=["holidays"]),
    )
    assert reply.next_run_at == november(22)


def test_put_waits_for_a_concurrent_submit_and_applies_to_its_job(friday: ClockedDatabase) -> None:
    put(friday, days=["2027-01-01"])
    submit = submission(**DAILY, exclude_calendars=["holidays"])
    batch_behind(friday, lambda connection: friday.apply_batch_within(connection, submit), putting(days=["2026-11-21"]))
    assert timer(friday)[1] == november(22)


def test_firing_that_waits_for_a_concurrent_put_follows_its_days(friday: ClockedDatabase) -> None:
    """Were the days read before the timer was locked, the run would be made on a day that is excluded."""
    put(friday, days=["2027-01-01"])
    friday.submit(schedule="@every 1s", overlap="allow_all", exclude_calendars=["holidays"])
    connection = friday.connection()
    friday.apply_batch_within(connection, putting(days=["2026-11-20"]))
    friday.advance(SECOND)
    fire_due(friday)
    connection.commit()
    fire_due(friday)
    assert fired(friday) == []


def test_once_on_an_excluded_day_fires_on_the_next_business_day(friday: ClockedDatabase) -> None:
    put(friday)
    once: dict[str, Any] = {"schedule": {"once": "2026-11-21T09:00:00Z"}, "exclude_calendars": ["holidays"]}
    assert friday.refuse(submission(**once)).path == "job.exclude_calendars"
    friday.submit(**once, on_excluded="next_business_day")
    for day in (21, 22, 23, 24):
        friday.stop_clock(november(day))
        fire_due(friday)
    assert (fired(friday), friday.count("timers")) == ([november(23)], 0)
    assert skipped(friday) == [("excluded", november(21), november(21), 1)]
