"""Files as the large programs write them, read by our readers and by independent ones."""

import json
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import cast

import pytest
import recurring_ical_events  # pyright: ignore[reportMissingTypeStubs]
from hypothesis import given
from hypothesis import strategies as st
from icalendar import Calendar

from tests.fixtures.examples import examples
from tests.strict_types import ROOT
from tidewheel.control.cli.job_files import read_jobs
from tidewheel.control.foreign import read_pasted
from tidewheel.control.ical import days_of
from tidewheel.errors import InvalidInput
from tidewheel.jobs.parsing import parse_request

FILES = ROOT / "tests" / "control" / "foreign_files"
TODAY = date(2026, 11, 20)
ZONES = ("America/New_York", "Asia/Tokyo", "Europe/Berlin", "Pacific/Auckland", "Pacific/Kiritimati", "UTC")


def theirs(data: bytes) -> set[date]:
    """Return the days of a calendar file, as recurring-ical-events has them, from 2026 to the horizon."""
    found: set[date] = set()
    for event in recurring_ical_events.of(Calendar.from_ical(data)).between(date(2026, 1, 1), date(2028, 11, 21)):
        if str(event.get("STATUS")) == "CANCELLED":
            continue
        start, end = (cast("date", event.decoded(name)) for name in ("DTSTART", "DTEND"))
        first = start.date() if isinstance(start, datetime) else start
        last = (end - timedelta.resolution).date() if isinstance(end, datetime) else end - timedelta(days=1)
        found |= {first + timedelta(days=number) for number in range(max((last - first).days, 0) + 1)}
    return {day for day in found if day <= date(2028, 11, 20)}


def ours(data: bytes) -> set[date]:
    found = days_of(data, "x.ics", today=TODAY, years=2).days
    return {day for day in found if date(2026, 1, 1) <= day <= date(2028, 11, 20)}


@pytest.mark.parametrize("name", ["google.ics", "outlook.ics", "apple.ics", "nextcloud.ics"])
def test_calendar_file_has_the_days_that_an_independent_reader_finds(name: str) -> None:
    data = (FILES / name).read_bytes()
    assert ours(data) == theirs(data) != set()


INSTANTS = st.datetimes(datetime(2026, 6, 1), datetime(2027, 6, 30)).map(lambda at: at.replace(second=0, microsecond=0))  # noqa: DTZ001
DAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")


@st.composite
def calendars(draw: st.DrawFn) -> bytes:
    """A series with exceptions: omitted, moved to another zone, made all-day, cancelled."""
    zone = draw(st.sampled_from(ZONES))
    # Half past, before a clock change and never within one: a time that a zone skips has no agreed reading.
    start = draw(INSTANTS).replace(minute=30, hour=draw(st.integers(4, 23)))
    minutes, rule = draw(st.integers(1, 3000)), draw(st.sampled_from(("DAILY", "WEEKLY", "MONTHLY")))
    more = draw(st.sampled_from(("", ";INTERVAL=2", ";UNTIL=99991231T235959Z")))
    by = f";BYDAY={draw(st.sampled_from(DAYS))}" if rule == "WEEKLY" else ""
    lines = [
        "BEGIN:VEVENT", "UID:series", f"DTSTART;TZID={zone}:{start:%Y%m%dT%H%M%S}", f"DURATION:PT{minutes}M",
        f"RRULE:FREQ={rule}{more}{by}",
    ]  # fmt: skip
    # One that is both omitted and moved has no agreed reading either.
    chosen = draw(st.lists(st.sampled_from(list(occurrences(lines))), max_size=4, unique=True))
    lines += [f"EXDATE;TZID={zone}:{at:%Y%m%dT%H%M%S}" for at in chosen[2:]]
    lines.append("END:VEVENT")
    for at in chosen[:2]:
        moved, other = draw(INSTANTS), draw(st.sampled_from(ZONES))
        lines += [
            "BEGIN:VEVENT", "UID:series", f"RECURRENCE-ID;TZID={zone}:{at:%Y%m%dT%H%M%S}",
            f"DTSTART{draw(st.sampled_from((f';TZID={other}:{moved:%Y%m%dT%H%M%S}', f';VALUE=DATE:{moved:%Y%m%d}')))}",
            f"STATUS:{draw(st.sampled_from(('CONFIRMED', 'CANCELLED')))}", "END:VEVENT",
        ]  # fmt: skip
    return file_of(lines)


def file_of(lines: list[str]) -> bytes:
    return "\r\n".join(["BEGIN:VCALENDAR", "VERSION:2.0", "PRODID:-//x//y//EN", *lines, "END:VCALENDAR", ""]).encode()


def occurrences(lines: list[str]) -> Iterator[datetime]:
    """Yield the first starts of a series."""
    found = recurring_ical_events.of(Calendar.from_ical(file_of([*lines, "END:VEVENT"])))
    for event in found.between(date(2026, 6, 1), date(2028, 1, 1))[:6]:
        yield cast("datetime", event.decoded("DTSTART"))


