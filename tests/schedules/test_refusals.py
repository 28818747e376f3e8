"""Schedules that cannot be read or can never fire are refused with a remedy."""

import re
from contextlib import suppress
from datetime import UTC, datetime
from typing import cast
from uuid import UUID

import pytest

from tidewheel.errors import ScheduleRefused
from tidewheel.schedules import cron_fields as wall_clock
from tidewheel.schedules.cron_fields import CronFields
from tidewheel.schedules.cron_parser import parse_cron
from tidewheel.schedules.parse import ensure_can_fire, parse_schedule

DASH = "\N{EN DASH}"
# expression: what the problem says, what the remedy says
REFUSED = {
    "0 25 * * *": (f"hour 25 is outside 0{DASH}23", "`0 23 * * *`"),
    "0 24 * * *": (f"hour 24 is outside 0{DASH}23", "`0 0 * * *`"),
    "60 24 * * *": (f"minute 60 is outside 0{DASH}59, and hour 24 is outside 0{DASH}23", "`0 0 * * *`"),
    "0 0 0 * *": (f"day of month 0 is outside 1{DASH}31", "`0 0 1 * *`"),
    "0 0 * 13 *": (f"month 13 is outside 1{DASH}12", "`0 0 * 12 *`"),
    "0 0 * * 1-8": (f"day of week 8 is outside 0{DASH}7", "`0 0 * * 1-7`"),
    "0 18-48 * * *": (f"hour 48 is outside 0{DASH}23", "`0 18-23 * * *`"),
    "0 22-2 * * *": ("the hour range 22-2 runs backwards", "`0 22-23,0-2 * * *`"),
    "0 0 * NOV-FEB *": ("the month range 11-2 runs backwards", "`0 0 * 11-12,1-2 *`"),
    "0 0 * * FRI-MON": ("the day of week range 5-1 runs backwards", "`0 0 * * 5-6,0-1`"),
    "0 0 * * 5-0": ("the day of week range 5-0 runs backwards", "`0 0 * * 5-7`"),
    "0 0 * * SAT-MON#2": ("the day of week range SAT-MON runs backwards", "`0 0 * * 6#2,0-1#2`"),
    "0 0 * * MONDAY": ("'MONDAY' is not known in the day of week field", "`0 0 * * MON`"),
    "0 0 * SEPT *": ("'SEPT' is not known in the month field", "`0 0 * SEP *`"),
    "0 0 * FOO *": ("'FOO' is not known in the month field", "such as 1-5"),
    "*/90 * * * *": ("a step of 90 is longer than the minute field", "an interval schedule for every 90 minutes"),
    "*/0 * * * *": ("a step of 0 in the minute field has no next value", "`* * * * *`"),
    "R 3 * * *": ("R is random, and occurrences must be deterministic", "`H 3 * * *`"),
    "R(0-9)/3 3 * * *": ("R is random", "`H(0-9)/3 3 * * *`"),
    "0 ? * * *": ("? means an unrestricted day field, not the hour", "`0 * * * *`"),
    "0 0 L * L": ("'L' is not valid in the day of week field", "`0 0 L * 5L`"),
    "0 0 1-L * *": ("'1-L' is not valid in the day of month field", "`0 0 1-31 * *`"),
    "0 0 L-40 * *": ("L-40 is before the first day of every month", "`0 0 L-30 * *`"),
    "0 0 45W * *": (f"day of month 45 is outside 1{DASH}31", "`0 0 31W * *`"),
    "0 0 * * 5#6": (f"the number after # is 1{DASH}5, not 6", "`0 0 * * 5#5`"),
    "0 0 * * FRI#0": (f"the number after # is 1{DASH}5, not 0", "`0 0 * * FRI#1`"),
    "0 0 * * 9#2": (f"day of week 9 is outside 0{DASH}7", "`0 0 * * 7#2`"),
    "0 0 * * 8L": (f"day of week 8 is outside 0{DASH}7", "`0 0 * * 7L`"),
    "1,,2 * * * *": ("the minute field has an empty element beside a comma", "such as 0,2"),
    "-5 * * * *": ("'-5' is not valid in the minute field", "a number"),
    "0.5 * * * *": ("'0.5' is not valid in the minute field", "a number"),
    "0 30 2 * * 15": (f"day of week 15 is outside 0{DASH}7", "of six fields the first is the seconds"),
    "* * * *": ("4 fields were read in '* * * *'", "`* * * * *`"),
    "daily": ("1 field was read in 'daily'", "write @daily"),
    "noon": ("1 field was read in 'noon'", "minute hour day-of-month month day-of-week"),
    "* * * * * * * *": ("8 fields were read", "six with seconds first"),
    "0 0 3 * * ? 2027": ("7 fields were read", "there is no year field: write `0 0 3 * * ?`"),
    "0 0 3 ? * 2 2027": ("7 fields were read", "write `0 0 3 ? * 1` and bound it"),
    "0 10 * * ? *": ("? means an unrestricted day field, not the month", "if the last is the year, write `0 10 * * *`"),
    "0 10 ? * 2-6 *": (
        "? means an unrestricted day field, not the hour",
        "if the last is the year, write `0 10 * * 1-5`",
    ),
    "0 10 ? * 2/2 2027": ("? means an", "if the last is the year, write `0 10 * * 1-6/2` and bound it with start_at"),
    "0 3 25 1 * *": (f"hour 25 is outside 0{DASH}23", "if the last is the year, write `0 3 25 1 *`"),
    "0 3 25 32 * *": (f"hour 25 is outside 0{DASH}23", "the nearest that works is `0 3 23 31 * *`"),
    "cron(0 10 ? * 2-6 *)": ("is an EventBridge expression", "write `0 10 * * 1-5`"),
    "rate(5 minutes)": ("is an EventBridge expression", '{"interval": "5m"}'),
    "@every 10s": ("'@every 10s' is an interval", '{"interval": "10s"}'),
    "@reboot": ("@reboot is not supported", "trigger a manual job"),
    "@dayly": ("'@dayly' is not known", "@daily"),
    "H 3 * * *": ("H is derived from the job's id, but there is no job here", "write a number"),
    "CRON_TZ=Europe/Belrin 0 3 * * *": ("'Europe/Belrin' is not a time zone", "Europe/Berlin"),
    "TZ=UTC": ("'TZ=UTC' has a zone but no fields", "TZ=UTC 0 3 * * *"),
    "": ("the expression is empty", "`0 3 * * *`"),
    "0 0 * * \N{FULLWIDTH DIGIT FIVE}": ("which is not allowed in cron expressions", "plain ASCII"),
    "0\N{NO-BREAK SPACE}3 * * *": ("which is not allowed in cron expressions", "plain ASCII"),
    "*," * 128 + "* * * * *": ("265 characters, more than 256", "several shorter expressions"),
}


