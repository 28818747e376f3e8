"""A round has figures only if each run happened once, in time, and after the mark."""

import os
import subprocess
import sys
from datetime import timedelta
from functools import partial
from pathlib import Path
from uuid import UUID

import pytest

from tests.fixtures.database import Database
from tidewheel.local.stack import StackInfo
from tools.bench.complete import check_runs, check_starts, wait_for
from tools.bench.environment import open_server
from tools.bench.flow import mark_before_firing
from tools.bench.load import Load, database_now, load_jobs, lookahead_of, steady
from tools.bench.measurement import Incomplete
from tools.bench.starts import VARIABLE, Start, Starts

ONE, OTHER = UUID(int=1).bytes, UUID(int=2).bytes


@pytest.mark.parametrize(
    "starts",
    [
        [Start(5.0, 5.0, ONE)],
        [Start(5.0, 5.0, ONE), Start(5.1, 5.0, ONE)],
        [Start(5.0, 5.0, ONE), Start(4.9, 5.0, OTHER)],
        [Start(5.0, 5.0, ONE), Start(5.0, 5.0, OTHER), Start(5.0, 5.0, OTHER)],
    ],
    ids=["one is missing", "one twice, one not at all", "one early", "one twice"],
)
def test_missing_double_or_early_start_is_reported(starts: list[Start]) -> None:
    with pytest.raises(Incomplete):
        check_starts(starts, 2)


def test_single_starts_in_time_are_complete() -> None:
    check_starts([Start(5.0, 5.0, ONE), Start(5.2, 5.0, OTHER)], 2)


@pytest.mark.postgres
def test_missing_runs_are_reported(database: Database) -> None:
    connection = database.connection()
    check_runs(connection, 0, 0)
    for expected, retried in ((3, 0), (0, 1)):
        with pytest.raises(Incomplete, match=f"{expected} runs were expected; 0 runs"):
            check_runs(connection, expected, 0, retried=retried)


@pytest.mark.process
def test_notes_of_two_processes_are_read_during_writing(tmp_path: Path) -> None:
    notes = "from uuid import UUID; from tools.bench.starts import Notes; n = Notes(); n.note(5.0, UUID(int=1))"
    for more in ("", "; n.note(); n.note()"):
        program = [sys.executable, "-c", notes + more]
        subprocess.run(program, env=os.environ | {VARIABLE: str(tmp_path)}, check=True)
        starts = Starts(tmp_path)
        assert starts.count() == len(starts.read())
    assert starts.count() == 4
    assert sorted(start.run for start in starts.read()) == [bytes(16), bytes(16), ONE, ONE]


@pytest.mark.postgres
def test_spread_with_fractional_microseconds_gives_every_job_a_last_occurrence(
    database: Database,
) -> None:
    connection, second = database.connection(), timedelta(seconds=1)
    due_at = database_now(connection)
    load_jobs(connection, database.installation, steady(1800, second, rounds=1), due_at)
    [(count, last)] = database.rows("SELECT count(*), max(due_at) FROM timers")
    assert count == 1800
    assert last < due_at + second


@pytest.mark.kafka
@pytest.mark.slow
def test_mark_waits_for_the_last_moment_and_refuses_what_was_fired(
    info: StackInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEWHEEL_DATABASE_URL", info.database_url)
    monkeypatch.setenv("TIDEWHEEL_KAFKA_PROPERTIES", str(info.kafka_properties))
    with open_server() as server, server.environment() as environment:
        connection = environment.connection
        due_at = environment.now() + lookahead_of(environment) + timedelta(seconds=3)
        load_jobs(connection, environment.installation, Load(jobs=20, prefix="later"), due_at)
        with environment.meter({}) as meter:
            mark = mark_before_firing(environment, meter, due_at)
            left = due_at - environment.now() - lookahead_of(environment)
            assert timedelta(0) < left <= timedelta(seconds=1)
            load_jobs(connection, environment.installation, Load(jobs=20, prefix="now"), environment.now())
            with environment.services(("scheduler",)):
                wait_for(partial(environment.count, "SELECT count(*) FROM outbox"), 20, "runs fired")
            assert meter.since(mark, 20).wal_bytes > 0
            with pytest.raises(Incomplete, match="fired before the jobs were loaded"):
                mark_before_firing(environment, meter, due_at)
