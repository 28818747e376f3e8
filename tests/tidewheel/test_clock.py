"""The database's clock alone decides what is due; the files that read another clock are listed."""

import re

from tests.strict_types import LINKED, ROOT
from tests.tidewheel.postgres.test_statements import real_files

FOLDERS = ("tidewheel", *LINKED)

# The files that read this machine's clock, each with its purpose.
PYTHON = {
    "tidewheel/clock.py": "it is the clock",
    "tidewheel/process/clock_skew.py": "measures how far it is from the database's",
    "tidewheel/presence.py": "sends it with a heartbeat, to be compared with the database's",
    "control/doctor/database.py": "compares it with the database's",
    "executor/runners/http.py": "signatures: the other side's clock",
    "executor/runners/runner.py": "the date of a response without a Date",
    "executor/context_parts.py": "times the steps of an attempt for the page of its run",
    "executor/context.py": "shows a handler its deadline; the executor uses durations",
    "tidewheel/testing/handlers.py": "when an attempt without a database pretends to be",
    "tidewheel/testing/stack.py": "first value of the clock of a test's database",
    "control/cli/schedules.py": "explains expressions and calendar files to a person, without a database",
    "control/cli/output.py": "shows a person how long ago an instant was",
    "control/instants.py": "reads what a person writes, such as yesterday, before a database is known",
    "control/supervise/process.py": "when a line of a service arrived, for people",
    "relay/loop.py": "begin of the spans of a trace, as other programs on this machine measure it",
    "tidewheel/process/spans.py": "begin and end of the spans of a trace",
}
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


def test_only_listed_files_read_this_machines_clock() -> None:
    """Due times are compared in SQL with `tidewheel_now()`, or in Python with its result."""
    assert reading("*.py", READS_PYTHON) == set(PYTHON)


def test_statements_read_no_clock_but_tidewheel_now() -> None:
    """`now()` is constant in a transaction, and a test's clock moves none of the other functions."""
    assert reading("*.sql", READS_SQL) == set(SQL)
