"""`explain` without records, for a read-only role, and over years of occurrences."""

from datetime import timedelta
from uuid import UUID

import pytest

from tests.control.cli.command import tidewheel
from tests.control.explain.explaining import explanation_of, fire_all, t
from tests.fixtures.database import ClockedDatabase
from tests.fixtures.work import counted
from tidewheel.control.explain.explain import around, explain
from tidewheel.control.explain.explanation import Explanation, OccurrenceOutcome
from tidewheel.control.explain.text import MANUAL
from tidewheel.control.explain.upcoming import upcoming
from tidewheel.control.instants import read_instant, unit_of
from tidewheel.errors import ScheduleRefused, UnknownJob

DAILY = {"cron": "0 9 * * *"}


def test_missing_records_are_reported(clocked: ClockedDatabase) -> None:
    clocked.stop_clock(t("03-02T08:00"))
    clocked.submit(schedule=DAILY)
    clocked.stop_clock(t("03-02T09:00:05"))
    fire_all(clocked)
    clocked.execute("DELETE FROM job_runs")
    lost = explanation_of(clocked, t("03-02T09:00"))
    assert lost.outcome is OccurrenceOutcome.UNKNOWN
    assert "please report" in lost.words
    clocked.execute("DELETE FROM timers")
    clocked.stop_clock(t("03-03T09:10"))
    assert "timer row is missing" in explanation_of(clocked, t("03-03T09:00")).words


def test_unknown_job_or_invalid_instant_is_refused(clocked: ClockedDatabase) -> None:
    with pytest.raises(UnknownJob):
        explanation_of(clocked, t("03-02T09:00"), "nobody")
    clocked.submit()
    for at in (t("03-02T09:00").replace(tzinfo=None), t("03-02T09:00").replace(year=9999)):
        with pytest.raises(ScheduleRefused) as caught:
            explanation_of(clocked, at)
        assert caught.value.errors[0].path == "at"


def test_job_that_became_manual_keeps_its_occurrences(clocked: ClockedDatabase) -> None:
    clocked.stop_clock(t("03-02T08:00"))
    clocked.submit(schedule=DAILY)
    clocked.stop_clock(t("03-02T09:00:02"))
    fire_all(clocked)
    clocked.stop_clock(t("03-02T10:00"))
    clocked.submit()
    assert explanation_of(clocked, t("03-02T10:00")).before == t("03-02T09:00")
    last = clocked.within(around, "default", "job").last
    assert last is not None
    assert last.outcome is OccurrenceOutcome.FIRED


def test_read_only_role_can_explain(clocked: ClockedDatabase) -> None:
    clocked.stop_clock(t("03-02T08:00"))
    clocked.submit(schedule=DAILY)
    clocked.stop_clock(t("03-02T09:00:02"))
    fire_all(clocked)
    with clocked.transaction() as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        connection.execute("SET LOCAL ROLE pg_read_all_data")
        connection.execute("SET LOCAL tidewheel.tenant = 'default'")
        assert explain(connection, "default", "job", t("03-02T09:00")).outcome is OccurrenceOutcome.FIRED
        assert upcoming(connection, "default", "job").occurrences[0].at == t("03-03T09:00")


def test_years_of_a_one_second_job_are_explained_with_bounded_work(clocked: ClockedDatabase) -> None:
    clocked.stop_clock(t("03-02T08:00:00"))
    clocked.submit(schedule={"interval": "1s"})
    clocked.stop_clock(t("03-02T08:00").replace(year=2036))
    fire_all(clocked)
    with counted() as work:
        said = explanation_of(clocked, t("12-24T18:00").replace(year=2031))
    assert (said.outcome, said.reason) == (OccurrenceOutcome.SKIPPED, "misfire")
    assert said.span is not None
    assert not said.span.exact, "counting them all would take seconds"
    assert "at least" in said.words
    assert work.calls < 10_000, "there are 288 million seconds to walk through"


def explained_at(database: ClockedDatabase, key: str, text: str) -> Explanation:
    with database.transaction() as connection:
        at = read_instant(text, "--at", now=database.now())
        return explain(connection, "default", key, at, unit=unit_of(text))


def test_a_time_without_parts_of_a_second_finds_an_occurrence_that_has_them(clocked: ClockedDatabase) -> None:
    clocked.stop_clock(t("03-02T08:00:07") + timedelta(milliseconds=123))
    clocked.submit("sync", schedule={"interval": "40s"})
    at = t("03-02T08:00:47") + timedelta(milliseconds=123)
    clocked.stop_clock(at)
    fire_all(clocked)
    found = explained_at(clocked, "sync", "08:00:47")
    assert (found.at, found.outcome) == (at, OccurrenceOutcome.FIRED)
    assert explained_at(clocked, "sync", "08:00").at == at, "the only one of its minute"
    for text in ("08:00:46", "08:02"):
        missed = explained_at(clocked, "sync", text)
        assert missed.outcome is OccurrenceOutcome.NO_OCCURRENCE, "the minute has two"
    shown = tidewheel(clocked, "explain", "sync", "--at", "2026-03-02T08:00:47Z").out
    assert "sync at 2026-03-02T08:00:47.123000Z: fired" in shown


def test_a_time_of_a_job_without_a_schedule_names_the_run_of_its_minute_or_those_near(
    clocked: ClockedDatabase,
) -> None:
    clocked.stop_clock(t("03-02T07:00"))
    clocked.submit("by-hand")
    instants = [t("03-02T08:00:07.123"), t("03-02T09:30"), t("03-02T09:30:41")]
    runs: list[UUID] = []
    for at in instants:
        clocked.stop_clock(at)
        runs.append(clocked.trigger("by-hand"))
    clocked.stop_clock(t("03-02T10:00"))
    found = explained_at(clocked, "by-hand", "8am")
    assert found.at == instants[0], "the only run of its minute"
    assert [each.run_id for each in found.others] == runs[:1]
    between = explained_at(clocked, "by-hand", "9am")
    assert (between.outcome, between.words) == (OccurrenceOutcome.NO_OCCURRENCE, MANUAL)
    assert (between.between_runs, between.before, between.after) == (True, *instants[:2])
    assert "before 2026-03-02T08:00:07.123" in " ".join(
        tidewheel(clocked, "explain", "by-hand", "--at", "2026-03-02T09:00Z").out.split()
    )
    assert "the job has had no occurrence" in tidewheel(clocked, "explain", "by-hand", "--last", "24h").out
