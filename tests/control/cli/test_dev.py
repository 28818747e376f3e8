import json
from pathlib import Path

import pytest

from tests.control.cli.command import process as tidewheel


@pytest.mark.process
def test_status_without_a_stack_is_exit_code_3(tmp_path: Path) -> None:
    done = tidewheel("status", "--home", str(tmp_path))
    assert (done.code, done.err) == (3, "")
    assert "tidewheel up" in done.out


@pytest.mark.process
def test_status_prints_json(tmp_path: Path) -> None:
    done = tidewheel("status", "--home", str(tmp_path), "--output", "json")
    assert done.code == 3
    assert json.loads(done.out) == {"home": str(tmp_path), "running": False, "parts": []}


@pytest.mark.process
def test_failure_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    done = tidewheel("up", "--home", str(tmp_path), "--brokers", "2")
    assert (done.code, done.out) == (1, "")
    assert done.err == "tidewheel: a stack has 1 or 3 brokers, not 2\n"


@pytest.mark.process
def test_down_without_a_stack_does_nothing_and_reports_it(tmp_path: Path) -> None:
    for home in (tmp_path / "none", tmp_path):
        done = tidewheel("down", "--home", str(home))
        assert (done.code, done.err) == (0, "")
        assert done.out == f"there is no stack in {home}; `tidewheel up` makes one\n"
    assert not (tmp_path / "none").exists()
