"""The dashboard fits the schema of Grafana.

In `test_alerts_fire.py` a real Prometheus answers each of its queries.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.strict_types import ROOT

DASHBOARD = ROOT / "compose" / "dashboard.json"
CHECKER = ROOT / "tests" / "fixtures" / "grafana"
GO = shutil.which("go")


@pytest.mark.process
@pytest.mark.slow  # downloads and compiles the schema: a minute at first
@pytest.mark.skipif(GO is None, reason="needs Go 1.21")
def test_dashboard_fits_the_schema_of_grafana(tmp_path: Path) -> None:
    def read(dashboard: Path) -> str:
        done = subprocess.run(
            [str(GO), "run", ".", dashboard], cwd=CHECKER, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    assert read(DASHBOARD) == ""
    for right, wrong in (('"gridPos"', '"gridPso"'), ('"h": 8', '"h": "8"'), ('"showLegend": true', '"showLegend": 1')):
        (tmp_path / "wrong.json").write_text(DASHBOARD.read_text(encoding="utf-8").replace(right, wrong))
        assert "panels[0]" in read(tmp_path / "wrong.json"), wrong
