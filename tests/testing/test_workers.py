"""The stack that the workers of pytest-xdist share: one for all, gone at the end, however that comes."""

import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.fixtures.services import until
from tests.strict_types import ROOT

pytestmark = [pytest.mark.process, pytest.mark.slow]

_PATIENCE_SECONDS = 300  # two of them start a PostgreSQL and a broker beside the tests' own
TESTS = """
import threading
from pathlib import Path

import pytest


@pytest.mark.parametrize("number", range(2))
def test_one(number, tidewheel_stack):
    Path(f"{number}.url").write_text(tidewheel_stack.database_url)
    while Path("wait").exists():
        threading.Event().wait(0.05)
"""


@contextmanager
def two_workers(folder: Path) -> Generator["subprocess.Popen[str]"]:
    """A pytest of two workers, each of which has one of the two tests."""
    (folder / "test_some.py").write_text(TESTS)
    (folder / "wait").touch()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TIDEWHEEL_", "PYTEST_"))}
    options = ["-q", "-c", os.devnull, "--rootdir", str(folder), "-n", "2", "--dist", "load", "-p", "no:cacheprovider"]
    plugins = ["-p", "tidewheel.testing.plugin"]
    running = subprocess.Popen(
        [sys.executable, "-m", "pytest", *options, *plugins, str(folder)],
        cwd=folder,
        env=kept | {"TMPDIR": str(folder), "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=_heed_interrupts,
    )
    try:
        yield running
    finally:
        running.kill()
        running.wait()
        assert running.stdout is not None
        running.stdout.close()


def _heed_interrupts() -> None:
    """Handle SIGINT again, which the background jobs of a shell inherit as ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def urls(folder: Path) -> list[str]:
    """Return the texts of the workers; a file that is still empty is left out."""
    return [text for path in folder.glob("*.url") if (text := path.read_text())]


def processes_of(folder: Path) -> list[str]:
    """The names of the processes whose command line names this folder."""
    there = list(psutil.process_iter(["name", "cmdline"]))
    return [p.info["name"] for p in there if any(str(folder) in word for word in p.info["cmdline"] or ())]


def test_two_workers_share_one_stack_that_is_gone_at_the_end(tmp_path: Path) -> None:
    with two_workers(tmp_path) as running:
        until(lambda: len(urls(tmp_path)) == 2, "both workers have the stack", seconds=_PATIENCE_SECONDS)
        assert len(set(urls(tmp_path))) == 1
        assert processes_of(tmp_path).count("java") == 1
        (tmp_path / "wait").unlink()
        output, _ = running.communicate(timeout=_PATIENCE_SECONDS)
    assert running.returncode == 0, output
    assert "2 passed" in output
    assert processes_of(tmp_path) == []
    assert not list(tmp_path.glob("tidewheel-tests-*"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_controller_stops_the_stack(tmp_path: Path, number: signal.Signals) -> None:
    with two_workers(tmp_path) as running:
        until(lambda: len(urls(tmp_path)) == 2, "both workers have the stack", seconds=_PATIENCE_SECONDS)
        running.send_signal(number)
        running.communicate(timeout=_PATIENCE_SECONDS)
    assert running.returncode == pytest.ExitCode.INTERRUPTED
    assert processes_of(tmp_path) == []
    assert not list(tmp_path.glob("tidewheel-tests-*"))
