"""Two builds are compared by the ratios of pairs, also with documents of older builds."""

from collections.abc import Mapping
from statistics import median
from typing import Any

import pytest

from tools.bench.compare import compare


def document(value: float, **more: object) -> Mapping[str, Any]:
    return {"results": [{"scenario": "fire", "figure": "rate", "unit": "occurrences/s", "median": value, **more}]}


def test_ratio_is_taken_within_a_pair() -> None:
    """The machine was half as fast in the second pair: medians alone would show 1.1 to 0.6."""
    pairs = [(document(110), document(100)), (document(55), document(50)), (document(120), document(100))]
    [compared] = compare(pairs)
    assert (compared.measure, compared.new, compared.old) == (("fire", "rate", "value"), 110, 100)
    assert compared.ratios == pytest.approx([1.1, 1.1, 1.2])


def test_cost_and_wal_are_compared_where_both_have_them() -> None:
    new = document(100, cpu_us_per_run={"relay": 6.0, "total": 30.0}, wal_bytes_per_run=3000.0, others_us_per_run=9.0)
    old = document(90, cpu_us_per_run={"total": 60.0}, wal_bytes_per_run=4000.0)
    found = compare([(new, old), (document(100), document(100))])
    assert {each.measure[2]: (median(each.ratios), len(each.ratios)) for each in found} == {
        "value": (pytest.approx((1 / 0.9 + 1) / 2), 2),
        "CPU µs a run: total": (0.5, 1),
        "bytes of WAL a run": (0.75, 1),
    }


def test_broker_that_one_build_alone_sees_is_no_part_of_the_total() -> None:
    new = document(100, cpu_us_per_run={"relay": 10.0, "broker": 20.0, "total": 30.0})
    old = document(100, cpu_us_per_run={"relay": 20.0, "total": 20.0})
    found = {each.measure[2]: each.ratios for each in compare([(new, old)])}
    assert found["CPU µs a run: total"] == [0.5]
    both = {each.measure[2]: each.ratios for each in compare([(new, new)])}
    assert both["CPU µs a run: broker"] == both["CPU µs a run: total"] == [1.0]


def test_pair_that_shared_the_machine_is_left_out() -> None:
    pairs = [(document(110), document(100)), (document(20, shared_percent=30.0), document(100))]
    assert compare(pairs)[0].ratios == [1.1]
