"""Modules of the tests that processes of a release import: see `test_upgrade`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.releases import RELEASES, Release, build
from tests.fixtures.services import HANDLERS
from tests.strict_types import ROOT

pytestmark = pytest.mark.process


@pytest.mark.landing
@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.version)
def test_release_imports_what_its_processes_need(release: Release, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{build(release, tmp_path)}{os.pathsep}{ROOT}"}
    code = f"import tests.fixtures.process, {HANDLERS}"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