@examples(400)
@given(calendars())
def test_series_with_exceptions_has_the_days_that_an_independent_reader_finds(data: bytes) -> None:
    assert ours(data) == theirs(data)


VALUES = (
    "00010101", "99991231", "00010101T000000", "99991231T235959Z", "99991231T235959", "00000101", "20260230",
    "20261225T240000", "20261225T080060Z", "-0261225", "2026-12-25", "", "x", "1" * 5000, "\u0662\u0660261225",
)  # fmt: skip
PARAMETERS = (";VALUE=DATE", ";TZID=Asia/Tokyo", ";VALUE=PERIOD", ";VALUE=TIME", ";TZID=No/Zone")
LENGTHS = ("P1D", "PT0S", "-P1D", "P99999999999D", "PT99999999999999S", "P", "PT", "P1Y", "P1.5D", "")
PARTS = (
    "INTERVAL=1", "INTERVAL=0", "INTERVAL=2147483647", "INTERVAL=99999999999", "COUNT=0", "COUNT=1", "COUNT=-1",
    "COUNT=2147483647", "BYDAY=MO", "BYDAY=99MO", "BYDAY=-53SU", "BYMONTH=0", "BYMONTH=13", "BYMONTHDAY=31",
    "BYMONTHDAY=-32", "BYWEEKNO=53", "BYWEEKNO=54", "BYYEARDAY=366", "BYYEARDAY=367", "BYHOUR=23", "BYHOUR=24",
    "BYMINUTE=60", "BYSECOND=60", "BYSETPOS=-1", "BYSETPOS=0", "WKST=SU", "WKST=XX", "UNTIL=99991231T235959Z",
    "UNTIL=00010101", "UNTIL=x", "X=1", "FREQ=DAILY", "",
)  # fmt: skip


@pytest.mark.parametrize(
    "rule",
    [
        "FREQ=MONTHLY;BYDAY=99MO", "FREQ=MONTHLY;BYDAY=-6MO", "FREQ=YEARLY;BYDAY=54MO",
        "FREQ=YEARLY;BYMONTH=1;BYDAY=6MO",
        "FREQ=YEARLY;BYMONTH=13", "FREQ=YEARLY;BYMONTH=0", "FREQ=YEARLY;BYWEEKNO=54", "FREQ=YEARLY;BYYEARDAY=-367",
        "FREQ=MONTHLY;BYMONTHDAY=-32", "FREQ=MONTHLY;BYHOUR=24", "FREQ=DAILY;BYSETPOS=0",
    ],
)  # fmt: skip
def test_part_of_a_rule_that_no_year_has_is_refused(rule: str) -> None:
    data = file_of(["BEGIN:VEVENT", "UID:u", "DTSTART:20261225", f"RRULE:{rule}", "END:VEVENT"])
    with pytest.raises(InvalidInput, match="RRULE"):
        days_of(data, "x.ics", today=TODAY, years=1)


@examples(2000)
@given(
    st.sampled_from(("", *PARAMETERS, *(f";TZID={zone}" for zone in ZONES))),
    st.sampled_from(VALUES),
    st.lists(
        st.one_of(
            st.builds("DTEND:{}".format, st.sampled_from(VALUES)),
            st.builds("DURATION:{}".format, st.sampled_from(LENGTHS)),
            st.builds("{}{}:{}".format, st.sampled_from(("EXDATE", "RDATE", "RECURRENCE-ID")),
                      st.sampled_from(("", *PARAMETERS)), st.sampled_from(VALUES)),
            st.builds("RRULE:FREQ={};{};{}".format, st.sampled_from(("DAILY", "WEEKLY", "MONTHLY", "YEARLY", "X")),
                      st.sampled_from(PARTS), st.sampled_from(PARTS)),
        ),
        max_size=3,
    ),
)  # fmt: skip
def test_event_at_any_bound_is_read_or_refused_by_name(parameters: str, value: str, more: list[str]) -> None:
    data = file_of(["BEGIN:VEVENT", "UID:u", f"DTSTART{parameters}:{value}", *more, "END:VEVENT"])
    try:
        assert days_of(data, "x.ics", today=TODAY, years=1).days
    except InvalidInput as refused:
        [error] = refused.errors  # either outcome is right, silence is not
        assert (error.path, bool(error.remedy)) == ("x.ics", True)


def written(path: Path) -> list[dict[str, object]]:
    """Return the jobs that `apply` reads from a file; each is accepted by the parser of requests."""
    jobs = [each.content for each in read_jobs(str(path))]
    for job in jobs:
        assert isinstance(job, dict), job
        if "target" in job:
            parse_request({"type": "job.submit", "job": job})
    return [job for job in jobs if isinstance(job, dict)]


