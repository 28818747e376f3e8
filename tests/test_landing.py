"""`.ci/run` forgives a flaky test once, and never a broken promise."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.strict_types import ROOT

pytestmark = pytest.mark.process

TESTS = """
import subprocess
from pathlib import Path

from tests.fixtures.waiting import WaitRanOut

import pytest


def first(name):
    path = Path(name)
    seen = path.exists()
    path.touch()
    return not seen


def test_good():
    pass


def test_once():
    assert not first("once"), "it was slow"


def test_twice():
    raise AssertionError("it is wrong")


def test_waits_once():
    if first("waits"):
        raise WaitRanOut("not within 60 s: the run ends")


def test_waits_once_more():
    if first("process"):
        subprocess.run(["sleep", "60"], timeout=0.01)


@pytest.mark.parametrize("case", ["a"])
def test_loses_once(case):
    assert not first("loses"), "a run is lost"


@pytest.mark.parametrize("number", range(4))
def test_many(number):
    assert not first(f"many-{number}")
"""
LAND = """
import sys
from contextlib import redirect_stdout
from io import StringIO
from os import environ

import pytest

from tests.landing import main

record, file, *names = sys.argv[1:]
with redirect_stdout(StringIO()):
    codes = [pytest.main(["-q", "-p", "no:cacheprovider", "-m", "not slow", "-k", name, file]) for name in names]
del environ["TIDEWHEEL_TEST_RECORD"]
sys.exit(main([record, *(str(int(code)) for code in codes)]))
"""
PAGE = "- [tests/test_some.py](../tests/test_some.py): `test_loses_once`, `test_waits_once`, `test_waits_once_more`\n"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with a few tests, and nothing listed."""
    for folder in ("tests/faults", "docs", ".ci"):
        (tmp_path / folder).mkdir(parents=True)
    for path in ("tests/test_some.py", "tests/faults/test_kills.py"):
        (tmp_path / path).write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "docs/guarantees-runs.md").write_text(PAGE)
    (tmp_path / ".ci/flaky").write_text("")
    return tmp_path


def python(checkout: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python in the checkout, with the plugin of a landing."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TIDEWHEEL_TEST_")}
    plugins = {
        "PYTHONPATH": str(ROOT),
        "PYTEST_PLUGINS": "tests.fixtures.landing",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # they take most of a second
    }
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=checkout, env={**kept, **plugins, **variables}, capture_output=True, text=True, check=False
    )


def land(checkout: Path, names: str, file: str = "tests/test_some.py") -> tuple[int, str]:
    """Run some tests and a good one, as the two parts of `.ci/run`; return the verdict's code and output."""
    record = checkout / "record"
    record.unlink(missing_ok=True)
    done = python(checkout, "-c", LAND, str(record), file, names, "test_good", TIDEWHEEL_TEST_RECORD=str(record))
    assert not done.stderr
    return done.returncode, done.stdout


def commit(checkout: Path, *, at: str) -> None:
    """Commit all files at an instant."""
    script = "git init -q && git add . && git -c user.name=a -c user.email=a@example.org commit -qm some"
    dates = {"GIT_COMMITTER_DATE": at, "GIT_AUTHOR_DATE": at}
    subprocess.run(["/bin/sh", "-c", script], cwd=checkout, env={**os.environ, **dates}, check=True)


def test_test_that_fails_once_is_named_and_forgiven(checkout: Path) -> None:
    code, printed = land(checkout, "once and not waits and not loses or good")
    assert code == 0
    assert "flaky: tests/test_some.py::test_once, AssertionError: it was slow\n" in printed
    assert printed.endswith("\n3 passed, 0 failed\n")


def test_test_that_fails_twice_is_red(checkout: Path) -> None:
    code, printed = land(checkout, "twice or test_once")
    assert code == 1
    assert "red: tests/test_some.py::test_twice: it failed twice\n" in printed
    assert printed.endswith("\n1 passed, 2 failed\n")


def test_listed_test_is_red_until_it_is_taken_out(checkout: Path) -> None:
    listed = checkout / ".ci/flaky"
    listed.write_text("tests/test_some.py::test_once, AssertionError: it was slow\n")
    code, printed = land(checkout, "test_once")
    assert code == 1
    assert "red: tests/test_some.py::test_once: .ci/flaky lists it: AssertionError: it was slow\n" in printed
    listed.write_text("")
    (checkout / "once").unlink()
    assert land(checkout, "test_once")[0] == 0


