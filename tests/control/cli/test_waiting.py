"""`--wait` and `--follow`: a command ends with what it has started, and its exit code says how."""

import io
from collections.abc import Callable
from contextlib import redirect_stderr

import pytest

from tests.control.cli.command import Done, tidewheel
from tests.fixtures.acts import ending
from tests.fixtures.database import Database
from tests.fixtures.services import until
from tests.transitions.stepping import in_background
from tidewheel.control.cli.exit_codes import ExitCode
from tidewheel.control.cli.run_output import wait_for_run
from tidewheel.control.client.client import Client
from tidewheel.runs import RunState


def ended(database: Database, state: RunState, command: Callable[[], Done]) -> Done:
    """Run a command that waits, and end the only open run meanwhile."""
    waiting = in_background(command)
    until(lambda: database.job_runs(), "there is a run")
    [run] = database.job_runs()
    error = None if state is RunState.SUCCEEDED else "ValueError"
    database.end(ending(database.begin(run.run_id), state, error_type=error))
    return waiting.result(60)


@pytest.mark.parametrize(("state", "code"), [(RunState.SUCCEEDED, ExitCode.DONE), (RunState.FAILED, ExitCode.FAILED)])
def test_trigger_waits_for_its_run(database: Database, state: RunState, code: ExitCode) -> None:
    database.submit()
    done = ended(database, state, lambda: tidewheel(database, "job", "trigger", "job", "--wait"))
    assert done.code == code
    assert f": {state}" in done.out
    assert ("ValueError" in done.out) == (state is RunState.FAILED)


def test_reason_of_a_wait_is_printed_once(database: Database) -> None:
    database.submit()
    run_id = database.trigger()
    with Client(database.url) as client, redirect_stderr(io.StringIO()) as err:
        waiting = in_background(lambda: wait_for_run(client, run_id))
        until(lambda: "no live executor" in err.getvalue() or waiting.done(), "the reason is printed")
        database.end(ending(database.begin(run_id), RunState.SUCCEEDED))
        assert waiting.result(60).state == RunState.SUCCEEDED
    first, reason, *_ = err.getvalue().splitlines()
    assert first == f"waiting for run {run_id}; Ctrl-C stops waiting, and the run continues"
    assert reason.startswith("queued: no live executor serves queue default; remedy: tidewheel service executor ")


def test_retry_waits_for_its_run(database: Database) -> None:
    database.submit()
    old = database.trigger()
    database.end(ending(database.begin(old), RunState.FAILED, error_type="ValueError"))
    done = ended(database, RunState.SUCCEEDED, lambda: tidewheel(database, "run", "retry", old, "--wait"))
    assert (done.code, done.out.split()[-1]) == (ExitCode.DONE, "succeeded")


def test_show_follows_a_run_to_its_end(database: Database) -> None:
    database.submit()
    run = database.trigger()
    done = ended(database, RunState.FAILED, lambda: tidewheel(database, "run", "show", run, "--follow"))
    assert ["status", "failed"] in [line.split() for line in done.out.splitlines()]
