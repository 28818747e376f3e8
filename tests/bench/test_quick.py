"""`--quick`: a fallen ratio is reported, an unchanged one is not."""

from pathlib import Path

import pytest

from tidewheel.bench.command import compare, read_baseline, table
from tidewheel.bench.measurement import Round, rate, summarise
from tidewheel.bench.scenarios.http import IN_FLIGHT
from tidewheel.errors import InvalidInput

LINES = summarise("relay", [Round({"messages_per_second": rate(30, "messages/s", floor=100)})])


@pytest.mark.parametrize(("stored", "holds"), [(0.3, True), (0.4, True), (0.45, False)])
def test_ratio_below_seven_tenths_fails(stored: float, holds: bool) -> None:  # noqa: FBT001 - a parameter
    [compared] = compare(LINES, {"relay.messages_per_second": stored})
    assert compared.holds is holds
    assert ("below 70%" in table([compared])[-1]) is not holds


def test_ratio_without_a_stored_one_passes() -> None:
    [compared] = compare(LINES, {"relay.another": 0.9})
    assert compared.holds


def test_missing_stored_ratios_are_reported_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="--update-baseline"):
        read_baseline(tmp_path / "none.json")


def test_stored_ratios_equal_the_measured_set() -> None:
    assert set(read_baseline()) == {
        "fire.occurrences_per_second",
        "fire.one_scheduler_occurrences_per_second",
        "relay.messages_per_second",
        "execute.runs_per_second",
        "execute.one_executor_runs_per_second",
        "pipeline.runs_per_second",
        "latency.due_to_start_p50_ms",
        "latency.due_to_start_p99_ms",
        "latency.request_to_start_p50_ms",
        "latency.request_to_start_p99_ms",
        *(f"http.call_{in_flight}_us" for in_flight in IN_FLIGHT),
        *(f"http.calls_{in_flight}_per_second" for in_flight in IN_FLIGHT),
        "http.calls_per_second",
        "http.backlog_calls_per_second",
    }
