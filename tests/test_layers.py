"""The layers of the tests: a unit test can start no service and no process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.strict_types import ROOT

TESTS = """
import os
import subprocess
import sys


def test_plain():
    assert True


def test_stack(request):
    request.getfixturevalue("tidewheel_stack")


def test_process():
    subprocess.run([sys.executable, "-c", ""], check=True)


def test_fork():
    os.fork()


def test_named(tidewheel_stack):
    assert tidewheel_stack
"""


@pytest.mark.process
def test_unit_test_cannot_start_services_or_processes(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    options = ["--rootdir", str(tmp_path), "--basetemp", str(tmp_path / "base"), "-p", "no:cacheprovider", "-m", "unit"]
    plugins = ["-p", "tidewheel.testing.plugin", "-p", "tests.fixtures.layers"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, *options, *plugins, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "3 failed, 1 passed, 1 deselected" in done.stdout
    for reason in ("needs the stack", "starts a process, subprocess.Popen", "starts a process, os.fork"):
        assert reason in done.stdout
    assert not list(tmp_path.rglob("stack.json"))
