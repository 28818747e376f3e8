"""A round that shared the machine gives no figure, and a figure of another hot path is marked."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tools.bench.figures import hot_path, keep, page
from tools.bench.measurement import Figure, Round, Spent, summarise

PAGE = "before\n<!-- figures: generated -->\nold\n<!-- end of figures -->\nafter\n"


def measured(value: float, *, others: float = 0.0, stolen: float = 0.0) -> Round:
    spent = Spent(
        runs=100,
        cpu_seconds={"relay": 1.0},
        wal_bytes=0,
        others_seconds=others,
        stolen_seconds=stolen,
        machine_seconds=20.0,
    )
    return Round({"rate": Figure(value, "runs/s", spent), "p99": Figure(value, "ms")})


def document(value: float, *, shared: float = 0.0, scenario: str = "pipeline") -> Mapping[str, Any]:
    line = {
        "scenario": scenario, "figure": "runs_per_second", "unit": "runs/s",
        "median": value, "min": value, "max": value,
        "cpu_us_per_run": {"relay": 20.0, "total": 200.0}, "wal_bytes_per_run": 3000.0, "shared_percent": shared,
        "cpu_us_per_run_by_part": {"relay: main": 15.0},
    }  # fmt: skip
    return {
        "results": [line],
        "versions": {"build": "abc"},
        "date": "2026-11-29",
        "hot_path": "now",
        "options": {"seconds": 20.0},
    }


@pytest.mark.parametrize("taken", [{"others": 1.1}, {"stolen": 1.1}, {"others": 0.6, "stolen": 0.5}])
def test_round_that_shared_the_machine_is_not_used(taken: Mapping[str, float]) -> None:
    lines = summarise("pipeline", [measured(100), measured(50, **taken), measured(110)])
    assert [(line.median, line.min, line.shared_percent) for line in lines] == [(105, 100, 0.0), (105, 100, 0.0)]


def test_rounds_that_all_shared_the_machine_are_marked_and_not_kept() -> None:
    lines = summarise("pipeline", [measured(100, others=2.0), measured(50, others=4.0)])
    assert [(line.median, line.shared_percent) for line in lines] == [(75, pytest.approx(20)), (75, pytest.approx(20))]
    kept = keep([], document(9000))
    assert keep(kept, document(5000, shared=20.0)) == kept


def test_new_figure_takes_the_place_of_the_one_before() -> None:
    kept = keep(keep(keep([], document(9000)), document(70, scenario="growth")), document(9500))
    assert {line["scenario"]: line["median"] for line in kept} == {"growth": 70, "pipeline": 9500}


def test_figure_of_another_hot_path_is_marked() -> None:
    kept = keep([], document(9000))
    fresh, older = page(PAGE, kept, "now"), page(PAGE, kept, "changed")
    assert "9,000" in fresh
    assert "`--seconds 20`" in fresh
    assert "older build" not in fresh
    assert "older build" in older
    assert page(older, kept, "now") == fresh
    assert fresh.startswith("before\n")
    assert fresh.endswith("after\n")


@pytest.mark.parametrize(
    ("name", "text", "changes"),
    [
        ("loop.py", '"""Other words."""\n\n\ndef step():\n    # a note\n    return 1\n', False),
        ("loop.py", "def step():\n    return 2\n", True),
        ("queries.sql", "SELECT 1  -- another\nFROM outbox", False),
        ("queries.sql", "SELECT 2 FROM outbox", True),
        ("README.md", "other words", False),
    ],
)
def test_words_are_no_part_of_the_hot_path(tmp_path: Path, name: str, text: str, *, changes: bool) -> None:
    relay = tmp_path / "relay"
    relay.mkdir()
    (relay / "loop.py").write_text('"""Words."""\ndef step():\n    return 1\n')
    (relay / "queries.sql").write_text("SELECT 1 -- one\nFROM outbox")
    before = hot_path(tmp_path)
    (relay / name).write_text(text)
    assert (hot_path(tmp_path) != before) == changes
