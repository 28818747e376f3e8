"""Targets that not every executor can run: their runs wait, uncharged, for one that can."""

import subprocess
import sys
from typing import Any

import pytest

from tests.executor.running import Executing
from tests.fixtures.database import Database
from tests.transitions.acts import open_run
from tidewheel.local.stack import StackInfo

pytestmark = pytest.mark.kafka

PROGRAM = {"type": "shell", "argv": ["echo", "here"]}
PROGRAMS: dict[str, Any] = {"shell": True}


@pytest.fixture
def executing(database: Database, info: StackInfo) -> Executing:
    made = Executing(database, info.kafka)
    made.make_topics()
    return made


def test_program_waits_for_an_executor_that_allows_programs(executing: Executing) -> None:
    """By message and by sweep."""
    with executing.running():
        waiting = executing.trigger(PROGRAM)
        executing.publish(waiting)
        assert executing.run("acts.echo", 1).state == "succeeded"
        run = open_run(executing.database, waiting)
        assert (run.state, run.attempt, run.failed_attempts) == ("queued", 0, 0)
        assert names(executing) == [False]
        with executing.running(**PROGRAMS):
            ended = executing.ended(waiting)
            assert sorted(names(executing)) == [False, True]
            by_message = executing.trigger(PROGRAM)
            executing.publish(by_message)
            executing.ended(by_message)
    assert (ended.state, ended.attempt, ended.result) == ("succeeded", 1, b'{"exit_code":0}')
    [(output,)] = executing.database.rows("SELECT output FROM attempt_outputs WHERE run_id = %s", [waiting])
    assert output == b"here\n"


def names(executing: Executing) -> list[bool]:
    """Return for each executor whether it reports that it runs programs."""
    return ["tidewheel.shell" in handlers for (handlers,) in executing.database.rows("SELECT handlers FROM executors")]


def test_executor_hides_its_memory_from_its_programs() -> None:
    """A process of the same user can read neither its environment nor its memory; root's can."""
    source = (
        "import ctypes; from tidewheel.executor.programs.process import hide_from_programs as hide; hide();"
        "print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"
