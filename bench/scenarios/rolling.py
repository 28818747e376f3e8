"""`rolling`: the cost of replacing three executors under load, one by one."""

import threading
from contextlib import ExitStack
from datetime import datetime, timedelta
from typing import cast

from tidewheel.bench.environment import Environment
from tidewheel.bench.load import database_now, load_jobs
from tidewheel.clock import monotonic_seconds
from tidewheel.postgres.session import Conn

EXECUTORS = 3
RUNS_PER_SECOND = 300  # of a tenth of a second each: 30 slots busy, of 300
LONG_RUNS = 30  # in hand all the while, and longer than the drain
WINDOW_SECONDS = 0.5
_EXECUTOR = ("executor", "--handlers", "tidewheel.bench.handlers")
_DRAIN_SECONDS = 2
_LIVE = "SELECT count(*) FROM executors WHERE NOT stopping"
_GIVE_UP_SECONDS = 60.0


def measure(environment: Environment) -> dict[str, float]:
    """Roll the fleet once; completions by half seconds of the roll, and what became of the attempts."""
    environment.variables["TIDEWHEEL_DRAIN_TIMEOUT"] = f"PT{_DRAIN_SECONDS}S"
    with environment.connect() as connection:
        due_at = database_now(connection) + timedelta(seconds=15)
        every = timedelta(seconds=1)
        load_jobs(
            connection,
            environment.installation,
            RUNS_PER_SECOND,
            due_at=due_at,
            every=every,
            spread=every,
            handler="tenth",
            prefix="short",
        )
        load_jobs(connection, environment.installation, LONG_RUNS, due_at=due_at, handler="minute", prefix="long")
        connection.autocommit = True
        with ExitStack() as running, environment.services(["relay"], ["scheduler"]):
            fleet = [running.enter_context(environment.services(_EXECUTOR))[0] for _ in range(EXECUTORS)]
            _until(connection, "SELECT count(*) > 3000 FROM runs WHERE state = 'succeeded'")
            begun_at = database_now(connection)
            for old in fleet:
                old.terminate()
                running.enter_context(environment.services(_EXECUTOR))
                old.wait(_GIVE_UP_SECONDS)
                _until(connection, f"{_LIVE} HAVING count(*) = {EXECUTORS}")
                threading.Event().wait(2)
            ended_at = database_now(connection)
            figures = _figures(connection, begun_at, ended_at)
    return figures


def _figures(connection: Conn, begun_at: datetime, ended_at: datetime) -> dict[str, float]:
    seconds = (ended_at - begun_at).total_seconds()
    rows = connection.execute(
        "SELECT floor(extract(epoch FROM finished_at - %(begun)s) / %(window)s)::int, count(*) FROM ended_attempts"
        " WHERE outcome = 'succeeded' AND finished_at >= %(begun)s AND finished_at < %(ended)s GROUP BY 1",
        {"begun": begun_at, "ended": ended_at, "window": WINDOW_SECONDS},
    ).fetchall()
    found = {cast("int", window): cast("int", count) for window, count in rows}
    rates = sorted(found.get(window, 0) / WINDOW_SECONDS for window in range(int(seconds / WINDOW_SECONDS)))
    counted = connection.execute("SELECT outcome, count(*) FROM ended_attempts GROUP BY outcome").fetchall()
    outcomes = {str(outcome): cast("int", count) for outcome, count in counted}
    failed_attempts = connection.execute("SELECT coalesce(sum(failed_attempts), 0) FROM job_runs").fetchone()
    assert failed_attempts is not None
    bad = sum(outcomes.get(outcome, 0) for outcome in ("failed", "timed_out", "lost"))
    return {
        "roll_seconds": seconds,
        "runs_per_second_least_window": rates[0],
        "runs_per_second_median_window": rates[len(rates) // 2],
        "empty_windows": float(rates.count(0.0)),
        "attempts_handed_back": float(outcomes.get("released", 0)),
        "attempts_charged_or_lost": float(bad + int(cast("int", failed_attempts[0]))),
    }


def _until(connection: Conn, query: str) -> None:
    deadline = monotonic_seconds() + _GIVE_UP_SECONDS
    while connection.execute(query.encode()).fetchone() in (None, (False,)):
        assert monotonic_seconds() < deadline, query
        threading.Event().wait(0.05)
