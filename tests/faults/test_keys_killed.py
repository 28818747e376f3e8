"""Executors that hold places of keys are killed under load: no run too many, nothing stays behind.

The handlers measure: one that finds no free place records it. TIDEWHEEL_TEST_KEYS_SECONDS lengthens the load;
the file measured.txt then has the figures.
"""

import json
import os
from bisect import bisect_left
from collections.abc import Sequence
from typing import LiteralString

import pytest

from tests.fixtures.oracle import Oracle
from tests.fixtures.services import HANDLERS, Fleet, Service

pytestmark = [pytest.mark.postgres, pytest.mark.kafka, pytest.mark.slow]

SECONDS = float(os.environ.get("TIDEWHEEL_TEST_KEYS_SECONDS", "10"))
PLACES = 3
A_SECOND = 20  # starts of the key with a rate
HOLDS = 0.05  # seconds that a run holds its place
EXECUTORS = 3
_BUNCHED = 1.0  # seconds by which promoted runs may come late without delaying those after them, on a busy machine
LEFT: LiteralString = "SELECT count(*) FROM run_keys WHERE running <> 0 OR unclaimed <> 0 OR has_waiters"


def executor(fleet: Fleet) -> Service:
    # Long enough that no executor is taken for lost while it lives: it would run beside its successor.
    return fleet.start("executor", HANDLERS=f"{HANDLERS},tests.faults.crowd_handlers", LEASE="PT4S")


def test_killed_executors_leave_no_place_and_admit_no_run_too_many(fleet: Fleet, oracle: Oracle) -> None:
    database = fleet.database
    payload = {"folder": str(fleet.folder), "places": PLACES, "seconds": HOLDS}
    again = {"retry": {"max_attempts": 20, "initial": "10ms"}}
    database.submit("crowd", target="crowd", payload=payload, concurrency_key={"key": "a", "at_once": PLACES}, **again)
    database.submit("paced", target="paced", concurrency_key={"key": "b", "rate": f"{A_SECOND}/s"}, **again)
    crowded = [database.trigger("crowd") for _ in range(int(SECONDS * PLACES / HOLDS / 4))]
    paced = [database.trigger("paced") for _ in range(int(SECONDS * A_SECOND))]
    fleet.start_all("scheduler", "relay")
    executors = [executor(fleet) for _ in range(EXECUTORS)]
    fleet.wait_started()
    began = database.now()
    for kill in range(1, int(SECONDS / 3)):
        due = began.timestamp() + 3 * kill
        fleet.until(lambda due=due: database.now().timestamp() > due, "the next kill is due")
        executors.pop(0).kill()
        executors.append(executor(fleet))
    fleet.until(lambda: database.count("job_runs") == 0, "no run waits for ever", seconds=SECONDS + 90)
    assert database.value(LEFT) == 0
    fleet.kill()
    effects = [json.loads(line) for line in fleet.effects.read_text().splitlines()]
    held = [effect for effect in effects if effect["job_key"] == "crowd"]
    assert {effect["run_id"] for effect in held} == {str(run) for run in crowded}
    assert sum(effect["is_over"] for effect in held) == 0
    starts = [effect["at"] for effect in effects if effect["job_key"] == "paced"]
    assert len(starts) >= len(paced)
    most = most_in_a_window(starts, SECONDS)
    (fleet.folder / "measured.txt").write_text(
        f"{len(held)} on {PLACES} places, {most} in {SECONDS:g} s at {A_SECOND}/s"
    )
    assert most <= SECONDS * A_SECOND * 1.01 + 1 + A_SECOND * _BUNCHED


def most_in_a_window(times: Sequence[float], seconds: float) -> int:
    """Return the most of these instants in any window of so many seconds; 0 of none."""
    ordered = sorted(times)
    return max((bisect_left(ordered, at + seconds) - number for number, at in enumerate(ordered)), default=0)
