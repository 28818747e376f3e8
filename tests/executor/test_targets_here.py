"""Targets that not every executor can run: their runs wait, uncharged, for one that can."""

import shutil
import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest

from tests.executor.running import Executing
from tests.fixtures.services import until
from tidewheel.errors import SettingsError
from tidewheel.executor.runners.runner import target_kinds
from tidewheel.scheduler.unhandled import UnhandledWatch
from tidewheel.schemas.generated.records import TargetKind
from tidewheel.settings.executor import ExecutorSettings

pytestmark = pytest.mark.kafka

PROGRAM = {"type": "shell", "argv": [shutil.which("echo"), "here"]}
PROGRAMS: dict[str, Any] = {"targets": "handler,shell", "shell_allow": "*"}


def test_program_waits_for_an_executor_that_allows_programs(executing: Executing) -> None:
    """By message and by sweep."""
    with executing.running():
        waiting = executing.trigger(PROGRAM)
        executing.publish(waiting)
        assert executing.run("acts.echo", 1).state == "succeeded"
        run = executing.database.open_run(waiting)
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


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["http", "kafka", "lambda"])
def test_run_of_a_type_that_is_off_waits_uncharged_with_an_alert(executing: Executing, kind: str) -> None:
    """By message and by sweep; handlers run meanwhile, also where they alone are on."""
    target = {
        "http": {"type": "http", "url": "http://127.0.0.1:9/"},
        "kafka": {"type": "kafka", "topic": "orders"},
        "lambda": {"type": "lambda", "function": "report"},
    }[kind]
    with executing.running(targets="handler"):
        waiting = executing.trigger(target)
        executing.publish(waiting)
        assert executing.run("acts.echo", 1).state == "succeeded"
        run = executing.database.open_run(waiting)
        assert (run.state, run.attempt, run.failed_attempts) == ("queued", 0, 0)
        watch = UnhandledWatch(
            executing.database.session(), executing.database.installation, min_age=timedelta(microseconds=1)
        )
        [announced] = watch.check()
        assert announced.reason == f"no executor of queue 'default' runs {kind} targets (TIDEWHEEL_TARGETS)"
        if kind == "http":
            with executing.running(targets="http", http_allow_private=True):
                assert executing.ended(waiting).error_type == "http_connect"


def test_executor_runs_handlers_and_http_unless_told() -> None:
    assert target_kinds(ExecutorSettings.load()) == [TargetKind.HANDLER, TargetKind.HTTP]


def test_executor_without_handler_targets_registers_no_handler(executing: Executing) -> None:
    with executing.running(targets="http"):
        until(lambda: executing.database.rows("SELECT 1 FROM executors"), "it has entered")
        assert executing.database.rows("SELECT handlers FROM executors") == [(["tidewheel.http"],)]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"targets": "handler,htpp"}, "did you mean 'http'"),
        ({"targets": ","}, "runs nothing"),
        ({"targets": "kafka"}, "TIDEWHEEL_KAFKA_TOPICS is empty"),
        ({"targets": "shell"}, "TIDEWHEEL_SHELL_ALLOW is empty"),
        ({"targets": "lambda"}, "TIDEWHEEL_LAMBDA_FUNCTIONS is empty"),
    ],
)
def test_executor_does_not_start_with_a_type_that_it_could_not_run(settings: dict[str, str], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        target_kinds(ExecutorSettings.load(**settings))


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
