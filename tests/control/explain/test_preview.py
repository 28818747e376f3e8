"""`preview` of an unsaved job and `next` of a saved one: what comes, by the code that fires it."""

from datetime import timedelta

import pytest

from tests.control.explain.explaining import calendar, coming, done, fire_all, previewed, t
from tests.fixtures.database import ClockedDatabase
from tests.scheduler.firing import fire_due
from tidewheel.control.client.client import Client
from tidewheel.control.explain.explanation import OccurrenceOutcome
from tidewheel.control.explain.upcoming import UpcomingOccurrence
from tidewheel.errors import Refused, UnknownJob
from tidewheel.ids import job_id, run_id
from tidewheel.jobs.spec import JobSpec
from tidewheel.runs import Cause, Overlap

JOB = job_id("default", "job")
DAILY = {"cron": "0 9 * * *"}


def shown(lines: tuple[UpcomingOccurrence, ...]) -> list[tuple[str, OccurrenceOutcome]]:
    return [(f"{line.at:%m-%dT%H:%M:%S}", line.outcome) for line in lines]


def test_preview_equals_the_firings_and_saves_nothing(clocked: ClockedDatabase) -> None:
    clocked.stop_clock(t("03-28T12:00"))
    seen = previewed(clocked, 3, schedule={"cron": "30 2 * * *", "timezone": "Europe/Berlin"}, jitter="10m")
    assert [line.at for line in seen.occurrences] == [t("03-29T01:00"), t("03-30T00:30"), t("03-31T00:30")]
    assert "02:30 does not exist" in " ".join(seen.occurrences[0].notes)
    assert (seen.zone, seen.version, seen.exhausted) == ("Europe/Berlin", 1, False)
    assert seen.occurrences[0].local.isoformat() == "2026-03-29T03:00:00+02:00"
    assert clocked.count("jobs") == 0
    job = clocked.submit(schedule={"cron": "30 2 * * *", "timezone": "Europe/Berlin"}, jitter="10m")
    assert job.next_run_at == seen.occurrences[0].at
    clocked.stop_clock(t("03-29T01:00"))
    fire_all(clocked)
    assert clocked.job_runs()[0].publish_at == seen.occurrences[0].leaves_at


def test_every_policy_is_described(clocked: ClockedDatabase) -> None:
    for policy in Overlap:
        words = previewed(clocked, schedule=DAILY, overlap=policy.value).words
        assert [line for line in words if line.startswith(f"overlap is {policy}: ")], policy
    misfire = "An occurrence is missed once it is 1 min late (misfire_after of the schedulers)."
    assert misfire in previewed(clocked, schedule=DAILY).words
    assert misfire not in previewed(clocked).words, "a manual job misses nothing"


def test_preview_marks_the_occurrences_that_a_pause_or_a_freeze_holds(clocked: ClockedDatabase) -> None:
    clocked.stop_clock(t("03-02T08:00"))
    clocked.submit(schedule=DAILY)
    done(clocked, "job.pause")
    later = {"cron": "0 10 * * *"}
    seen = previewed(clocked, 2, schedule=later)
    assert [line.outcome for line in seen.occurrences] == [OccurrenceOutcome.PAUSED] * 2
    done(clocked, "job.pause", until="2026-03-04T00:00:00Z")
    until = previewed(clocked, 1, schedule=later).occurrences
    assert shown(until) == [
        ("03-02T10:00:00", OccurrenceOutcome.PAUSED),
        ("03-04T10:00:00", OccurrenceOutcome.SCHEDULED),
    ]
    done(clocked, "job.resume")
    clocked.client.freezes.freeze(queue="default", reason="closed")
    seen = previewed(clocked, 2, schedule=later)
    assert [line.outcome for line in seen.occurrences] == [OccurrenceOutcome.PAUSED] * 2
    assert seen.words[-1].startswith("The job is frozen")


