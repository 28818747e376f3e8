"""A new tzdata reschedules the timers of changed zones only, also after a stop midway."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, LiteralString, TypeAlias

import pytest

from tests.fixtures.acts import about
from tests.fixtures.database import ClockedDatabase, Database
from tests.fixtures.services import until
from tests.fixtures.zones import make_tzdata, tzdata
from tests.scheduler.firing import fire_due
from tests.strict_types import ROOT
from tidewheel.scheduler import tzdata_refresh as zones_changed
from tidewheel.scheduler.tzdata_refresh import TzdataRefresh
from tidewheel.schedules.zones import tzdata_version

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
INSTALLED, NEW = tzdata_version(), "2099a"
# What the new rules say: Berlin's clock is Tokyo's, Paris's New York's, and Kolkata's half hour is gone.
RULES = {"Europe/Berlin": "Asia/Tokyo", "Europe/Paris": "America/New_York", "Asia/Kolkata": "Asia/Dhaka"}

Job: TypeAlias = Mapping[str, Any]

DAILY: Job = {"schedule": {"cron": "0 8 * * *", "timezone": "Europe/Berlin"}}
HOURLY: Job = {"schedule": {"cron": "0 * * * *", "timezone": "Asia/Kolkata"}, "overlap": "allow_all"}
EACH_SECOND: Job = {"schedule": {"cron": "* * * * * *", "timezone": "Asia/Kolkata"}, "overlap": "allow_all"}

TIMER: LiteralString = """
SELECT t.scheduled_at, nullif(t.due_at, 'infinity'), t.hold_reason
  FROM timers AS t JOIN jobs AS j USING (job_id)
 WHERE j.key = %s
