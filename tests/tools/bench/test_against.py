"""`--against`: two builds in turns, their ratios by pairs, and documents of older builds."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.strict_types import ROOT
from tidewheel.control.cli.exit_codes import ExitCode
from tools.bench.against import OTHER, THIS, compare

PROGRAM = Path(".venv", "bin", "tidewheel")


def line(median: float, **more: object) -> dict[str, object]:
    return {"scenario": "fire", "figure": "rate", "unit": "occurrences/s", "median": median, **more}


def pair(this: Mapping[str, object], other: Mapping[str, object]) -> dict[str, Mapping[str, Any]]:
    return {THIS: {"results": [this]}, OTHER: {"results": [other]}}


def test_ratio_is_taken_within_a_pair() -> None:
    """The machine was half as fast in the second pair: medians alone would show 1.1 to 0.6."""
    [compared] = compare([pair(line(110), line(100)), pair(line(55), line(50)), pair(line(120), line(100))])
    assert (compared.measure, compared.this, compared.other, compared.pairs) == ("value", 110, 100, 3)
    assert (compared.ratio, compared.ratio_min, compared.ratio_max) == pytest.approx((1.1, 1.1, 1.2))


def test_cost_and_wal_are_compared_where_both_have_them() -> None:
    cost = {"cpu_us_per_run": {"relay": 6.0, "total": 30.0}, "cpu_us_per_run_min": {"relay": 5.0, "total": 28.0}}
    old = line(90, cpu_us_per_run={"total": 60.0}, wal_bytes_per_run=4000.0)
    found = compare([pair(line(100, **cost, wal_bytes_per_run=3000.0), old), pair(line(100), line(100))])
    assert {each.measure: (each.ratio, each.pairs) for each in found} == {
        "value": (pytest.approx((1 / 0.9 + 1) / 2), 2),
        "cpu_us_per_run total": (0.5, 1),
        "wal_bytes_per_run": (0.75, 1),
    }


def bench(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "tidewheel.control.cli", "admin", "bench", *arguments]
    named = os.environ | {"TIDEWHEEL_DATABASE_URL": "postgresql://127.0.0.1:1/none"}  # for both builds: none takes it
    return subprocess.run(command, cwd=ROOT, env=named, capture_output=True, text=True, check=False)


@pytest.mark.process
def test_folder_that_is_no_checkout_is_refused_with_a_remedy(tmp_path: Path) -> None:
    done = bench("fire", "--against", str(tmp_path))
    assert (done.returncode, done.stdout) == (ExitCode.REFUSED, "")
    said = f"--against: {tmp_path} is no checkout of Tidewheel; name the folder of a clone\n"
    assert done.stderr == f"tidewheel: {said}"


def checkout(folder: Path, program: str | None) -> Path:
    """A folder with the marks of a checkout, and a program in the place of its build's."""
    for name in ("tools", "tidewheel"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "pyproject.toml").touch()
    if program is not None:
        file = folder / PROGRAM
        file.parent.mkdir(parents=True)
        file.write_text(f"#!{sys.executable}\n{program}")
        file.chmod(0o755)
    return folder


@pytest.mark.process
def test_checkout_without_an_environment_is_refused_with_a_remedy(tmp_path: Path) -> None:
    done = bench("fire", "--against", str(checkout(tmp_path, None)))
    assert (done.returncode, done.stdout) == (ExitCode.REFUSED, "")
    said = f"--against: {tmp_path} has no .venv/bin/tidewheel; run make -C {tmp_path} setup\n"
    assert done.stderr == f"tidewheel: {said}"


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.process
def test_two_builds_are_measured_in_turns_on_servers_of_their_own(tmp_path: Path) -> None:
    """The other build is this one, by its own program; `relay` is the shortest scenario."""
    program = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
print(os.getcwd(), "TIDEWHEEL_DATABASE_URL" in os.environ, file=sys.stderr)
from tidewheel.control.cli.main import main
main()
"""
    other = checkout(tmp_path, program)
    done = bench("relay", "--jobs", "60000", "--rounds", "1", "--output", "json", "--against", str(other))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [turn["side"] for turn in found["turns"]] == [THIS, OTHER]
    compared = {each["measure"]: each for each in found["compared"]}
    assert compared["value"]["pairs"] == 1
    assert {"cpu_us_per_run total", "cpu_us_per_run postgres", "wal_bytes_per_run"} <= set(compared)
    for each in compared.values():
        assert each["ratio_min"] <= each["ratio"] <= each["ratio_max"]
    assert f"round 1/1: other\n{tmp_path} False\n" in done.stderr


@pytest.mark.process
def test_interrupted_turn_ends_and_cleans_up_first(tmp_path: Path) -> None:
    """Ctrl-C reaches this process alone; the other one ends by its own handler, not by a kill."""
    program = f"""
import pathlib, signal, sys
folder = pathlib.Path({str(tmp_path)!r})
def end(*_):
    (folder / "cleaned").touch()
    sys.exit(1)
signal.signal(signal.SIGTERM, end)
print("at work", file=sys.stderr, flush=True)
signal.pause()
"""
    other = checkout(tmp_path, program)
    script = (
        "from pathlib import Path; from tools.bench import against; "
        f"against.run_turn([{str(other / PROGRAM)!r}], Path({str(other)!r}))"
    )
    ours = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job's children would ignore it
    try:
        process = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGINT, ours)
    assert process.stderr is not None
    assert process.stderr.readline() == "at work\n"
    os.kill(process.pid, signal.SIGINT)
    process.communicate()
    assert (tmp_path / "cleaned").exists()