@pytest.mark.parametrize("expression", REFUSED)
def test_refusal_names_text_and_correction(expression: str) -> None:
    problem, remedy = REFUSED[expression]
    with pytest.raises(ScheduleRefused) as caught:
        parse_schedule({"kind": "cron", "expressions": [expression]})
    (error,) = caught.value.errors
    assert problem in error.problem
    assert remedy in error.remedy
    assert error.path == "cron"
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("expression", REFUSED)
def test_corrections_can_be_parsed(expression: str) -> None:
    with pytest.raises(ScheduleRefused) as caught:
        parse_cron(expression)
    for offered in re.findall(r"`([^`]+)`", caught.value.errors[0].remedy):
        parse_cron(offered, hash_key=b"job")


# document: path, problem, remedy
DOCUMENTS: dict[str, tuple[dict[str, object], str, str, str]] = {
    "no kind": ({}, "kind", "'None' is not a kind of schedule", "once, interval, fixed_delay, cron, after, manual"),
    "later": ({"kind": "later"}, "kind", "'later' is not a kind of schedule", "once"),
    "no instant": ({"kind": "once", "at": "tomorrow"}, "at", "'tomorrow' is not an instant", "RFC 3339"),
    "no offset": ({"kind": "once", "at": "2026-01-01T00:00:00"}, "at", "has no UTC offset", "2026-03-29T03:00:00Z"),
    "beyond": ({"kind": "once", "at": "9999-12-31T23:59:59-12:00"}, "at", "is out of range", "RFC 3339"),
    "no duration": ({"kind": "interval", "interval_us": "10s"}, "interval", "'10s' is not a number", "a duration"),
    "too often": ({"kind": "interval", "interval_us": 999_999}, "interval", "an interval of 0.999999 s", "write 1s"),
    "too seldom": ({"kind": "interval", "interval_us": 10**17}, "interval", "an interval of 1e+11 s", "shorter"),
    "too short a pause": ({"kind": "fixed_delay", "interval_us": 0}, "fixed_delay", "an interval of 0 s", "write 1s"),
    "no anchor": (
        {"kind": "interval", "interval_us": 10**6, "anchor": None},
        "anchor",
        "'None' is not an instant",
        "RFC",
    ),
    "no expression": ({"kind": "cron", "expressions": []}, "cron", "is missing", "`0 3 * * *`"),
    "no text": ({"kind": "cron", "expressions": [5]}, "cron", "is not text", "`0 3 * * *`"),
    "too many": ({"kind": "cron", "expressions": ["* * * * *"] * 65}, "cron", "65 expressions", "several jobs"),
    "the second": ({"kind": "cron", "expressions": ["@daily", "0 25 * * *"]}, "cron.1", "hour 25", "`0 23 * * *`"),
    "no zone": (
        {"kind": "cron", "expressions": ["@daily"], "timezone": 1},
        "timezone",
        "'1' is not a time zone",
        "UTC",
    ),
    "typo": (
        {"kind": "cron", "expressions": ["@daily"], "timezone": "europe/berlin"},
        "timezone",
        "'europe/berlin' is not a time zone of tzdata",
        "write Europe/Berlin",
    ),
    "offset": ({"kind": "cron", "expressions": ["@daily"], "timezone": "UTC+2"}, "timezone", "'UTC+2'", "Etc/GMT-2"),
    "gap": (
        {"kind": "cron", "expressions": ["@daily"], "dst_gap": "shift"},
        "dst_gap",
        "'shift' is not known",
        "shift_forward, skip",
    ),
    "overlap": (
        {"kind": "cron", "expressions": ["@daily"], "dst_overlap": "last"},
        "dst_overlap",
        "'last' is not known",
        "first, second, both",
    ),
    "bounds": (
        {
            "kind": "cron",
            "expressions": ["@daily"],
            "start_at": "2026-02-01T00:00:00Z",
            "end_at": "2026-01-01T00:00:00Z",
        },
        "end_at",
        "is before start_at",
        "a later end_at",
    ),
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_refused_document_names_the_field(name: str) -> None:
    document, path, problem, remedy = DOCUMENTS[name]
    with pytest.raises(ScheduleRefused) as caught:
        parse_schedule(document, job_id=UUID(int=1))
    (error,) = caught.value.errors
    assert error.path == path
    assert problem in error.problem
    assert remedy in error.remedy


def test_no_text_crashes_the_reader() -> None:
    """Whatever is written, the answer is a schedule or a refusal."""
    pieces = ["*", "5", "/", "-", ",", "L", "W", "#", "?", "H", "(", ")", "mon", " ", " ", "7", "0", "JAN", "R", "60"]
    for seed in range(20_000):
        expression = "".join(pieces[(seed * prime // 7) % len(pieces)] for prime in (3, 11, 17, 23, 31, 41, 53, 61, 71))
        try:
            parse_cron(f"{expression} * * * *", hash_key=b"job")
            parse_cron(f"0 0 {expression} * {expression}", hash_key=b"job")
        except ScheduleRefused:
            continue


NOW = datetime(2026, 3, 1, tzinfo=UTC)
DAILY: dict[str, object] = {"kind": "cron", "expressions": ["0 3 * * *"]}
HOURLY: dict[str, object] = {"kind": "interval", "interval_us": 3_600_000_000, "anchor": "2026-01-01T00:00:00Z"}
DELAY: dict[str, object] = {"kind": "fixed_delay", "interval_us": 3_600_000_000}


def cron(*expressions: str) -> dict[str, object]:
    return {"kind": "cron", "expressions": list(expressions)}


# document: path, problem, remedy
NEVER: dict[str, tuple[dict[str, object], str, str, str]] = {
    "30 February": (cron("0 0 30 2 *"), "cron", "no date matches `0 0 30 2 *`", "30 February"),
    "31 June": (cron("0 0 31 4,6,9,11 *"), "cron", "no date matches", "30 February"),
    "near 30 February": (cron("0 0 30W 2 *"), "cron", "no date matches", "30 February"),
    "both must fit": (cron("0 0 */31 2 FRI#5"), "cron", "no date matches", "30 February"),
    "one of several": (cron("@daily", "0 0 30 2 *"), "cron.1", "no date matches", "30 February"),
    "end_at in the past": ({**DAILY, "end_at": "2026-02-28T00:00:00Z"}, "end_at", "has passed", "a later end_at"),
    "end_at now": ({**HOURLY, "end_at": "2026-03-01T00:00:00Z"}, "end_at", "has passed", "a later end_at"),
    "ends too early": ({**DAILY, "end_at": "2026-03-01T02:59:00Z"}, "end_at", "no occurrence is between", "widen"),
    "too narrow": (
        {**DAILY, "start_at": "2027-01-01T03:00:01Z", "end_at": "2027-01-02T02:59:59Z"},
        "end_at",
        "no occurrence is between",
        "widen",
    ),
    "too far": ({**DAILY, "start_at": "2300-01-01T00:00:00Z"}, "start_at", "no occurrence is between", "widen"),
    "ends before its anchor": (
        {**HOURLY, "anchor": "2026-05-01T00:00:00Z", "end_at": "2026-05-01T00:30:00Z"},
        "end_at",
        "no occurrence is between",
        "widen",
    ),
    "a delay that ended": ({**DELAY, "end_at": "2026-02-28T00:00:00Z"}, "end_at", "has passed", "a later end_at"),
}


@pytest.mark.parametrize("name", NEVER)
def test_schedule_that_never_fires_is_refused_with_remedy(name: str) -> None:
    document, path, problem, remedy = NEVER[name]
    schedule = parse_schedule(document)
    with pytest.raises(ScheduleRefused) as caught:
        ensure_can_fire(schedule, NOW)
    (error,) = caught.value.errors
    assert error.path == path
    assert problem in error.problem
    assert remedy in error.remedy


@pytest.mark.parametrize(
    "document",
    [
        DAILY,
        HOURLY,
        DELAY,
        {"kind": "manual"},
        {"kind": "once", "at": "2020-01-01T00:00:00Z"},
        cron("0 0 29 2 *"),
        cron("0 0 29 2 */7"),
        cron("0 0 30 2 MON"),
        {**DAILY, "end_at": "2026-03-01T03:00:00Z"},
        {**cron("30 2 29 3 *"), "timezone": "Europe/Berlin", "dst_gap": "skip"},
    ],
)
def test_schedule_that_can_fire_is_accepted(document: dict[str, object]) -> None:
    ensure_can_fire(parse_schedule(document), NOW)


HOSTILE = [
    cron("0 0 30 2 *"),
    cron(*[f"{minute} 0 30,31 2 *" for minute in range(60)]),
    cron("59 59 23 31 2,4,6,9,11 *"),
    {**cron("0-59/1 2 29 2 */7"), "timezone": "Europe/Berlin", "dst_gap": "skip"},
    cron(",".join(["0-59/7"] * 35) + " * 30 2 *"),
    {"kind": "cron", "expressions": ["* * 30 2 *"], "start_at": "0001-01-01T00:00:00Z"},
]


@pytest.mark.parametrize("document", HOSTILE)
def test_an_impossible_expression_costs_a_bounded_number_of_steps(
    document: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measured: 0.6 ms for the worst expression, 5 ms to read sixty of them."""
    steps = 0
    step = wall_clock.month_shape

    def counted(fields: CronFields, year: int, month: int) -> tuple[int, int, int]:
        nonlocal steps
        steps += 1
        return step(fields, year, month)

    monkeypatch.setattr(wall_clock, "month_shape", counted)
    with suppress(ScheduleRefused):
        ensure_can_fire(parse_schedule(document), NOW)
    expressions = document["expressions"]
    assert isinstance(expressions, list)
    months = 12 * (wall_clock.LAST_YEAR - NOW.year + 1)
    assert steps <= months * (len(cast("list[object]", expressions)) + 2)
