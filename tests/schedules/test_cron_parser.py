import re
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise, product
from random import Random
from uuid import UUID

import pytest
from croniter import croniter

from tests.schedules.expressions import any_expression
from tests.schedules.instants import next_occurrences
from tidewheel.schedules.cron_fields import values
from tidewheel.schedules.cron_parser import parse_cron

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)


# croniter reads 28-28 as every value
EQUAL = re.compile(r"\b(\d+)-\1\b")


def dates(expression: str, n: int = 6, after: datetime = NEW_YEAR) -> list[str]:
    return [f"{at:%m-%d}" for at in next_occurrences(expression, "UTC", after, n)]


@pytest.mark.parametrize("low", range(8))
def test_weekday_ranges_match_exactly(low: int) -> None:
    for high, step in product(range(low, 8), range(1, 8)):
        written = {day % 7 for day in range(low, high + 1, step)}
        found = next_occurrences(f"0 0 * * {low}-{high}/{step}", "UTC", NEW_YEAR, 14)
        assert {at.isoweekday() % 7 for at in found} == written


@pytest.mark.parametrize(("field", "low", "high"), [(0, 0, 59), (1, 0, 23), (2, 1, 31), (3, 1, 12)])
def test_ranges_and_steps_match_exactly(field: int, low: int, high: int) -> None:
    for first in range(low, high + 1):
        for last in range(first, high + 1, 5):
            for step in (1, 2, 7, high - low + 1):
                words = ["*"] * 5
                words[field] = f"{first}-{last}/{step}"
                assert _field_values(" ".join(words), field) == set(range(first, last + 1, step))
        words = ["*"] * 5
        words[field] = f"{first}/7"
        assert _field_values(" ".join(words), field) == set(range(first, high + 1, 7))


def _field_values(expression: str, field: int) -> set[int]:
    fields = parse_cron.__wrapped__(expression)
    if field == 0:
        return {minute % 60 for minute in values(fields.minutes)}
    if field == 1:
        return {minute // 60 for minute in values(fields.minutes)}
    return set(values(fields.days[3] if field == 2 else fields.months))


def test_later_star_in_a_list_does_not_unrestrict_the_field() -> None:
    assert dates("0 0 13,* * 1", 3) == ["01-02", "01-03", "01-04"]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("0 12 L * *", ["01-31", "02-28", "03-31", "04-30"]),
        ("0 12 L-2 * *", ["01-29", "02-26", "03-29", "04-28"]),
        ("0 12 LW * *", ["01-30", "02-27", "03-31", "04-30"]),
        ("0 12 15W * *", ["01-15", "02-16", "03-16", "04-15"]),
        ("0 12 W15 * *", ["01-15", "02-16", "03-16", "04-15"]),
        ("0 12 1W * *", ["01-01", "02-02", "03-02", "04-01"]),
        ("0 12 31W * *", ["01-30", "03-31", "05-29", "07-31"]),
        ("0 12 1,L * *", ["01-01", "01-31", "02-01", "02-28"]),
        ("0 12 * * 5L", ["01-30", "02-27", "03-27", "04-24"]),
        ("0 12 * * L5", ["01-30", "02-27", "03-27", "04-24"]),
        ("0 12 * * FRIL", ["01-30", "02-27", "03-27", "04-24"]),
        ("0 12 * * 7L", ["01-25", "02-22", "03-29", "04-26"]),
        ("0 12 * * TUE#2", ["01-13", "02-10", "03-10", "04-14"]),
        ("0 12 * * 0#5", ["03-29", "05-31", "08-30", "11-29"]),
        ("0 12 * * MON-WED#1", ["01-05", "01-06", "01-07", "02-02"]),
        ("0 12 L * MON#1", ["01-05", "01-31", "02-02", "02-28"]),
        ("0 12 29 2 *", ["02-29", "02-29"]),
    ],
)
def test_days_that_depend_on_the_month(expression: str, expected: list[str]) -> None:
    assert dates(expression, len(expected)) == expected


@pytest.mark.parametrize(
    ("shorthand", "plain"),
    [
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
        ("@monthly", "0 0 1 * *"),
        ("@weekly", "0 0 * * 0"),
        ("@Daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        ("@hourly", "0 * * * *"),
        ("  0\t0  * * SUN ", "0 0 * * 7"),
        ("0 0 * JAN-DEC *", "0 0 * * *"),
    ],
)
def test_two_spellings_are_one_schedule(shorthand: str, plain: str) -> None:
    assert next_occurrences(shorthand, "UTC", NEW_YEAR, 20) == next_occurrences(plain, "UTC", NEW_YEAR, 20)


@pytest.mark.parametrize("prefix", ["CRON_TZ=Asia/Tokyo ", "TZ=Asia/Tokyo "])
def test_a_zone_in_the_expression_outranks_the_schedule(prefix: str) -> None:
    (at,) = next_occurrences(f"{prefix}0 3 * * *", "Europe/Berlin", NEW_YEAR, 1)
    assert at == datetime(2026, 1, 1, 18, tzinfo=UTC)


def test_hashed_fields_stay_the_same_for_a_job_and_differ_between_jobs() -> None:
    keys = [UUID(int=number).bytes for number in range(600)]
    spread = {parse_cron("H H * * *", hash_key=key).minutes for key in keys}
    assert len(spread) > 400
    assert parse_cron.__wrapped__("H H * * *", hash_key=keys[7]) == parse_cron("H H * * *", hash_key=keys[7])


def test_a_hash_never_changes_with_a_release() -> None:
    """Occurrences that were written are derived from these numbers."""
    key = UUID(int=7).bytes
    yearly = next_occurrences("H H H H H *", "UTC", NEW_YEAR, 1, hash_key=key)
    weekly = next_occurrences("H(0-29)/15 H(8-17) * * H", "UTC", NEW_YEAR, 2, hash_key=key)
    assert [f"{at:%m-%d %H:%M:%S}" for at in yearly + weekly] == ["09-08 13:13:07", "01-05 09:13:00", "01-05 09:28:00"]


def test_hashed_ranges_and_steps_stay_within() -> None:
    for key in (UUID(int=number).bytes for number in range(50)):
        minutes = [m % 60 for m in values(parse_cron("H(10-29)/5 0 * * *", hash_key=key).minutes)]
        assert len(minutes) == 4
        assert 10 <= minutes[0] < 15
        assert {b - a for a, b in pairwise(minutes)} == {5}
        (minute,) = values(parse_cron("H(0-4) 0 * * *", hash_key=key).minutes)
        assert minute < 5
        found = next_occurrences("0 0 H * *", "UTC", NEW_YEAR, 12, hash_key=key)
        assert len({at.month for at in found}) == 12, "each month has that day"


def test_croniter_agrees_where_it_reads_the_same() -> None:
    """In UTC, without the rule of two day fields, our search equals croniter's."""
    random = Random(7)  # noqa: S311  # a seeded sample, no secret
    compared = 0
    while compared < 300:
        near = NEW_YEAR + timedelta(minutes=random.randrange(525_600))
        expression = any_expression(random, near)
        if any(mark in expression for mark in "LW#?") or not expression.endswith(" *") or EQUAL.search(expression):
            continue
        theirs = islice(croniter(expression, NEW_YEAR, ret_type=datetime), 20)
        assert next_occurrences(expression, "UTC", NEW_YEAR, 20) == list(theirs), expression
        compared += 1
