"""The database's clock alone decides what is due."""

import re

from tests.strict_types import LINKED, ROOT
from tests.tidewheel.postgres.test_statements import real_files

FOLDERS = ("tidewheel", *LINKED)
DECIDING = (
    "intake/",
    "scheduler/",
    "tidewheel/jobs/",
    "tidewheel/nouns/",
    "tidewheel/schedules/",
    "tidewheel/transitions/",
)
"""Rooms that decide what is due."""

SQL = {
    "migrations/0001_jobs.sql": "tidewheel_now() itself",
    "control/doctor/queries.sql": "the age of transactions, which the server's own clock began",
    "scheduler/queries.sql": "how long sessions wait for a lock, which the server's own clock began",
    "tidewheel/queries.sql": "the age of a session that holds a lock, which the server's own clock began",
    "migrations/0020_event_order.sql": "the time that a transaction has taken, by the server's own clock",
    "migrations/queries.sql": "when a migration was applied, before tidewheel_now() is there",
}

READS_PYTHON = re.compile(
    r"SystemClock\(|\btime\.time\(|\btime_ns\(|\.now\((UTC|tz|timezone)|\.today\(|\butcnow\(|\blocaltime\(|\bgmtime\("
)
READS_SQL = re.compile(
    r"(?<![a-z_])(now|clock_timestamp|statement_timestamp|transaction_timestamp|timeofday)\(\)|\bcurrent_(date|time)",
    re.IGNORECASE,
)


def reading(pattern: str, reads: re.Pattern[str]) -> set[str]:
    """Return the files that read a clock."""
    paths = [path for folder in FOLDERS for path in real_files(folder, pattern)]
    return {str(path.relative_to(ROOT)) for path in paths if reads.search(path.read_text(encoding="utf-8"))}


def test_rooms_that_decide_do_not_read_this_machines_clock() -> None:
    """Due times are compared in SQL with `tidewheel_now()`, or in Python with its result."""
    found = reading("*.py", READS_PYTHON)
    assert "tidewheel/clock.py" in found
    assert [path for path in found if path.startswith(DECIDING)] == []


def test_statements_read_no_clock_but_tidewheel_now() -> None:
    """`now()` is constant in a transaction, and a test's clock moves none of the other functions."""
    assert reading("*.sql", READS_SQL) == set(SQL)
