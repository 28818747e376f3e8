"""The dashboard fits the schema of Grafana.

In `test_alerts_fire.py` a real Prometheus answers each of its queries.
"""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.strict_types import ROOT

DASHBOARD = ROOT / "compose" / "dashboard.json"
CHECKER = ROOT / "tests" / "fixtures" / "grafana"
COLUMNS = 24
GO = shutil.which("go")
TARGET = {"refId", "expr", "legendFormat"}
DEFAULTS = {"unit"}


def panels() -> list[dict[str, Any]]:
    return json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]


def test_panels_lie_beside_each_other_within_the_grid() -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in panels():
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= COLUMNS, panel["title"]
        for cell in ((x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])):
            assert taken.setdefault(cell, panel["title"]) == panel["title"]
    assert len({panel["id"] for panel in panels()}) == len({panel["title"] for panel in panels()}) == len(panels())


def test_what_the_schema_leaves_open_has_known_names() -> None:
    for panel in panels():
        assert panel["type"] == "timeseries"
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["fieldConfig"]["defaults"].keys() <= DEFAULTS, panel["title"]
        assert all(target.keys() <= TARGET for target in panel["targets"]), panel["title"]
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


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
