"""`tidewheel bench` on the tests' stack: small rounds of scenarios, their document and plots."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tidewheel.bench.interpreter import read_build
from tidewheel.bench.registry import EVERYTHING, SCENARIOS
from tidewheel.bench.scenarios.handlers import KINDS
from tidewheel.local.stack import StackInfo

pytestmark = pytest.mark.process

KEYS = {
    "scenario",
    "figure",
    "unit",
    "median",
    "min",
    "max",
    "floor",
    "ratio",
    "cpu_us_per_run",
    "cpu_us_per_run_min",
    "wal_bytes_per_run",
}
PARTS = ("postgres", "python", "wal")  # of a stage
QUICK = "--quick: its scenarios, rounds and sizes are its own; leave out the others, or --quick"
MAIN = "from tidewheel.control.cli.main import main; main()"


def bench(*arguments: str, stack: StackInfo | None = None, before: str = "") -> "subprocess.CompletedProcess[str]":
    """Run the command as a process, on a given server or on none."""
    named = {name: value for name, value in os.environ.items() if not name.startswith("TIDEWHEEL_")}
    if stack is not None:
        named |= {
            "TIDEWHEEL_DATABASE_URL": stack.database_url,
            "TIDEWHEEL_KAFKA_PROPERTIES": str(stack.kafka_properties),
        }
    program = [sys.executable, "-c", before + MAIN, "bench", *arguments]
    return subprocess.run(program, env=named, capture_output=True, text=True, check=False)


def document(done: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert all(set(line) == KEYS for line in found["results"])
    return found


def figures(found: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {line["figure"]: line for line in found["results"]}


@pytest.fixture
def given(info: StackInfo) -> Iterator[StackInfo]:
    """The stack's servers for a role of this test: what it leaves behind there belongs to the role."""
    role = f"bench_{uuid4().hex[:8]}"
    with psycopg.connect(info.database_url, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE ROLE {} SUPERUSER LOGIN PASSWORD 'bench'").format(sql.Identifier(role)))
        yield replace(info, database_url=make_conninfo(info.database_url, user=role, password="bench"))
        left = "SELECT datname FROM pg_database WHERE datdba = %s::regrole"
        assert admin.execute(left, [role]).fetchall() == [], "a given server is left as it was found"
        admin.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))


