"""`explain` without records, for a read-only role, and over years of occurrences."""

import pytest

from tests.control.explain.explaining import explanation_of, fire_all, t
from tests.fixtures.database import ClockedDatabase
from tests.fixtures.work import counted
from tests.transitions.acts import submit
from tidewheel.control.explain.explain import explain
from tidewheel.control.explain.explanation import OccurrenceOutcome
from tidewheel.control.explain.recent import around
from tidewheel.control.explain.upcoming import upcoming
from tidewheel.errors import ScheduleRefused, UnknownJob

DAILY = {"cron": "0 9 * * *"}


def test_missing_records_are_reported(clocked: ClockedDatabase) -> None:
    clocked.stop_clock(t("03-02T08:00"))
    submit(clocked, schedule=DAILY)
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
    submit(clocked)
    for at in (t("03-02T09:00").replace(tzinfo=None), t("03-02T09:00").replace(year=9999)):
        with pytest.raises(ScheduleRefused) as caught:
            explanation_of(clocked, at)
        assert caught.value.errors[0].path == "at"


def test_a_manual_job_has_no_occurrences(clocked: ClockedDatabase) -> None:
    clocked.stop_clock(t("03-02T08:00"))
    submit(clocked)
    manual = explanation_of(clocked, t("03-02T09:00"))
    assert manual.outcome is OccurrenceOutcome.NO_OCCURRENCE
    assert "triggers create its runs" in manual.words


def test_job_that_became_manual_keeps_its_occurrences(clocked: ClockedDatabase) -> None:
    clocked.stop_clock(t("03-02T08:00"))
    submit(clocked, schedule=DAILY)
    clocked.stop_clock(t("03-02T09:00:02"))
    fire_all(clocked)
    clocked.stop_clock(t("03-02T10:00"))
    submit(clocked)
    assert explanation_of(clocked, t("03-02T10:00")).before == t("03-02T09:00")
    with clocked.transaction() as connection:
        last = around(connection, "default", "job").last
    assert last is not None
    assert last.outcome is OccurrenceOutcome.FIRED


def test_read_only_role_can_explain(clocked: ClockedDatabase) -> None:
    clocked.stop_clock(t("03-02T08:00"))
    submit(clocked, schedule=DAILY)
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
    submit(clocked, schedule={"interval": "1s"})
    clocked.stop_clock(t("03-02T08:00").replace(year=2036))
    fire_all(clocked)
    with counted() as work:
        said = explanation_of(clocked, t("12-24T18:00").replace(year=2031))
    assert (said.outcome, said.reason) == (OccurrenceOutcome.SKIPPED, "misfire")
    assert said.span is not None
    assert not said.span.exact, "counting them all would take seconds"
    assert "at least" in said.words
    assert work.calls < 10_000, "there are 288 million seconds to walk through"
