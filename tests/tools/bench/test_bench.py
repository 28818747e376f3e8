"""`tidewheel admin bench` on the tests' stack: a small round of each scenario but `api`."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tidewheel.local.stack import StackInfo
from tools.bench.scenarios.handlers import KINDS
from tools.interpreter import read_build

pytestmark = pytest.mark.process

KEYS = {
    "scenario", "figure", "unit", "median", "min", "max", "cpu_us_per_run", "wal_bytes_per_run", "kafka_bytes_per_run",
    "cpu_us_per_run_by_part", "others_us_per_run", "shared_percent",
}  # fmt: skip
MAIN = "from tidewheel.control.cli.main import main; main()"
SIZES: Mapping[str, Sequence[str]] = {
    "submit": ("--jobs", "2000"),
    "relay": ("--jobs", "40000"),
    "execute": ("--jobs", "40000"),
    "chunks": ("--jobs", "40000"),
    "pipeline": ("--jobs", "2000", "--seconds", "5", "--rate", "50"),
    "latency": ("--rate", "20", "--seconds", "5"),
    "hot-second": ("--jobs", "500"),
    "http": ("--jobs", "500"),
    "handlers": ("--jobs", "300"),
    "limits": ("--jobs", "50", "--minutes", "0.01"),
    "growth": ("--rate", "50", "--minutes", "0.3"),
}
FIGURES: Mapping[str, set[str]] = {
    "submit": {"requests_per_second"},
    "execute": {"runs_per_second", "one_executor_runs_per_second"},
    "chunks": {"chunked_runs_per_second", "chunked_ratio"},
    "pipeline": {"runs_per_second", "steady_start_p99_ms"},
    "latency": {"due_to_start_p99_ms", "request_to_start_p99_ms"},
    "hot-second": {"500_start_p99_ms", "500_after_idling_start_p99_ms"},
    "http": {"calls_per_second", "backlog_calls_per_second"},
    "handlers": {f"{kind}_of_noop_percent" for kind in KINDS},
    "limits": {"one_key_ratio", "rate_ratio", "priority_runs_per_second"},
    "growth": {"runs_per_second", "last_tenth_p99_ms", "most bytes of hot tables"},
}


def bench(*arguments: str, stack: StackInfo | None = None, before: str = "") -> "subprocess.CompletedProcess[str]":
    """Run the command as a process, on a given server or on none."""
    named = {name: value for name, value in os.environ.items() if not name.startswith("TIDEWHEEL_")}
    if stack is not None:
        named |= {
            "TIDEWHEEL_DATABASE_URL": stack.database_url,
            "TIDEWHEEL_KAFKA_PROPERTIES": str(stack.kafka_properties),
        }
    program = [sys.executable, "-c", before + MAIN, "admin", "bench", *arguments]
    return subprocess.run(program, env=named, capture_output=True, text=True, check=False)


def document(done: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert all(set(line) == KEYS for line in found["results"])
    return found


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
def test_rounds_are_measured_and_leave_nothing(given: StackInfo) -> None:
    done = bench("fire", "relay", "--jobs", "40000", "--rounds", "2", "--output", "json", stack=given)
    found = document(done)
    assert {line["scenario"] for line in found["results"]} == {"fire", "relay"}
    for line in found["results"]:
        assert line["min"] <= line["median"] <= line["max"]
        assert line["wal_bytes_per_run"] > 0
        assert line["cpu_us_per_run"]["total"] > 0
    assert len(found["raw"]) == 4
    assert found["interpreter"] == asdict(read_build())
    assert found["settings"]["postgresql.synchronous_commit"] == "on"
    assert found["machine"]["cores"]
    assert found["versions"]["build"]
    assert "[0/4] fire round 1/2: begins\n" in done.stderr


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.parametrize("scenario", FIGURES)
def test_scenario_is_measured(info: StackInfo, scenario: str) -> None:
    found = document(bench(scenario, *SIZES[scenario], "--rounds", "1", "--output", "json", stack=info))
    medians = {line["figure"]: line["median"] for line in found["results"]}
    assert set(medians) >= FIGURES[scenario]
    assert all(medians[name] > 0 for name in FIGURES[scenario])


@pytest.mark.landing
def test_unknown_scenario_is_refused_with_the_nearest_name() -> None:
    done = bench("fier")
    assert (done.returncode, done.stdout) == (5, "")
    assert done.stderr == "tidewheel: scenario: there is no 'fier'; write fire\n"


@pytest.mark.landing
def test_without_the_tools_of_a_checkout_the_command_says_so() -> None:
    done = bench("fire", before="import sys; sys.modules['tools'] = None; ")
    assert (done.returncode, done.stdout) == (1, "")
    said = "the benchmarks are not in the wheel; run `tidewheel admin bench` in a checkout, after `make setup`"
    assert done.stderr == f"tidewheel: {said}\n"
