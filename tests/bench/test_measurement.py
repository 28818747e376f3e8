"""The summary of rounds: medians, ranges, ratios taken within a round, costs by process."""

import pytest

from tidewheel.bench.calibration import loop_ms
from tidewheel.bench.measurement import Round, Speed, Spent, changed_speed, least, rate, summarise


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


def test_least_cost_is_beside_the_median() -> None:
    costs = [Spent(1, {"relay": us / 1e6}, wal_bytes=0) for us in (9, 30, 12)]
    [line] = summarise("relay", [Round({"r": rate(1, "messages/s", spent=spent)}) for spent in costs])
    assert line.cpu_us_per_run == pytest.approx({"relay": 12, "total": 12})
    assert line.cpu_us_per_run_min == pytest.approx({"relay": 9, "total": 9})


@pytest.mark.parametrize(
    ("readings", "marks"),
    [
        ([(100, 105), (104, 100), (102, 98)], [False, False, False]),
        ([(100, 105), (100, 120), (102, 98)], [False, True, False]),
        ([(100, 105), (160, 165), (102, 98)], [False, True, False]),
        ([(160, 165), (100, 101), (162, 160)], [True, True, True]),
        ([(100, 165)], [True]),
        ([(100, 101)], [False]),
    ],
    ids=["even", "within a round", "a slow round", "one fast round", "alone", "alone and even"],
)
def test_round_at_another_speed_is_marked(readings: list[tuple[float, float]], marks: list[bool]) -> None:
    assert changed_speed([Speed(*each) for each in readings]) == marks


def test_round_without_a_reading_is_not_marked() -> None:
    assert changed_speed([None, Speed(100, 100)]) == [False, False]


def test_calibration_loop_takes_a_fraction_of_a_second_of_cpu() -> None:
    assert 20 < loop_ms() < 2000