def test_cron_job_of_kubernetes_is_read_by_apply_as_by_the_console() -> None:
    """Issue 39, A3: its first field was refused as a word of a peer."""
    [job] = written(FILES / "cronjob.yaml")
    assert job == {
        "key": "hello",
        "labels": {"app.kubernetes.io/name": "hello"},
        "schedule": {"cron": ["*/5 2-4 * * 1-5"], "timezone": "Europe/Berlin"},
        "overlap": "skip",
        "retry": {"max_attempts": 3},
        "schedule_to_close": "600s",
        "target": {
            "type": "shell",
            "argv": ["/bin/sh", "-c", "date; echo Hello from the Kubernetes cluster"],
            "env": {"MODE": "full"},
        },
    }
    assert read_pasted((FILES / "cronjob.yaml").read_text()).job == job
    [read] = read_jobs(str(FILES / "cronjob.yaml"))
    assert [word for word in ("PASSWORD", "serviceAccountName", "history limits") if word not in str(read.notes)] == []


def test_manifests_of_helm_and_kubectl_are_read(tmp_path: Path) -> None:
    helm = written(FILES / "helm-template.yaml")
    assert [(job["key"], job["overlap"], job.get("paused", False)) for job in helm] == [
        ("release-name-vacuum", "allow_all", True),
        ("release-name-report", "cancel_other", False),
    ]
    assert [job["target"] for job in helm] == [
        {"type": "shell", "argv": ["/srv/bin/vacuum-cache", "--all"]},
        {"type": "shell", "argv": ["/srv/bin/report"]},
    ]
    [backup] = written(FILES / "kubectl-get.json")
    assert backup == {
        "key": "backup",
        "schedule": {"cron": ["0 1 * * 0"]},
        "overlap": "allow_all",
        "target": {"type": "shell", "argv": ["/srv/bin/backup", "--full"]},
    }
    line = tmp_path / "one-line.json"
    line.write_text(json.dumps(json.loads((FILES / "kubectl-get.json").read_text())))
    assert written(line) == [backup]
    assert read_pasted(line.read_text()).job == backup


def test_other_objects_of_kubernetes_are_refused_by_kind(tmp_path: Path) -> None:
    path = tmp_path / "all.yaml"
    path.write_text("apiVersion: v1\nkind: ConfigMap\n---\n" + (FILES / "cronjob.yaml").read_text())
    refused, _ = read_jobs(str(path))
    assert "a Kubernetes ConfigMap is not a job" in str(refused.content)
    assert read_pasted(path.read_text()).job["key"] == "hello"


def test_several_schedules_are_refused_with_their_number() -> None:
    for name, found in (("helm-template.yaml", "2 CronJobs"), ("debian-crontab", "4 lines with a schedule")):
        with pytest.raises(InvalidInput, match=found):
            read_pasted((FILES / name).read_text())


def test_lines_of_debians_crontab_have_its_variables_and_no_user() -> None:
    text = (FILES / "debian-crontab").read_text()
    lines = [line for line in text.splitlines() if line[:1].isdigit()]
    above = text[: text.index(lines[0])]
    jobs = [read_pasted(above + line) for line in lines]
    assert [job.job["schedule"] for job in jobs] == [
        {"cron": [cron]} for cron in ("17 * * * *", "25 6 * * *", "47 6 * * 7", "52 6 1 * *")
    ]
    assert jobs[0].job["target"] == {
        "type": "shell",
        "argv": ["/bin/sh", "-c", "cd / && run-parts --report /etc/cron.hourly"],
        "env": {"PATH": "/usr/local/sbin:/usr/local/bin:/sbin:/bin:/usr/sbin:/usr/bin"},
    }
    assert all("The user root is not imported" in " ".join(job.notes) for job in jobs)


def test_crontabs_as_people_have_them_are_read_as_their_cron_reads_them() -> None:
    check = read_pasted((FILES / "debian-cron.d").read_text())
    assert "[ $(date +%d) -le 7 ]" in str(check.job["target"])
    dump = read_pasted((FILES / "user-crontab").read_text())
    assert dump.job["schedule"] == {"cron": ["15 3 * * mon-fri"]}
    assert dump.job["target"] == {
        "type": "shell",
        "argv": ["/bin/bash", "-c", "pg_dump -Fc shop > /var/backups/shop-$(date +%Y%m%d).dump"],
        "env": {"TZ": "Europe/Berlin", "PATH": "/home/shop/bin:/usr/bin:/bin"},
    }
    assert "Not imported: MAILTO" in " ".join(dump.notes)
    hourly = read_pasted((FILES / "cronie-crontab").read_text())
    assert hourly.job["schedule"] == {"cron": ["01 * * * *"], "timezone": "America/New_York"}
    assert hourly.job["jitter"] == "45m"