@pytest.mark.kafka
@pytest.mark.slow
def test_rounds_are_measured_with_their_floors_and_plotted(given: StackInfo, tmp_path: Path) -> None:
    arguments = ("fire", "relay", "--jobs", "40000", "--rounds", "2", "--output", "json", "--plots", str(tmp_path))
    done = bench(*arguments, stack=given)
    found = document(done)
    assert {line["scenario"] for line in found["results"]} == {"fire", "relay"}
    for line in found["results"]:
        assert line["min"] <= line["median"] <= line["max"]
        assert line["ratio"] > 0
        assert line["wal_bytes_per_run"] > 0
        assert 0 < line["cpu_us_per_run_min"]["total"] <= line["cpu_us_per_run"]["total"]
    assert len(found["raw"]) == 4
    assert all(min(each["calibration_ms"]) > 0 for each in found["raw"])
    assert all(each["machine_changed_speed"] in (True, False) for each in found["raw"])
    assert found["interpreter"] == asdict(read_build())
    assert found["settings"]["postgresql.synchronous_commit"] == "on"
    assert found["machine"]["cores"]
    assert found["versions"]["postgresql"]
    assert found["versions"]["build"]
    for name in ("fire", "relay"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert b"<svg" in (tmp_path / f"{name}.svg").read_bytes()
    assert "[0/4] fire round 1/2" in done.stderr


@pytest.mark.kafka
@pytest.mark.slow
def test_an_executor_is_measured(info: StackInfo) -> None:
    line = figures(document(bench("execute", "--jobs", "40000", "--rounds", "1", "--output", "json", stack=info)))
    assert line["runs_per_second"]["median"] > 0
    assert line["runs_per_second"]["ratio"] > 0


@pytest.mark.kafka
@pytest.mark.slow
def test_the_whole_pipeline_is_measured(info: StackInfo) -> None:
    arguments = ("latency", "--rate", "20", "--seconds", "5", "--rounds", "1", "--output", "json")
    found = figures(document(bench(*arguments, stack=info)))
    for name in ("due_to_start", "request_to_start"):
        assert 0 <= found[f"{name}_p50_ms"]["median"] <= found[f"{name}_p99_ms"]["median"]
    assert {"scheduler", "relay", "executor", "total"} <= set(found["due_to_start_p50_ms"]["cpu_us_per_run"])


@pytest.mark.kafka
@pytest.mark.slow
def test_handlers_that_work_are_measured_beside_their_floors(info: StackInfo) -> None:
    arguments = (*KINDS, "--jobs", "600", "--rounds", "1", "--output", "json")
    found = document(bench(*arguments, stack=info))
    lines = {(line["scenario"], line["figure"]): line for line in found["results"]}
    assert {scenario for scenario, _ in lines} == set(KINDS)
    for name in KINDS:
        assert lines[name, "runs_per_second"]["ratio"] > 0
        assert lines[name, "runs_per_second"]["cpu_us_per_run"]["total"] > 0
        assert lines[name, "noop_runs_per_second"]["wal_bytes_per_run"] > 0
        assert lines[name, "of_noop_percent"]["median"] > 0


@pytest.mark.kafka
@pytest.mark.slow
def test_overlap_policies_are_measured_beside_allow_all(info: StackInfo) -> None:
    arguments = ("overlap", "--jobs", "300", "--rate", "100", "--seconds", "3", "--rounds", "1", "--output", "json")
    found = figures(document(bench(*arguments, stack=info)))
    assert 0 < found["meeting_skipped_percent"]["median"] <= 75, "of four runs of a job at least one is executed"
    for overlap in ("skip", "buffer_all"):
        assert found[f"meeting_{overlap}_runs_per_second"]["ratio"] > 0
    difference = found["apart_skip_more_postgres_us"]["median"]
    assert difference == pytest.approx(
        found["apart_skip_postgres_us"]["median"] - found["apart_skip_postgres_us"]["floor"]
    )


@pytest.mark.kafka
@pytest.mark.slow
def test_limits_are_measured_by_pairs_and_by_their_overshoot(info: StackInfo) -> None:
    arguments = ("limits", "--jobs", "50", "--minutes", "0.01", "--seconds", "9", "--rounds", "1", "--output", "json")
    found = figures(document(bench(*arguments, stack=info)))
    for limit in ("one_key", "thousand_keys", "rate", "in_flight", "triggers", "ordering_key", "dedupe", "priority"):
        assert found[f"{limit}_runs_per_second"]["median"] > 0
        assert found[f"{limit}_ratio_least"]["median"] <= found[f"{limit}_ratio"]["median"]
    assert found["fairness_ratio"]["median"] > 0
    assert 0 < found["places_most"]["median"] <= 20
    assert 0 < found["places_most_undisturbed"]["median"] <= 20
    assert found["killed_executors"]["median"] == 1
    assert found["triggers_least_in_a_minute"]["median"] > 0


def test_unknown_scenario_is_refused_with_the_nearest_name() -> None:
    done = bench("fier")
    assert (done.returncode, done.stdout) == (5, "")
    assert done.stderr == "tidewheel: scenario: there is no 'fier'; write fire\n"


def test_help_names_every_scenario() -> None:
    done = " ".join(bench("--help").stdout.split())
    assert all(name in done for name in (*SCENARIOS, EVERYTHING))


def test_missing_scenario_is_refused_with_the_known_names() -> None:
    done = bench()
    assert (done.returncode, done.stdout) == (5, "")
    assert "name some of fire, relay, execute" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--update-baseline"], "--update-baseline: it belongs to --quick; leave it out, or write --quick"),
        (["fire", "--update-baseline"], "--update-baseline: it belongs to --quick; leave it out, or write --quick"),
        (["--quick", "fire"], QUICK),
        (["--quick", "--jobs", "5"], QUICK),
        (["latency", "--rate", "inf"], "--rate: inf has no end; write a number"),
    ],
)
def test_conflicting_options_are_refused(arguments: Sequence[str], said: str) -> None:
    done = bench(*arguments)
    assert (done.returncode, done.stdout, done.stderr) == (5, "", f"tidewheel: {said}\n")


def test_file_as_plot_folder_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "plots"
    file.touch()
    done = bench("fire", "--plots", str(file))
    assert (done.returncode, done.stdout) == (5, "")
    assert done.stderr.endswith("File exists; name a folder, or leave out --plots\n")


def test_plots_without_matplotlib_are_refused_before_any_measurement(tmp_path: Path) -> None:
    done = bench("fire", "--plots", str(tmp_path), before="import sys; sys.modules['matplotlib'] = None; ")
    assert (done.returncode, done.stdout) == (5, "")
    assert (
        done.stderr == "tidewheel: plots: matplotlib is not installed; install tidewheel[bench], or leave out --plots\n"
    )


@pytest.mark.kafka
@pytest.mark.slow
def test_stages_are_measured_without_services(info: StackInfo) -> None:
    found = figures(document(bench("stages", "--jobs", "2000", "--rounds", "1", "--output", "json", stack=info)))
    wanted = {f"{stage}_{part}" for stage in ("calibration", "fire", "claim", "end") for part in PARTS}
    assert set(found) == wanted | {"kept"}
    assert all(line["min"] > 0 for line in found.values())
