"""The database's clock alone decides: nobody asks another, but for what is no due time."""

import re

from tests.strict_types import LINKED, ROOT
from tests.tidewheel.postgres.test_statements import real_files

FOLDERS = ("tidewheel", *LINKED)

# Who asks for this machine's time, and what for.
PYTHON = {
    "tidewheel/clock.py": "it is the clock",
    "tidewheel/process/clock_skew.py": "measures how far it is from the database's",
    "executor/runners/http.py": "signatures and Retry-After dates: the other side's clock",
    "bench/baselines.py": "beside the broker's timestamps, on the same machine",
    "bench/starts.py": "what a measured handler notes when it begins, on the database's machine",
    "executor/context.py": "tells a handler when its time is over; the executor goes by durations",
    "tidewheel/testing/handlers.py": "when an attempt without a database pretends to be",
    "tidewheel/testing/stack.py": "where the clock of a test's database stands at first",
    "control/cli/calendars.py": "which years of a calendar file a person means, without a database",
    "control/cli/cron.py": "explains an expression to a person, without a database",
    "control/demo/clock.py": "the demo's figures, with its own measurement of the difference",
}
SQL = {
    "migrations/0001_jobs.sql": "tidewheel_now() itself",
    "migrations/queries.sql": "when a migration was applied, before tidewheel_now() is there",
}

ASKS_PYTHON = re.compile(
    r"SystemClock\(|\btime\.time\(|\btime_ns\(|\.now\((UTC|tz|timezone)|\.today\(|\butcnow\(|\blocaltime\(|\bgmtime\("
)
ASKS_SQL = re.compile(
    r"(?<![a-z_])(now|clock_timestamp|statement_timestamp|transaction_timestamp|timeofday)\(\)|\bcurrent_(date|time)",
    re.IGNORECASE,
)


def asking(pattern: str, asks: re.Pattern[str]) -> set[str]:
    """The files in which somebody asks."""
    paths = [path for folder in FOLDERS for path in real_files(folder, pattern)]
    return {str(path.relative_to(ROOT)) for path in paths if asks.search(path.read_text(encoding="utf-8"))}


def test_nobody_asks_this_machine_for_the_time_but_who_may() -> None:
    """What is due is compared in SQL with `tidewheel_now()`, or in Python with what that has said."""
    assert asking("*.py", ASKS_PYTHON) == set(PYTHON)


def test_no_statement_asks_another_clock_than_tidewheel_now() -> None:
    """`now()` stands still in a transaction, and none of the others is moved by a test's clock."""
    assert asking("*.sql", ASKS_SQL) == set(SQL)