def test_preview_of_a_change_keeps_what_the_job_keeps(clocked: ClockedDatabase) -> None:
    clocked.stop_clock(t("03-02T08:00:07"))
    clocked.submit(schedule={"interval": "10m"}, max_runs=3)
    clocked.stop_clock(t("03-02T08:15"))
    fire_all(clocked)
    seen = previewed(clocked, 5, schedule={"interval": "10m"}, max_runs=3, lane="batch")
    assert seen.version == 2
    assert [line.at for line in seen.occurrences] == [t("03-02T08:20:07"), t("03-02T08:30:07")]
    assert seen.exhausted, "the first of the three has been"


def test_excluded_days_are_shown_and_not_counted(clocked: ClockedDatabase) -> None:
    clocked.stop_clock(t("03-06T08:00"))
    calendar(clocked, weekdays=["SAT", "SUN"])
    seen = previewed(clocked, 2, t("03-06T12:00"), schedule={"cron": "0 9,17 * * *"}, exclude_calendars=["closed"])
    assert shown(seen.occurrences) == [
        ("03-06T17:00:00", OccurrenceOutcome.SCHEDULED),
        ("03-07T09:00:00", OccurrenceOutcome.WILL_BE_EXCLUDED),
        ("03-09T09:00:00", OccurrenceOutcome.SCHEDULED),
    ]
    assert (seen.occurrences[1].occurrences, seen.occurrences[1].last_at) == (4, t("03-08T17:00"))


def test_preview_is_refused_like_a_submit(clocked: ClockedDatabase) -> None:
    cases: list[tuple[dict[str, object], str]] = [
        ({"schedule": {"cron": "0 25 * * *"}}, "job.schedule.cron"),
        ({"schedule": {"cron": "0 3 30 2 *"}}, "job.schedule.cron"),
        ({"schedule": DAILY, "end_at": "2020-01-01T00:00:00Z"}, "job.end_at"),
        ({"schedule": {"cron": "0 3 * * *", "timezone": "Europe/Berlni"}}, "job.schedule.timezone"),
        ({"schedule": DAILY, "exclude_calendars": ["nowhere"]}, "job.exclude_calendars.0"),
        ({"shedule": DAILY}, "job.shedule"),
    ]
    for job, path in cases:
        with pytest.raises(Refused) as caught:
            previewed(clocked, **job)
        assert path in [error.path for error in caught.value.errors], job
        assert all(error.remedy for error in caught.value.errors), job


def test_preview_explains_schedules_without_a_rhythm(clocked: ClockedDatabase) -> None:
    clocked.stop_clock(t("03-02T08:00"))
    assert "only triggers create runs" in " ".join(previewed(clocked).words)
    once = previewed(clocked, schedule={"once": "2026-03-02T07:00:00Z"})
    assert shown(once.occurrences) == [("03-02T07:00:00", OccurrenceOutcome.WAITING)]
    assert "the job fires at once, marked late" in " ".join(once.words)
    chain = previewed(clocked, schedule={"fixed_delay": "5m"})
    assert shown(chain.occurrences) == [("03-02T08:00:00", OccurrenceOutcome.SCHEDULED)]
    assert not chain.exhausted


def test_next_shows_runs_created_ahead_and_overrides(clocked: ClockedDatabase) -> None:
    clocked.stop_clock(t("03-02T08:59:57"))
    clocked.submit(schedule=DAILY)
    done(clocked, "job.skip", at="2026-03-03T09:00:00Z")
    done(clocked, "job.move", at="2026-03-04T09:00:00Z", to="2026-03-04T12:00:00Z")
    fire_due(clocked, lookahead=timedelta(seconds=5))
    seen = coming(clocked, 3)
    assert shown(seen.occurrences) == [
        ("03-02T09:00:00", OccurrenceOutcome.SCHEDULED),
        ("03-03T09:00:00", OccurrenceOutcome.WILL_BE_SKIPPED),
        ("03-04T09:00:00", OccurrenceOutcome.WILL_BE_MOVED),
        ("03-05T09:00:00", OccurrenceOutcome.SCHEDULED),
    ]
    assert seen.occurrences[0].run_id == run_id(JOB, t("03-02T09:00"), Cause.TIMER)
    assert seen.occurrences[2].leaves_at == t("03-04T12:00")
    clocked.stop_clock(t("03-04T10:00"))
    fire_all(clocked)
    assert shown(coming(clocked, 2).occurrences) == [
        ("03-04T09:00:00", OccurrenceOutcome.WILL_BE_MOVED),
        ("03-05T09:00:00", OccurrenceOutcome.SCHEDULED),
    ]
    clocked.stop_clock(t("03-04T12:00:01"))
    fire_all(clocked)
    assert shown(coming(clocked, 1).occurrences) == [("03-05T09:00:00", OccurrenceOutcome.SCHEDULED)], (
        "once it has fired it is no more"
    )