"""
STORED: LiteralString = "SELECT value FROM settings WHERE name = 'tzdata'"
FORGET: LiteralString = "UPDATE settings SET value = 'null' WHERE name = 'tzdata'"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tzdata(tmp_path_factory.mktemp("tzdata"), NEW, RULES)


@pytest.fixture
def noon(clocked: ClockedDatabase) -> Iterator[ClockedDatabase]:
    clocked.execute(FORGET)
    clocked.stop_clock(NOON)
    look(clocked)
    yield clocked
    clocked.execute(FORGET)


def look(database: Database) -> None:
    zones = TzdataRefresh(database.session(), database.installation)
    while zones.step():
        pass


def timer(database: Database, key: str = "job") -> tuple[datetime, datetime | None, str | None]:
    [(scheduled_at, due_at, held)] = database.rows(TIMER, [key])
    return scheduled_at, due_at, held


def retimed(database: Database) -> list[tuple[str, str, str]]:
    """The events: key, old instant, new instant."""
    events = [event for event in database.lifecycle() if event.type == "io.tidewheel.job.rescheduled.v1"]
    told = [(event.job_key, event.detail["from"], event.detail["to"]) for event in events]
    return [(key, was.replace(".000000", ""), now.replace(".000000", "")) for key, was, now in told]


def test_moved_timer_is_rescheduled_with_event(noon: ClockedDatabase, folder: Path) -> None:
    noon.submit(**DAILY)
    assert timer(noon)[0] == NOON + 19 * HOUR
    with tzdata(folder):
        look(noon)
        assert timer(noon) == (NOON + 11 * HOUR, NOON + 11 * HOUR, None)
        assert retimed(noon) == [("job", "2026-11-21T07:00:00Z", "2026-11-20T23:00:00Z")]
        assert noon.value(STORED) == NEW
        [*_, change] = noon.value("SELECT value FROM settings WHERE name = 'tzdata_changes'")
        assert (change["from"], change["to"], change["at"][:19]) == (INSTALLED, NEW, f"{NOON:%Y-%m-%dT%H:%M:%S}")
        noon.stop_clock(NOON + 11 * HOUR)
        fire_due(noon)
        assert [run.scheduled_at for run in noon.job_runs()] == [NOON + 11 * HOUR]


@pytest.mark.parametrize(
    "schedule",
    [
        {"cron": "0 8 * * *", "timezone": "America/New_York"},
        {"cron": "0 8 * * *"},
        {"cron": "30 * * * *", "timezone": "Europe/Berlin"},  # whole hours apart: the same instants
        {"interval": "1h"},
        {"once": "2026-12-01T00:00:00Z"},
        {"fixed_delay": "1h"},
        "manual",
    ],
    ids=str,
)
def test_unmoved_timer_is_unchanged(noon: ClockedDatabase, folder: Path, schedule: object) -> None:
    noon.submit(schedule=schedule)
    before = noon.rows("SELECT t.*, t.xmin FROM timers AS t")
    with tzdata(folder):
        look(noon)
    assert noon.rows("SELECT t.*, t.xmin FROM timers AS t") == before
    assert retimed(noon) == []


def test_run_ahead_without_occurrence_is_retracted(noon: ClockedDatabase, folder: Path) -> None:
    noon.stop_clock(NOON + timedelta(minutes=29, seconds=50))
    noon.submit(**HOURLY)
    fire_due(noon, lookahead=timedelta(seconds=60))
    assert [run.scheduled_at for run in noon.job_runs()] == [NOON + HOUR / 2]
    with tzdata(folder):
        look(noon)
        assert noon.job_runs() == []
        assert noon.count("runs") == 0
        assert retimed(noon) == [("job", "2026-11-20T12:30:00Z", "2026-11-20T13:00:00Z")]
        noon.stop_clock(NOON + HOUR)
        fire_due(noon)
        assert [run.scheduled_at for run in noon.job_runs()] == [NOON + HOUR]


def test_run_ahead_with_an_occurrence_is_kept(noon: ClockedDatabase, folder: Path) -> None:
    noon.submit(**EACH_SECOND)
    noon.apply_batch(about("job.skip", at=(NOON + timedelta(seconds=7)).isoformat()))
    fire_due(noon, lookahead=timedelta(seconds=60))
    before = noon.rows("SELECT o.run_id, o.xmin FROM job_runs AS o ORDER BY run_id")
    assert len(before) == 59
    with tzdata(folder):
        look(noon)
    assert noon.rows("SELECT o.run_id, o.xmin FROM job_runs AS o ORDER BY run_id") == before
    assert retimed(noon) == []


def test_manual_skip_survives_a_refresh(noon: ClockedDatabase, folder: Path) -> None:
    """One that only the new rules have cannot have been; one that both have is not fired after all."""
    noon.submit(schedule={"cron": "0,30 * * * *", "timezone": "Asia/Kolkata"})
    noon.submit("daily", **DAILY)
    noon.apply_batch(about("job.skip", "daily", at=(NOON + 43 * HOUR).isoformat()))  # 08:00 the day after tomorrow
    with tzdata(folder):
        look(noon)
        assert [key for key, _, _ in retimed(noon)] == ["daily"]
        noon.stop_clock(NOON + 11 * HOUR)
        fire_due(noon)
    assert noon.value("SELECT count(*) FROM overrides") == 1


@pytest.mark.parametrize("cron", ["0 8 * * *", ["30 * * * *", "0 8 * * *"]], ids=["all moved", "the next one stays"])
def test_move_without_occurrence_is_deleted(noon: ClockedDatabase, folder: Path, cron: object) -> None:
    """As at an edit: behind the timer it would count as one that was."""
    noon.submit(schedule={"cron": cron, "timezone": "Europe/Berlin"}, overlap="allow_all")
    at = NOON + 43 * HOUR
    [reply] = noon.apply_batch(about("job.move", at=at.isoformat(), to=(at + HOUR / 4).isoformat()))
    assert reply.status == "accepted"
    with tzdata(folder):
        look(noon)
        assert noon.count("overrides") == 0
        look(noon)
    assert len(retimed(noon)) == 1


def test_retracted_skip_is_recorded_again(noon: ClockedDatabase, folder: Path) -> None:
    """A day that is excluded ends at half past six by the old rules, and ended at six by the new ones."""
    second = timedelta(seconds=1)
    end = NOON + 6.5 * HOUR
    noon.stop_clock(end - 20 * second)
    noon.apply_batch({"type": "calendar.put", "name": "closed", "days": ["2026-11-20"]})
    noon.submit(**EACH_SECOND, exclude_calendars=["closed"])
    noon.stop_clock(end - 5 * second)
    fire_due(noon, lookahead=5 * second)
    noon.stop_clock(end - 3 * second)
    with tzdata(folder):
        look(noon)
        for n in range(-3, 4):
            noon.stop_clock(end + n * second)
            fire_due(noon)
    assert len(retimed(noon)) == 1
    [(first, last, occurrences)] = noon.rows("SELECT first_at, last_at, occurrences FROM skips")
    assert (first, last, occurrences) == (end - 19 * second, end - 5 * second, 15)
    assert [run.scheduled_at for run in noon.job_runs()] == [end + n * second for n in range(-4, 4)]


def test_due_timer_is_left_to_firing(noon: ClockedDatabase, folder: Path) -> None:
    noon.submit(**DAILY)
    noon.stop_clock(NOON + 20 * HOUR)
    before = timer(noon)
    with tzdata(folder):
        look(noon)
    assert timer(noon) == before
    assert retimed(noon) == []


def test_paused_job_stays_paused_and_resumes_by_the_new_rules(noon: ClockedDatabase, folder: Path) -> None:
    noon.submit(**DAILY)
    noon.apply_batch(about("job.pause"))
    with tzdata(folder):
        look(noon)
        assert timer(noon) == (NOON + 11 * HOUR, None, "pause")
        [reply] = noon.apply_batch(about("job.resume"))
    assert reply.next_run_at == NOON + 11 * HOUR


def test_job_without_occurrences_by_the_new_rules_is_finished(noon: ClockedDatabase, folder: Path) -> None:
    schedule = {"cron": "0 13 * * *", "timezone": "Europe/Paris"}
    noon.submit(schedule=schedule, start_at="2026-11-21T11:00:00Z", end_at="2026-11-21T12:00:00Z")
    with tzdata(folder):
        look(noon)
    assert noon.count("timers") == 0
    assert noon.value("SELECT finished_at FROM jobs") == NOON
    assert retimed(noon) == [("job", "2026-11-21T12:00:00Z", "never")]


def test_refresh_continues_on_another_scheduler(
    noon: ClockedDatabase, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zones_changed, "_BATCH", 2)
    for number in range(5):
        noon.submit(f"job-{number}", **DAILY)
    with tzdata(folder):
        first = TzdataRefresh(noon.session(), noon.installation)
        assert first.step()
        progress = noon.value(STORED)
        assert (progress["from"], progress["to"], len(retimed(noon))) == (INSTALLED, NEW, 2)
        look(noon)
        assert len(retimed(noon)) == 5
        assert noon.value(STORED) == NEW
        assert not first.step()
    assert len({key for key, _, _ in retimed(noon)}) == 5


def test_one_scheduler_refreshes_at_a_time(noon: ClockedDatabase, folder: Path) -> None:
    noon.submit(**DAILY)
    other = noon.connection()
    other.execute("SELECT FROM settings WHERE name = 'tzdata' FOR UPDATE")
    with tzdata(folder):
        look(noon)
        assert retimed(noon) == []
        other.rollback()
        look(noon)
    assert len(retimed(noon)) == 1


def test_uncomputable_job_does_not_block_refresh(noon: ClockedDatabase, folder: Path) -> None:
    noon.submit("broken", **DAILY)
    noon.submit("job", **DAILY)
    noon.execute(
        "UPDATE job_versions AS v SET schedule_json = replace(schedule_json, '0 8', '0 88') FROM jobs AS j"
        " WHERE j.job_id = v.job_id AND j.key = 'broken'"
    )
    with tzdata(folder):
        look(noon)
    assert [key for key, _, _ in retimed(noon)] == ["job"]
    assert noon.value(STORED) == NEW


@pytest.mark.slow
def test_scheduler_with_new_tzdata_reschedules_timers(fresh_database: Database, folder: Path) -> None:
    """A real process, in which the package is the only one there is."""
    fresh_database.submit(**DAILY)
    berlin = timer(fresh_database)[0]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]),
        "TIDEWHEEL_DATABASE_URL": fresh_database.url,
    }
    command = [sys.executable, "-m", "tidewheel.control.cli", "scheduler"]
    with subprocess.Popen(command, env=environment, cwd=folder, stderr=subprocess.DEVNULL) as scheduler:
        try:
            until(lambda: fresh_database.value(STORED) == NEW, "the version is stored")
        finally:
            scheduler.terminate()
    assert scheduler.returncode == 0
    now = fresh_database.now()
    tokyo = now.replace(hour=23, minute=0, second=0, microsecond=0)
    assert timer(fresh_database)[0] == (tokyo if tokyo > now else tokyo + 24 * HOUR) != berlin
    assert len(retimed(fresh_database)) == 1
