import json
import shlex
from pathlib import Path

import psycopg
import pytest

from tests.control.cli.command import tidewheel
from tidewheel.local.stack import LocalStack
from tidewheel.local.state import read_state


def test_status_without_a_stack_is_exit_code_3(tmp_path: Path) -> None:
    done = tidewheel(None, "status", "--home", str(tmp_path))
    assert (done.code, done.err) == (3, "")
    assert "tidewheel up" in done.out


def test_status_prints_json(tmp_path: Path) -> None:
    done = tidewheel(None, "status", "--home", str(tmp_path), "--output", "json")
    assert done.code == 3
    printed = json.loads(done.out)
    assert {"home": str(tmp_path), "running": False, "parts": []}.items() <= printed.items()
    assert "tidewheel up" in printed["unknown"]


def test_failure_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    (tmp_path / "stack.json").write_text("{")
    done = tidewheel(None, "up", "--home", str(tmp_path))
    assert (done.code, done.out, done.err.count("tidewheel: ")) == (1, "", 1)
    assert "down --erase" in done.err


def test_number_of_brokers_that_no_stack_has_is_refused(tmp_path: Path) -> None:
    done = tidewheel(None, "up", "--home", str(tmp_path), "--brokers", "2")
    assert (done.code, done.out) == (5, "")
    assert done.err == "tidewheel: --brokers: a stack has 1 or 3 brokers, not 2; write 1 or 3\n"
    assert not list(tmp_path.iterdir())


def test_down_without_a_stack_does_nothing_and_reports_it(tmp_path: Path) -> None:
    for home in (tmp_path / "none", tmp_path):
        done = tidewheel(None, "down", "--home", str(home))
        assert (done.code, done.err) == (0, "")
        assert done.out == f"there is no local stack in {home}; `tidewheel dev` or `tidewheel up` creates one\n"
    assert not (tmp_path / "none").exists()


@pytest.mark.landing
@pytest.mark.kafka
def test_status_shows_how_to_reach_the_stack_and_no_password(stack: LocalStack) -> None:
    done = tidewheel(None, "status", "--home", str(stack.home))
    assert done.code in (0, 1)  # no service runs, and the database may lack migrations
    shown = dict(line.split(maxsplit=1) for line in done.out.splitlines() if line.startswith(("psql", "password")))
    file = Path(shown["password"].removeprefix("of PostgreSQL: in "))
    state = read_state(file.parent)
    assert state is not None
    assert file.is_file()
    for secret in (state.password, *state.kafka_passwords.model_dump().values()):
        assert secret not in done.out
    [program, address] = shlex.split(shown["psql"])
    assert program == "psql"
    with psycopg.connect(address, password=state.password) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    assert str(stack.home / "client.properties") in done.out
    up = tidewheel(None, "up", "--home", str(stack.home), "--output", "json")
    printed = json.loads(up.out)
    assert state.password not in up.out
    assert Path(printed["password_file"]) == file
    with psycopg.connect(printed["database_url"], password=state.password) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    has_api = any(line.split()[:1] == ["api"] for line in done.out.splitlines())  # of a test in the same database
    assert has_api or "tidewheel service api" in done.out
