"""A round has figures only if each requested run happened once and not early."""

import os
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import pytest

from tests.fixtures.database import Database
from tools.bench.complete import check_runs, check_starts
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
