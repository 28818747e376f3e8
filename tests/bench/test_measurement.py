"""The summary of rounds: medians, ranges, ratios taken within a round, costs by process."""

import pytest

from tidewheel.bench.measurement import Round, Spent, least, rate, summarise


def test_a_ratio_is_taken_within_its_round() -> None:
    """Median over median would be 1; no round was that near to its own floor."""
    rounds = [Round({"r": rate(value, "runs/s", floor=floor)}) for value, floor in ((10, 40), (20, 20), (40, 160))]
    [line] = summarise("fire", rounds)
    assert (line.median, line.min, line.max, line.floor, line.ratio) == (20, 10, 40, 40, 0.25)


def test_ratio_of_a_time_is_its_distance_to_the_floor() -> None:
    assert least(20, "ms", floor=5).ratio == 0.25
    assert rate(5, "runs/s", floor=20).ratio == 0.25
    assert rate(5, "runs/s").ratio is None


def test_costs_are_per_run_and_by_process() -> None:
    spent = Spent(1000, {"relay": 0.5, "postgres": 1.5}, wal_bytes=20_000)
    [line] = summarise("relay", [Round({"r": rate(1, "messages/s", spent=spent)})])
    assert line.cpu_us_per_run == pytest.approx({"relay": 500, "postgres": 1500, "total": 2000})
    assert line.wal_bytes_per_run == 20


def test_figure_missing_in_one_round_comes_from_the_others() -> None:
    rounds = [Round({"a": rate(1, "")}), Round({"a": rate(3, ""), "steady": rate(7, "")})]
    assert [(line.figure, line.median) for line in summarise("pipeline", rounds)] == [("a", 2), ("steady", 7)]