def test_next_of_a_paused_job_begins_after_the_pause(clocked: ClockedDatabase) -> None:
    clocked.stop_clock(t("03-02T08:00"))
    clocked.submit(schedule=DAILY)
    done(clocked, "job.pause", until="2026-03-05T00:00:00Z")
    seen = coming(clocked, 1)
    assert shown(seen.occurrences) == [
        ("03-02T09:00:00", OccurrenceOutcome.PAUSED),
        ("03-05T09:00:00", OccurrenceOutcome.SCHEDULED),
    ]
    assert (seen.occurrences[0].occurrences, seen.occurrences[0].last_at) == (3, t("03-04T09:00"))
    assert "until 2026-03-05T00:00:00Z" in seen.words
    done(clocked, "job.pause")
    assert [line.outcome for line in coming(clocked, 2).occurrences] == [OccurrenceOutcome.PAUSED] * 2


def test_next_shows_due_occurrences_that_have_not_fired(clocked: ClockedDatabase) -> None:
    clocked.stop_clock(t("03-02T08:00:30"))
    clocked.submit(schedule={"cron": "* * * * *"})
    clocked.stop_clock(t("03-02T08:10:30"))
    assert shown(coming(clocked, 3).occurrences) == [
        ("03-02T08:09:00", OccurrenceOutcome.WAITING),
        ("03-02T08:10:00", OccurrenceOutcome.WAITING),
        ("03-02T08:11:00", OccurrenceOutcome.SCHEDULED),
    ]


def test_next_of_a_fixed_delay_is_the_next_one_alone(clocked: ClockedDatabase) -> None:
    clocked.stop_clock(t("03-02T08:00"))
    clocked.submit(schedule={"fixed_delay": "10m"})
    fire_all(clocked)
    assert coming(clocked).occurrences == ()
    clocked.succeed(clocked.begin(run_id(JOB, t("03-02T08:00"), Cause.TIMER)))
    seen = coming(clocked)
    assert shown(seen.occurrences) == [("03-02T08:10:00", OccurrenceOutcome.SCHEDULED)]
    assert "only the next one is known" in seen.words


def test_next_of_a_finished_or_unknown_job(clocked: ClockedDatabase) -> None:
    clocked.stop_clock(t("03-02T08:00"))
    clocked.submit(schedule={"once": "2026-03-02T09:00:00Z"})
    clocked.stop_clock(t("03-02T09:00"))
    fire_all(clocked)
    assert (coming(clocked).occurrences, coming(clocked).words) == ((), "The schedule has no further occurrence.")
    done(clocked, "job.delete")
    for key in ("job", "nobody"):
        with pytest.raises(UnknownJob):
            coming(clocked, key=key)


def test_client_reads_in_read_only_transactions(clocked: ClockedDatabase) -> None:
    clocked.stop_clock(t("03-02T08:00"))
    clocked.submit(schedule=DAILY)
    with Client(clocked.url) as client:
        assert client.next("job", 1).occurrences[0].at == t("03-02T09:00")
        assert client.explain("job", t("03-02T09:00")).outcome is OccurrenceOutcome.SCHEDULED
        spec = JobSpec.model_validate({"key": "job", "schedule": DAILY, "target": "send-email"})
        assert client.preview(spec, 1, after=t("03-05T00:00")).occurrences[0].at == t("03-05T09:00")
        assert [version.number for version in client.versions("job")] == [1]
        assert client.diff("job", 1, 1) == []
