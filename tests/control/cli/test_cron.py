"""`tidewheel admin cron explain`: words, marked instants and refusals, without a database."""

from datetime import datetime
from itertools import pairwise
from typing import Any

import pytest

from tests.control.cli.command import NO_DATABASE, Done, process, tidewheel
from tidewheel.ids import job_id

BERLIN = ("--tz", "Europe/Berlin")
SPRING = (*BERLIN, "--after", "2026-03-28T12:00")
AUTUMN = (*BERLIN, "--after", "2026-10-24T12:00:00+02:00")


def explain(*arguments: object) -> Done:
    return tidewheel(NO_DATABASE, "admin", "cron", "explain", *arguments)


def explained(*arguments: object) -> Any:  # noqa: ANN401 - as json.loads
    return explain(*arguments, "--output", "json").json


@pytest.mark.landing
@pytest.mark.process
def test_skipped_local_time_is_marked_at_its_replacement() -> None:
    done = process("admin", "cron", "explain", "30 2 * * *", *SPRING, "-n", "2")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        "30 2 * * *: at 02:30, every day, in time zone Europe/Berlin. When clocks go forward, a skipped time",
        "  fires right after the change. When clocks go back, a repeated time fires the first time only.",
        "",
        "2026-03-29T01:00:00Z  Sun 2026-03-29T03:00:00+02:00 CEST",
        "    ! 2026-03-29 02:30 does not exist: fires at 03:00 instead (DST gap 02:00 to 03:00)",
        "2026-03-30T00:30:00Z  Mon 2026-03-30T02:30:00+02:00 CEST",
    ]


def test_json_has_the_same_facts() -> None:
    document = explained("30 2 * * *", *SPRING, "-n", 2)
    assert document["expressions"] == ["30 2 * * *"]
    assert document["words"][0].startswith("at 02:30, every day, in time zone Europe/Berlin.")
    assert (document["timezone"], document["after"]) == ("Europe/Berlin", "2026-03-28T11:00:00Z")
    first, second = document["occurrences"]
    assert first == {
        "utc": "2026-03-29T01:00:00Z",
        "local": "2026-03-29T03:00:00+02:00",
        "notes": ["2026-03-29 02:30 does not exist: fires at 03:00 instead (DST gap 02:00 to 03:00)"],
        "expressions": ["30 2 * * *"],
    }
    assert (second["local"], second["notes"]) == ("2026-03-30T02:30:00+02:00", [])


def test_dst_gap_and_dst_overlap_are_applied() -> None:
    skipped = explained("30 2 * * *", *SPRING, "-n", 1, "--dst-gap", "skip")["occurrences"]
    assert [each["utc"] for each in skipped] == ["2026-03-30T00:30:00Z"]
    assert skipped[0]["notes"][0].endswith("skipped (DST gap 02:00 to 03:00)")
    both = explained("30 2 * * *", *AUTUMN, "-n", 2, "--dst-overlap", "both")["occurrences"]
    assert [each["local"] for each in both] == ["2026-10-25T02:30:00+02:00", "2026-10-25T02:30:00+01:00"]
    assert all("occurs twice" in each["notes"][0] for each in both)


def test_several_expressions_are_explained_as_one_schedule() -> None:
    document = explained("0 8 * * *", "0 */8 * * *", *SPRING, "-n", 5)
    assert len(document["words"]) == 2
    instants = [datetime.fromisoformat(each["utc"]) for each in document["occurrences"]]
    assert len(instants) == 5
    assert all(earlier < later for earlier, later in pairwise(instants))
    named = {each["local"][11:16]: each["expressions"] for each in document["occurrences"]}
    assert named["08:00"] == ["0 8 * * *", "0 */8 * * *"]
    assert named["16:00"] == ["0 */8 * * *"]
    assert explain("0 8 * * *", "0 */8 * * *", *SPRING).lines[-1].endswith("*")


def test_a_note_names_its_expression_where_there_are_several() -> None:
    [first, *_] = explained("30 2 * * *", "*/30 2 * * *", *SPRING, "-n", 1)["occurrences"]
    assert [note.partition(":")[0] for note in first["notes"]] == ["`30 2 * * *`"]


def test_without_an_instant_it_begins_now_and_shows_ten() -> None:
    document = explained("@hourly")
    assert len(document["occurrences"]) == 10
    assert document["after"] < document["occurrences"][0]["utc"]


def test_utc_is_shown_once() -> None:
    lines = explain("0 8 * * *", "--after", "2026-03-28T12:00:00Z", "-n", 1).lines
    assert lines[-1] == "2026-03-29T08:00:00Z  Sun"


def test_h_depends_on_the_job() -> None:
    assert "--key" in explain("H 3 * * *").refusal
    minutes = {
        explained("H 3 * * *", "--key", f"job-{number}", "-n", 1)["occurrences"][0]["utc"][14:16] for number in range(6)
    }
    assert len(minutes) > 1, job_id("default", "job-0")


def test_schedule_without_further_instants_is_reported() -> None:
    assert "no further instants" in explain("0 8 29 2 *", *BERLIN, "--after", "2190-01-01T00:00:00Z").lines[-1]


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("0 25 * * *",), ("cron: hour 25 is outside 0", "0 23 * * *")),
        (("R 3 * * *",), ("cron: R is random", "H 3 * * *")),
        (("0 8 30 2 *",), ("can never fire",)),
        (("0 8 * * *", "0 25 * * *"), ("cron.1: hour 25",)),
        (("0", "8", "1", "1", "1"), ("put each expression in quotes",)),
        (("0 8 * * *", "--tz", "Europe/Berlim"), ("timezone: 'Europe/Berlim'", "Europe/Berlin")),
        (
            ("0 8 * * *", *BERLIN, "--after", "2026-03-29T02:30"),
            ("--after:", "does not exist", "2026-03-29T03:00:00+02:00"),
        ),
        (
            ("0 8 * * *", *BERLIN, "--after", "2026-10-25 02:30"),
            ("--after:", "occurs twice", "2026-10-25T02:30:00+02:00 or 2026-10-25T02:30:00+01:00"),
        ),
        (("H 3 * * *", "--key", "\udcff"), ("key: '\\udcff' is not a job's key", "job list")),
        (("H 3 * * *", "--key", "job", "--tenant", "\udcff"), ("tenant: '\\udcff' is not", "tenant list")),
        (("0 8 * * *", "--after", "someday"), ("--after:", "RFC 3339")),
        (("0 8 * * *", "--after", "2026-02-30T00:00"), ("--after:", "is not a valid time")),
    ],
)
def test_invalid_expression_is_refused_with_a_remedy(arguments: tuple[str, ...], parts: tuple[str, ...]) -> None:
    [refusal] = explain(*arguments).refusals
    for part in parts:
        assert part in refusal


def test_a_wrong_flag_is_exit_code_2() -> None:
    for wrong in (("-n", "0"), ("--dst-gap", "leap"), ("--colour",)):
        assert explain("0 8 * * *", *wrong).code == 2