@pytest.mark.parametrize(
    ("file", "names"), [("tests/test_some.py", "test_loses_once"), ("tests/faults/test_kills.py", "test_once")]
)
def test_broken_promise_is_red_at_once(checkout: Path, file: str, names: str) -> None:
    code, printed = land(checkout, names, file)
    assert code == 1
    assert f"red: {file}::{names}" in printed
    assert "a promise is broken" in printed


@pytest.mark.landing
@pytest.mark.parametrize("file", ["tests/test_some.py", "tests/faults/test_kills.py"])
def test_wait_that_ran_out_is_forgiven_where_a_promise_is_tested(checkout: Path, file: str) -> None:
    code, printed = land(checkout, "waits", file)
    assert code == 0
    assert f"flaky: {file}::test_waits_once, " in printed
    assert f"flaky: {file}::test_waits_once_more, subprocess.TimeoutExpired: " in printed
    assert "not within 60 s: the run ends\n" in printed


def test_failure_within_an_oracle_is_red_at_once(checkout: Path) -> None:
    (checkout / "oracle.py").write_text("def check(seen):\n    assert seen == 1, 'a run is doubled'\n")
    (checkout / "tests/test_some.py").write_text(
        TESTS + "\n\ndef test_judged():\n    import oracle\n\n    oracle.check(2)\n"
    )
    code, printed = land(checkout, "test_judged")
    assert code == 1
    assert "a promise is broken" in printed


def test_four_flaky_tests_are_red(checkout: Path) -> None:
    code, printed = land(checkout, "test_many")
    assert code == 1
    assert "red: the run: 4 tests failed, more than 3\n" in printed


def test_part_that_ends_before_its_tests_do_is_red(checkout: Path) -> None:
    record = checkout / "record"
    python(checkout, "-m", "pytest", "-q", "-m", "not slow", "-k", "good", TIDEWHEEL_TEST_RECORD=str(record))
    done = python(checkout, "-m", "tests.landing", str(record), "2", "0")
    assert done.returncode == 1
    assert "red: the run: a part ended before its tests did: exit codes 2, 0\n" in done.stdout


def test_test_without_time_is_listed_and_counts_neither_as_skipped_nor_as_passed(checkout: Path) -> None:
    options = ["-q", "-p", "no:cacheprovider", "-p", "xdist", "-n", "2", "-k", "good or many"]
    done = python(checkout, "-m", "pytest", *options, TIDEWHEEL_TEST_MINUTES="0")
    assert "10 not run: the 0 minutes of TIDEWHEEL_TEST_MINUTES were over" in done.stdout
    assert "\ntests/faults/test_kills.py::test_many[3]\n" in done.stdout
    assert "no tests ran" in done.stdout
    assert "skipped" not in done.stdout
    assert "passed" not in done.stdout


def test_tests_of_each_landing_come_first_then_those_of_the_change(checkout: Path) -> None:
    """The order within a rank is drawn from the commit's id."""
    marked = "import pytest\n\n\n@pytest.mark.landing\ndef test_killed(): pass\n"
    (checkout / "tests/faults/test_crash_points.py").write_text(marked)
    (checkout / "pytest.ini").write_text("[pytest]\nmarkers = landing\n")
    (checkout / "tests/test_late.py").write_text("from tests.touched import one\n\n\ndef test_late(): pass\n")
    (checkout / "tests/touched.py").write_text("one = 1\n")
    commit(checkout, at="2026-01-01T00:00:00Z")
    (checkout / "tests/touched.py").write_text("one = 2\n")
    commit(checkout, at="2026-01-02T00:00:00Z")
    done = python(
        checkout, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--collect-only", TIDEWHEEL_TEST_ORDER="landing"
    )
    names = [line for line in done.stdout.splitlines() if "::" in line]
    assert names[:2] == ["tests/faults/test_crash_points.py::test_killed", "tests/test_late.py::test_late"]
    assert len(names) == len(set(names))
    assert names[2:] != sorted(names[2:])
