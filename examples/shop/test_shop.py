"""The shop's tests."""

from collections.abc import Iterator
from datetime import UTC, datetime

import psycopg
import pytest
import shop

from tidewheel.testing import Tidewheel, run_handler, simulate


def test_a_handler_by_itself() -> None:
    """No database, no broker: a few milliseconds."""
    result = run_handler(shop.greet, "ann").assert_succeeded()
    assert result.result == "good morning, ann"
    assert result.progress == "found the door"
    assert run_handler("shop.greet", "").error_type == "Permanent"


def test_when_the_report_is_written() -> None:
    """No database either: the code that decides what fires, on any span of time."""
    lines = simulate(
        shop.JOBS[1],
        datetime(2026, 12, 23, tzinfo=UTC),
        datetime(2026, 12, 29, tzinfo=UTC),
        calendars={"holidays": ["2026-12-25"]},
    )
    assert [(f"{line.local:%a %d %H:%M}", line.reason) for line in lines] == [
        ("Wed 23 06:00", None),
        ("Thu 24 06:00", None),
        ("Fri 25 06:00", "excluded"),
        ("Mon 28 06:00", None),
    ]


@pytest.fixture
def connection(tidewheel: Tidewheel, monkeypatch: pytest.MonkeyPatch) -> Iterator[psycopg.Connection]:
    """The shop's own connection, to a database that holds its tables beside Tidewheel's."""
    monkeypatch.setattr(shop, "database_url", tidewheel.url)
    with psycopg.connect(tidewheel.url) as own:
        own.execute(shop.TABLES)
        own.commit()
        tidewheel.client.calendars.put("holidays", days=["2026-12-25"])
        for job in shop.JOBS:
            tidewheel.submit(job)
        yield own


def test_an_order_and_its_receipt_are_one(tidewheel: Tidewheel, connection: psycopg.Connection) -> None:
    shop.place_order(connection, "A-1", "ann@example.org", 900)
    connection.rollback()
    tidewheel.drain()
    assert tidewheel.runs("receipt") == []

    shop.place_order(connection, "A-1", "ann@example.org", 900)
    connection.commit()
    tidewheel.drain()
    tidewheel.assert_fired("receipt", times=1)
    tidewheel.assert_no_dead_letters()
    assert connection.execute("SELECT text FROM receipts").fetchall() == [("ann@example.org paid 9.00",)]


def test_a_receipt_that_fails_at_first_is_written_once(
    tidewheel: Tidewheel, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    compose, calls = shop.compose, iter([RuntimeError("the printer is out of paper")])

    def fail_at_first(connection: psycopg.Connection, number: str) -> str:
        for error in calls:
            raise error
        return compose(connection, number)

    monkeypatch.setattr(shop, "compose", fail_at_first)
    shop.place_order(connection, "A-1", "ann@example.org", 900)
    connection.commit()
    tidewheel.drain()
    assert [(run.state, run.error_type) for run in tidewheel.runs("receipt")] == [("retrying", "RuntimeError")]
    tidewheel.advance(seconds=30)
    assert [(run.state, run.attempt) for run in tidewheel.runs("receipt")] == [("succeeded", 2)]
    assert connection.execute("SELECT count(*) FROM receipts").fetchone() == (1,)


def test_a_week_of_reports(tidewheel: Tidewheel, connection: psycopg.Connection) -> None:
    tidewheel.set_time("2027-03-01T00:00:00Z")
    tidewheel.submit(shop.JOBS[1] | {"key": "weekly"})  # the one submitted before has missed three months
    tidewheel.advance(days=7)
    tidewheel.assert_fired("weekly", times=5)
    tidewheel.assert_fired("weekly", at="2027-03-01T05:00:00Z")
    march = "SELECT extract(isodow FROM day)::int FROM reports WHERE day >= '2027-03-01' GROUP BY day ORDER BY day"
    days = connection.execute(march).fetchall()
    assert days == [(1,), (2,), (3,), (4,), (5,)]
