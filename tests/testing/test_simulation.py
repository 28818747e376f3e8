"""`simulate`: what would become of a job's occurrences, decided as a scheduler decides, without one."""

from datetime import UTC, date, datetime, timedelta

import pytest

from tests.fixtures.database import ClockedDatabase
from tests.scheduler.firing import fire_due
from tidewheel.errors import Refused
from tidewheel.testing.simulation import MAX_WAKEUPS, Simulated, simulate

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
START = datetime(2026, 3, 28, tzinfo=UTC)


def job(schedule: object, **fields: object) -> dict[str, object]:
    return {"key": "job", "schedule": schedule, "target": "send-email"} | fields


def hours(lines: list[Simulated]) -> list[float]:
    return [(line.at - START) / HOUR for line in lines]


def test_each_occurrence_fires_at_its_instant() -> None:
    lines = simulate(job("@every 1h"), START, START + 3 * HOUR)
    assert hours(lines) == [1, 2, 3]
    assert all(line.fired and line.fires_at == line.at and line.late is None for line in lines)


def test_clock_change_is_reported() -> None:
    berlin = job({"cron": "30 2 * * *", "timezone": "Europe/Berlin"})
    first, second, third = simulate(berlin, START, START + 3 * DAY)
    assert [line.at.isoformat() for line in (first, second, third)] == [
        "2026-03-28T01:30:00+00:00",
        "2026-03-29T01:00:00+00:00",
        "2026-03-30T00:30:00+00:00",
    ]
    assert second.local.isoformat() == "2026-03-29T03:00:00+02:00"
    assert "2026-03-29 02:30 does not exist" in second.notes[0]
    assert (first.notes, third.notes) == ((), ())


@pytest.mark.parametrize(
    ("catch_up", "fired", "missed"),
    [("fire_once", [1, 5, 6], 3), ("fire_all", [1, 2, 3, 4, 5, 6], 0), ("skip", [1, 6], 4)],
)
def test_downtime_is_caught_up_by_the_jobs_policy(catch_up: str, fired: list[int], missed: int) -> None:
    down = [(START + 1.5 * HOUR, START + 5.5 * HOUR)]
    lines = simulate(job("@every 1h", catch_up=catch_up), START, START + 6 * HOUR, down=down)
    assert hours([line for line in lines if line.fired]) == fired
    assert sum(line.occurrences for line in lines if line.reason == "misfire") == missed
    assert all(line.fires_at == START + 5.5 * HOUR and line.late for line in lines if line.fired and line.at in down[0])


def test_excluded_days_are_reported_also_at_the_end() -> None:
    closed = job("0 8 * * *", exclude_calendars=["holidays"])
    days: list[date | str] = ["2026-03-29", date(2026, 3, 30), "2026-04-01"]
    lines = simulate(closed, START, datetime(2026, 4, 1, 12, tzinfo=UTC), calendars={"holidays": days})
    told = [(line.at.day, line.occurrences, line.reason) for line in lines]
    assert told == [(28, 1, None), (29, 2, "excluded"), (31, 1, None), (1, 1, "excluded")]


def test_a_fixed_delay_depends_on_how_long_its_runs_take() -> None:
    lines = simulate(job({"fixed_delay": "1h"}), START, START + 4 * HOUR, taking=timedelta(minutes=30))
    assert hours(lines) == [0, 1.5, 3]


@pytest.mark.parametrize(
    ("schedule", "fields", "fired"),
    [
        ("manual", {}, []),
        ({"once": "2026-03-28T02:00:00Z"}, {}, [2]),
        ({"once": "2026-03-27T00:00:00Z"}, {}, [-24]),
        ("@every 1h", {"paused": True}, []),
        ("@every 1h", {"max_runs": 2}, [1, 2]),
        ("@every 1h", {"end_at": "2026-03-28T02:30:00Z"}, [1, 2]),
    ],
)
def test_bounds_and_kinds_of_schedules(schedule: object, fields: dict[str, object], fired: list[int]) -> None:
    assert hours(simulate(job(schedule, **fields), START, START + 5 * HOUR)) == fired


def test_simulation_equals_a_scheduler(clocked: ClockedDatabase) -> None:
    """Jitter and downtime included: the same instants, the same times of leaving, the same skips."""
    clocked.stop_clock(START)
    spec: dict[str, object] = {"schedule": "*/10 * * * *", "jitter": "2m", "catch_up": "fire_all", "window": "1h"}
    clocked.submit("job", **spec)
    clocked.stop_clock(START + 0.5 * HOUR)
    for _ in range(10):
        fire_due(clocked)
    clocked.stop_clock(START + 3 * HOUR)
    for _ in range(10):
        fire_due(clocked)
    down = [(START, START + 0.5 * HOUR), (START + 0.5 * HOUR + timedelta(microseconds=1), START + 3 * HOUR)]
    lines = simulate(job(spec.pop("schedule"), **spec), START, START + 3 * HOUR, down=down)
    fired = clocked.rows("SELECT scheduled_at FROM job_runs ORDER BY scheduled_at")
    assert [(line.at,) for line in lines if line.fired] == fired
    skipped = clocked.rows("SELECT reason, first_at, last_at, occurrences FROM skips ORDER BY first_at")
    assert [
        (line.reason, line.at, line.last_at or line.at, line.occurrences) for line in lines if not line.fired
    ] == skipped


@pytest.mark.landing
@pytest.mark.parametrize(
    ("fields", "arguments", "path"),
    [
        ({"schedule": "61 * * * *"}, {}, "job.schedule"),
        ({"exclude_calendars": ["holidays"]}, {}, "calendars"),
        ({}, {"start": datetime(2026, 3, 28)}, "start"),  # noqa: DTZ001 - which is what is refused
        ({}, {"end": START - HOUR}, "end"),
        ({"schedule": "@every 1s"}, {"end": START + 30 * DAY}, "end"),
        ({"shedule": 1}, {}, "job.shedule"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_invalid_argument_is_refused_with_its_path(
    fields: dict[str, object], arguments: dict[str, datetime], path: str
) -> None:
    span = {"start": START, "end": START + HOUR} | arguments
    with pytest.raises(Refused) as caught:
        simulate(job("@every 1h") | fields, span["start"], span["end"])
    assert caught.value.errors[0].path.startswith(path)
    assert caught.value.errors[0].remedy


def test_bound_of_a_simulation_is_large() -> None:
    assert simulate(job("@every 1m"), START, START + DAY)[-1].at == START + DAY
    assert MAX_WAKEUPS > 60 * 24
