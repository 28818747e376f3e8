"""The promises of docs/targets.md for every kind of target: timeout, cancel, crash, restart."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.executor.http_target import pretend_aws
from tests.fixtures.services import Fleet
from tests.system.target_cases import DELIVERIES, EVENTS, Case, Cases, Seen, serving_targets
from tidewheel.jobs.targets import TARGETS

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

PAGE = Path(__file__).parents[2] / "docs/targets.md"
SETTINGS = {
    "SLOTS": "100",
    "THREADS": "20",
    "WORKER_PROCESSES": "4",
    "HTTP_ALLOW_PRIVATE": "true",
    "TARGETS": ",".join(TARGETS),
    "KAFKA_TOPICS": "*",
    "SHELL_ALLOW": "/bin/sh ...",
    "LAMBDA_FUNCTIONS": "held",
    "LEASE": "PT4S",  # only killed executors may miss their lease
    "CANCEL_GRACE": "PT1S",
    "DRAIN_TIMEOUT": "PT1S",
    "SWEEP": "PT0.2S",
}


@pytest.fixture
def cases(fleet: Fleet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Cases]:
    """A fleet without executors, and what its targets call."""
    with serving_targets() as server:
        pretend_aws(monkeypatch, server.url(""))
        made = Cases(fleet, server, tmp_path / "gate")
        made.prepare()
        fleet.start_all("intake", "scheduler", "relay", HTTP_ALLOW_PRIVATE="true")
        yield made


def test_every_target_keeps_its_promises(cases: Cases) -> None:
    fleet, seen = cases.fleet, dict[Case, Seen]()
    first = fleet.start("executor", **SETTINGS)
    cancels = cases.start("cancel")
    cases.wait_settled(cancels)
    timeouts = cases.start("timeout")
    cases.cancel(cancels)
    seen |= cases.ended([*timeouts, *cancels], answer_from=2)

    crashes = cases.start("crash")
    cases.wait_settled(crashes)
    first.kill()
    second = fleet.start("executor", **SETTINGS)
    seen |= cases.ended(crashes, answer_from=1)

    restarts = cases.start("restart")
    cases.wait_settled(restarts)
    third = fleet.start("executor", **SETTINGS)
    fleet.until(lambda: third.started, "the next executor is there")
    second.terminate()
    seen |= cases.ended(restarts, answer_from=1)

    assert cases.overlaps() == ""
    fleet.until(lambda: not cases.left_alive(), "no program and no worker process is left")
    observed = "\n\n".join(table(seen, delivery) for delivery in DELIVERIES)
    assert observed in PAGE.read_text(), f"docs/targets.md is to say:\n{observed}"


def table(seen: dict[Case, Seen], delivery: str) -> str:
    """Return the observations as the page shows them."""
    lines = [f"| {delivery} | {' | '.join(EVENTS)} |", f"|{' --- |' * (1 + len(EVENTS))}"]
    for target in dict.fromkeys(case.target for case in seen):
        told = [str(seen[Case(target, event, delivery)]) for event in EVENTS]
        lines.append(f"| {target} | {' | '.join(told)} |")
    return "\n".join(lines)
