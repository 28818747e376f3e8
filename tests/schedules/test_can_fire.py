from contextlib import suppress
from datetime import UTC, datetime
from typing import cast

import pytest

from tidewheel.errors import ScheduleRefused
from tidewheel.schedules import cron_fields as wall_clock
from tidewheel.schedules.cron_fields import CronFields
from tidewheel.schedules.parse import ensure_can_fire, parse_schedule

NOW = datetime(2026, 3, 1, tzinfo=UTC)
DAILY: dict[str, object] = {"kind": "cron", "expressions": ["0 3 * * *"]}
HOURLY: dict[str, object] = {"kind": "interval", "interval_us": 3_600_000_000, "anchor": "2026-01-01T00:00:00Z"}
DELAY: dict[str, object] = {"kind": "fixed_delay", "interval_us": 3_600_000_000}


def cron(*expressions: str) -> dict[str, object]:
    return {"kind": "cron", "expressions": list(expressions)}


# document: path, problem, remedy
NEVER: dict[str, tuple[dict[str, object], str, str, str]] = {
    "30 February": (cron("0 0 30 2 *"), "cron", "no date fits `0 0 30 2 *`", "30 February"),
    "31 June": (cron("0 0 31 4,6,9,11 *"), "cron", "no date fits", "30 February"),
    "near 30 February": (cron("0 0 30W 2 *"), "cron", "no date fits", "30 February"),
    "both must fit": (cron("0 0 */31 2 FRI#5"), "cron", "no date fits", "30 February"),
    "one of several": (cron("@daily", "0 0 30 2 *"), "cron.1", "no date fits", "30 February"),
    "end_at in the past": ({**DAILY, "end_at": "2026-02-28T00:00:00Z"}, "end_at", "has passed", "a later end_at"),
    "end_at now": ({**HOURLY, "end_at": "2026-03-01T00:00:00Z"}, "end_at", "has passed", "a later end_at"),
    "ends too early": ({**DAILY, "end_at": "2026-03-01T02:59:00Z"}, "end_at", "no occurrence is within", "widen"),
    "too narrow": (
        {**DAILY, "start_at": "2027-01-01T03:00:01Z", "end_at": "2027-01-02T02:59:59Z"},
        "end_at",
        "no occurrence is within",
        "widen",
    ),
    "too far": ({**DAILY, "start_at": "2300-01-01T00:00:00Z"}, "start_at", "no occurrence is within", "widen"),
    "ends before its anchor": (
        {**HOURLY, "anchor": "2026-05-01T00:00:00Z", "end_at": "2026-05-01T00:30:00Z"},
        "end_at",
        "no occurrence is within",
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
