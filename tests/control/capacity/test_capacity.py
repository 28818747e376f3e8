"""`tidewheel capacity`: more load needs no less, and predictions hold for other measured loads."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.control.cli.command import NO_DATABASE, Done, tidewheel
from tests.strict_types import ROOT
from tidewheel.control.capacity.costs import costs_of, read_document
from tidewheel.control.capacity.curve import Curve
from tidewheel.control.capacity.hot_second import Fleet, simulate
from tidewheel.control.capacity.model import Load, plan
from tidewheel.process.database_connections import CONNECTIONS, Connections

COSTS = costs_of(read_document(None))
GROWING = ("jobs", "timed", "triggers", "seconds", "payload", "result", "days", "hot", "keyed")

loads = st.builds(
    Load,
    jobs=st.floats(0, 1e8),
    timed=st.floats(0, 1e5),
    triggers=st.floats(0.1, 1e5),
    seconds=st.floats(0, 60),
    payload=st.floats(0, 1e5),
    result=st.floats(0, 1e5),
    days=st.floats(1, 365),
    hot=st.floats(0, 0.5),
    keyed=st.floats(0, 0.5),
)


def capacity(*arguments: object) -> Done:
    return tidewheel(NO_DATABASE, "capacity", *arguments)


@given(load=loads, name=st.sampled_from(GROWING), factor=st.floats(1, 2))
def test_more_load_needs_no_less(load: Load, name: str, factor: float) -> None:
    more = replace(load, **{name: getattr(load, name) * factor})
    least, most = plan(load, COSTS), plan(more, COSTS)
    for before, after in zip(least.needs, most.needs, strict=True):
        assert before.name == after.name
        if "cores" in before.name:
            continue  # a service whose batches grow faster than the load uses less
        assert after.value >= before.value * (1 - 1e-9), (name, before, after)


points_of = st.dictionaries(st.floats(1, 5000), st.floats(0, 1), min_size=1).map(lambda found: sorted(found.items()))


@given(points=points_of, full=st.floats(0, 1e-3), rate=st.floats(0, 1e5), processes=st.integers(1, 64))
def test_curve_has_its_points_and_lies_between_them(
    points: list[tuple[float, float]], full: float, rate: float, processes: int
) -> None:
    curve = Curve(0.01, tuple(points), full)
    for each, use in points:
        assert curve.at(each) == pytest.approx(0.01 + use)
    assert curve.at(rate * processes, processes) == pytest.approx(processes * curve.at(rate))
    below = [use for each, use in points if each <= rate] or [0.0]
    above = [use for each, use in points if each >= rate] or [max(points[-1][1], curve.least * rate)]
    low, high = sorted((below[-1], above[0]))
    assert 0.01 + low - 1e-9 <= curve.at(rate) <= 0.01 + high + 1e-9
    assert curve.at(points[-1][0] + rate) >= curve.at(points[-1][0]) * (1 - 1e-9)


@given(runs=st.integers(1, 20_000), executors=st.integers(1, 8), shared=st.sampled_from([None, 2]))
def test_every_run_of_a_hot_second_starts_once_and_none_early(runs: int, executors: int, shared: int | None) -> None:
    late = simulate(runs, Fleet(executors=executors, shared=shared), COSTS)
    assert 0 <= late.p50 <= late.p99 <= late.last
    assert late.last <= simulate(runs * 2, Fleet(executors=executors, shared=shared), COSTS).last
    slow = simulate(runs, Fleet(executors=executors, shared=shared, seconds=1.0, slots=100), COSTS)
    assert slow.last >= max(late.last, (runs - 1) // (executors * 100)), "a run waits for a slot"


def test_text_and_json_have_the_same_numbers_with_their_reasons() -> None:
    load = ("--jobs", "100M", "--every", "1h", "--triggers", "10k/s", "--duration", "2s", "--hot", "30%")
    document = capacity(*load, "-o", "json").json
    needs = {each["name"]: each for each in document["needs"]}
    assert needs["runs"]["value"] == pytest.approx(1e8 / 3600 + 10_000)
    assert needs["slots in use"]["value"] > needs["runs at the peak"]["value"] * 2
    assert all(each["reason"] for each in document["needs"])
    assert min(each for each in document["limits"].values() if each is not None) < 1, "one PostgreSQL is not enough"
    done = capacity(*load)
    assert (done.code, done.err) == (0, "")
    assert all(name in done.out for name in needs)


def test_hot_second_is_simulated_for_the_planned_fleet_and_for_one_machine() -> None:
    planned = capacity(
        "--jobs", "1M", "--every", "1m", "--hot", "30%", "--within", "10s", "--hot-second", "-o", "json"
    ).json
    assert planned["runs"] == 300_000
    assert planned["lateness_seconds"]["last"] < 20, "the plan's own fleet starts them within twice the time"
    one = capacity("--burst", "10k", "--shared", "2", "--duration", "0s").lines
    assert one[0].split() == ["runs", "due", "at", "once", "10,000"]


def test_predictions_hold_for_measured_loads_of_other_rates() -> None:
    found = capacity("--check", "-o", "json")
    compared: list[dict[str, Any]] = json.loads(found.out)["compared"]
    exact = {"WAL", "Kafka", "disk of a run", "disk of jobs", "connections"}
    shown = [each for each in compared if each["figure"] in exact]
    assert {each["load"] for each in shown} == {
        "60 runs/s",
        "300 runs/s",
        "2,000 runs/s",
        "10,000 jobs",
        "100,000 jobs",
    }
    assert all(abs(each["error"]) <= 0.2 for each in shown), shown
    failed = [each for each in compared if abs(each["error"]) > 0.2]
    assert found.code == (1 if failed else 0), "CPU of a shared machine may be further off"


def test_connections_are_those_of_the_table_of_processes() -> None:
    """The page and the plan have the declared ones, and no process was measured with more."""
    page = (ROOT / "docs" / "operations.md").read_text()
    rows = re.findall(
        r"^\| `tidewheel (\w+)` \|[^|]*\| (\d+)(?:, and (\d+) for each further queue)? \|", page, re.MULTILINE
    )
    told = {name: Connections(int(most), int(more or 0)) for name, most, more in rows}
    assert told == CONNECTIONS
    assert all(COSTS.connections[each] <= CONNECTIONS[each].most for each in COSTS.connections)
    needs = {each.name: each for each in plan(Load(jobs=0, timed=0, triggers=1), COSTS).needs}
    assert needs["connections at most"].value == 2 * sum(each.most for each in CONNECTIONS.values())


@pytest.mark.parametrize(
    ("arguments", "refusal"),
    [
        (("--jobs", "many"), "--jobs: 'many' is not a number"),
        (("--triggers", "5/week"), "--triggers: 'week' is no span"),
        (("--triggers", "5", "--hot", "130%"), "--hot: 130% is more than all"),
        ((), "--jobs: there is no run"),
        (("--triggers", "1/s", "--hot-second"), "--hot: no run is due at second 0"),
        (("--triggers", "1/s", "--costs", "/nowhere"), "--costs: there is no file"),
    ],
)
def test_bad_input_is_refused_with_its_field(arguments: tuple[str, ...], refusal: str) -> None:
    [line] = capacity(*arguments).refusals
    assert line.startswith(refusal)


@pytest.mark.parametrize("option", ["--within", "--checkpoint"])
def test_too_short_a_time_is_refused(option: str) -> None:
    [refusal] = capacity("--triggers", "10/s", option, "0s").refusals
    assert refusal.startswith(f"{option}: 0s is too short")


def test_costs_of_another_machine_are_read_from_the_benchmarks_document(tmp_path: Path) -> None:
    document = dict(read_document(None))
    slower = [{**line, "median": line["median"] * 2} for line in document["results"]]  # type: ignore[attr-defined, union-attr]
    file = tmp_path / "costs.json"
    file.write_text(json.dumps({**document, "results": slower}))
    load = ("--triggers", "1k/s", "-o", "json")
    packaged, own = capacity(*load).json, capacity(*load, "--costs", file).json
    name = "PostgreSQL's cores in use"
    assert _need(own, name) > _need(packaged, name)
    file.write_text('{"results": []}')
    [line] = capacity("--triggers", "1/s", "--costs", file).refusals
    assert line.startswith("--costs: the document has no idle_wal")


def _need(document: Any, name: str) -> float:  # noqa: ANN401 - as json.loads
    return float(next(each["value"] for each in document["needs"] if each["name"] == name))
