import json
import subprocess
import sys
from pathlib import Path


def tidewheel(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from tidewheel.control.cli.main import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_status_of_what_was_never_made_is_exit_code_3(tmp_path: Path) -> None:
    done = tidewheel("status", "--home", str(tmp_path))
    assert (done.returncode, done.stderr) == (3, "")
    assert "tidewheel up" in done.stdout


def test_status_answers_programs_in_json(tmp_path: Path) -> None:
    done = tidewheel("status", "--home", str(tmp_path), "--output", "json")
    assert done.returncode == 3
    assert json.loads(done.stdout) == {"home": str(tmp_path), "running": False, "parts": []}


def test_what_cannot_be_done_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    done = tidewheel("up", "--home", str(tmp_path), "--brokers", "2")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "tidewheel: a stack has 1 or 3 brokers, not 2\n"


def test_down_where_nothing_is_does_nothing(tmp_path: Path) -> None:
    assert tidewheel("down", "--home", str(tmp_path / "none")).returncode == 0
    assert not (tmp_path / "none").exists()
