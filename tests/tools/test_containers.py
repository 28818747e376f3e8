"""Refusals of `make containers` and `make kubernetes`: one sentence with the remedy, at once."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.strict_types import ROOT

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(os.geteuid() != 0, reason="a user who is not root is refused before anything else"),
]
PROGRAMS = ("dockerd", "docker", "mmdebstrap", "git", "go")
NOT_ROOT = """
import os
import sys
from tools.containers.__main__ import guarded, run_it
os.seteuid(65534)
sys.exit(guarded(run_it))
"""


def refused(folder: Path, *command: str, tool: str = "containers", programs: tuple[str, ...] = PROGRAMS) -> str:
    """Run a tool, or another command of Python, where these programs are; return its error."""
    for name in programs:
        program = folder / name
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    done = subprocess.run(
        [sys.executable, *(command or ("-m", f"tools.{tool}"))],
        cwd=ROOT,
        env={"PATH": str(folder), "TIDEWHEEL_CACHE_DIR": str(folder / "cache"), "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    assert done.stderr.startswith("error: ")
    assert sorted(each.name for each in folder.iterdir()) == sorted(programs), "it has written something"
    return done.stderr


@pytest.mark.landing
@pytest.mark.parametrize(
    ("tool", "lacking", "package"),
    [
        ("containers", "dockerd", "docker.io"),
        ("containers", "mmdebstrap", "mmdebstrap"),
        ("kubernetes", "etcd", "etcd-server"),
    ],
)
def test_missing_program_is_named_with_its_package(tmp_path: Path, tool: str, lacking: str, package: str) -> None:
    there = tuple(name for name in (*PROGRAMS, "containerd") if name != lacking)
    assert f"{lacking} is missing: run `apt-get install {package}`" in refused(tmp_path, tool=tool, programs=there)


@pytest.mark.landing
def test_user_who_is_not_root_gets_the_command(tmp_path: Path) -> None:
    assert "run `sudo make containers`" in refused(tmp_path, "-c", NOT_ROOT)


@pytest.mark.landing
def test_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 29092)):
        assert "29092" in refused(tmp_path)
