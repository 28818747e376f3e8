"""The work of a fall-back is counted beside the usual path's, and becomes a finding."""

import logging
import re

import pytest

from tests.strict_types import ROOT
from tidewheel.process.fallbacks import FALLBACKS, WINDOW_SECONDS, Share, Step, Work

SOURCES = [
    path.read_text(encoding="utf-8")
    for folder in ("executor", "intake", "relay", "scheduler")
    for path in (ROOT / folder).rglob("*.py")
]


@pytest.mark.parametrize(
    ("usual", "fallback", "fault"),
    [
        (40, 9, False),
        (40, 10, True),
        (41, 10, False),
        (4000, 999, False),
        (4000, 1000, True),
        (0, 2, False),
        (0, 3, True),
    ],
)
def test_fallback_that_does_a_fifth_or_all_of_the_work_is_a_fault(usual: int, fallback: int, *, fault: bool) -> None:
    assert Share(Step.DELIVER, "default", usual, fallback).is_fault is fault


def test_work_is_compared_within_the_window_alone() -> None:
    work = Work()
    work.count(Step.READ, 1000)
    work.count(Step.READ, 500, fallback=True)
    assert work.pass_on(0.0) == [], "no window has passed"
    work.count(Step.READ, 7)
    work.count(Step.DELIVER, 4, fallback=True, queue="pdf")
    assert work.pass_on(WINDOW_SECONDS) == [Share(Step.READ, "", 7, 0), Share(Step.DELIVER, "pdf", 0, 4)]
    assert work.pass_on(2 * WINDOW_SECONDS) == []


def test_fault_is_logged_when_it_begins_and_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    work = Work()
    with caplog.at_level(logging.INFO, "tidewheel.fallbacks"):
        for second in range(0, 121, 5):
            work.count(Step.DELIVER, 5, fallback=second < 60, queue="pdf")
            work.pass_on(second)
    began, ended = (record.getMessage() for record in caplog.records)
    fault = "queue pdf: the sweep starts runs whose messages did not arrive"
    assert began.startswith(f"{fault}, 55 of 60 within a minute; ")
    assert "`tidewheel admin topics apply --queues pdf`" in began
    assert ended == f"no longer: {fault}"


def test_each_step_counts_the_work_of_both_paths() -> None:
    """A new step fails here until its fall-back has a remedy, and both of its paths are counted."""
    calls = [call for source in SOURCES for call in re.findall(r"work\.count\(([^\n]*)\)\n", source)]
    counted = {(step, "fallback=" in call) for call in calls for step in Step if f"Step.{step.name}," in call}
    assert counted == {(step, path) for step in Step for path in (False, True)} - {(Step.APPLY, False)}
    assert set(FALLBACKS) == set(Step)
