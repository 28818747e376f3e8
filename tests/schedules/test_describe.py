from datetime import datetime

import pytest

from tidewheel.schedules.describe import describe, marked_occurrences

WORDS = {
    "30 2 * * *": "at 02:30, every day",
    "*/5 * * * *": "every 5 minutes, every day",
    "*/7 * * * *": "every 7th minute, every day",
    "@hourly": "at minute 0 of every hour, every day",
    "* 3 * * *": "every minute of hour 3, every day",
    "*/10 * * * * *": "every 10 seconds, every day",
    "15 30 2,14 * * *": "at 02:30:15 and 14:30:15, every day",
    "5/20 9-17 * * MON-FRI": "every 20th minute from 5 on of hours 9 to 17, on Monday to Friday",
    "0 0 13 * 5": "at 00:00, on day 13 of the month or on Friday",
    "0 0 */2 JAN-MAR,DEC ?": "at 00:00, on every 2nd day of the month, in January to March and December",
    "0 0 1-10/3 * */2": "at 00:00, on every 3rd day from 1 to 10 of the month if it is every 2nd day of the week",
    "0 0 L-3,15W,L,LW * ?": (
        "at 00:00, on the day 3 days before the last day of the month, the weekday (Monday to Friday) nearest to day "
        "15 of the month, the last day of the month and the last weekday (Monday to Friday) of the month"
    ),
    "0 0 * * 5L,1#2": "at 00:00, on the last Friday of the month and the second Monday of the month",
    "H H(0-7)/3 * * *": (
        "at a minute derived from the job's id (H) of hours derived from the job's id (H(0-7)/3), every day"
    ),
    "0 0 1 1 7": "at 00:00, on day 1 of the month or on Sunday, in January",
}


@pytest.mark.parametrize("expression", WORDS)
def test_expression_is_described_in_words(expression: str) -> None:
    assert describe(expression, "UTC") == f"{WORDS[expression]}, in time zone UTC."


@pytest.mark.parametrize(
    ("expression", "choices", "rule"),
    [
        ("*/5 2 * * *", {}, "a repeated time fires twice; when they go forward, a skipped time does not fire."),
        (
            "30 2 * * *",
            {},
            "fires right after the change. When clocks go back, a repeated time fires the first time only.",
        ),
        (
            "30 2 * * *",
            {"dst_gap": "skip", "dst_overlap": "both"},
            "does not fire. When clocks go back, a repeated time fires both times.",
        ),
        ("30 2 * * *", {"dst_overlap": "second"}, "When clocks go back, a repeated time fires the second time only."),
    ],
)
def test_description_names_zone_rule(expression: str, choices: dict[str, str], rule: str) -> None:
    assert rule in describe(expression, "Europe/Berlin", **choices)


def marks(expression: str, zone: str, after: str, n: int, **choices: str) -> list[str]:
    """Local time and notes, one line each."""
    found = marked_occurrences(
        expression,
        zone,
        datetime.fromisoformat(f"{after}Z"),
        n,
        dst_gap=choices.get("dst_gap", "shift_forward"),
        dst_overlap=choices.get("dst_overlap", "first"),
    )
    assert all(mark.at == mark.local for mark in found)
    return [" | ".join([f"{mark.local:%m-%d %H:%M %Z}", *mark.notes]) for mark in found]


def test_skipped_time_is_marked_at_the_next_occurrence() -> None:
    note = "2024-03-31 02:30 does not exist: skipped (DST gap 02:00 to 03:00)"
    assert marks("30 2 * * *", "Europe/Berlin", "2024-03-31T00:00", 1, dst_gap="skip") == [f"04-01 02:30 CEST | {note}"]


def test_skipped_wall_clock_time_is_noted() -> None:
    note = "2024-03-31 02:00 to 02:45 do not exist: skipped (DST gap 02:00 to 03:00)"
    assert marks("*/15 * * * *", "Europe/Berlin", "2024-03-31T00:45", 2) == [
        f"03-31 03:00 CEST | {note}",
        "03-31 03:15 CEST",
    ]


def test_first_of_two_passes_names_the_omitted_one() -> None:
    note = "2024-10-27 02:30 occurs twice: fires the first time, and the second at 01:30 UTC is skipped (DST overlap)"
    assert marks("30 2 * * *", "Europe/Berlin", "2024-10-27T00:00", 2) == [
        f"10-27 02:30 CEST | {note}",
        "10-28 02:30 CET",
    ]


def test_both_passes_of_a_repeated_time_are_marked() -> None:
    first, second = marks("30 2 * * *", "Europe/Berlin", "2024-10-27T00:00", 2, dst_overlap="both")
    assert first.endswith("CEST | 2024-10-27 02:30 occurs twice: fires both times, and this is the first (DST overlap)")
    assert second.endswith(
        "CET | 2024-10-27 02:30 occurs twice: fires both times, and this is the second (DST overlap)"
    )


def test_missing_day_is_marked() -> None:
    note = "skipped (clock correction 00:00 to 2011-12-31 00:00)"
    found = marks("0 12 * * *", "Pacific/Apia", "2011-12-29T00:00", 2)
    assert found[0] == "12-29 12:00 -10"
    assert found[1].startswith("12-31 12:00 +14 | 2011-12-30 12:00 does not exist")
    assert found[1].endswith(note)
