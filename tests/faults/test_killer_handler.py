"""A handler kills its executor: other attempts are not counted, and after two losses it is isolated."""

from pathlib import Path
from uuid import UUID

import pytest

from tests.fixtures.services import HANDLERS, SHORT_LEASE, Fleet, Service
from tidewheel.runs import AttemptOutcome, RunState

pytestmark = [pytest.mark.postgres, pytest.mark.kafka, pytest.mark.slow]

KILLERS = f"{HANDLERS},tests.faults.killer_handlers"
DIES = 70


def executor(fleet: Fleet) -> Service:
    return fleet.start("executor", HANDLERS=KILLERS, LEASE=SHORT_LEASE)


def begun(fleet: Fleet, run_id: UUID) -> bool:
    return str(run_id) in (fleet.effects.read_text() if fleet.effects.exists() else "")


def wait_dead(fleet: Fleet, victim: Service) -> None:
    victim.meant_to_die = True
    fleet.until(lambda: not victim.alive, "it has died")
    assert victim.process.exitcode == DIES


def test_killer_handler_is_isolated_after_two_losses(fleet: Fleet, tmp_path: Path) -> None:
    database, gate = fleet.database, tmp_path / "gate"
    database.submit("neighbour", target="gated", payload=str(gate), retry={"max_attempts": 1})
    database.submit("killer", target="killer", retry={"max_attempts": 2, "initial": "100ms"})
    first = executor(fleet)
    neighbour = database.trigger("neighbour")
    fleet.until(lambda: begun(fleet, neighbour), "the neighbour runs")
    killer = database.trigger("killer")
    wait_dead(fleet, first)
    wait_dead(fleet, executor(fleet))
    last = executor(fleet)
    fleet.until(lambda: database.final_state(killer)[0] == RunState.FAILED, "the killer has failed")
    lost, failed = AttemptOutcome.LOST, AttemptOutcome.FAILED
    assert [outcome for _, outcome in database.attempts(killer)] == [lost, lost, failed, failed]
    [(error_type, message)] = database.rows(
        "SELECT error_type, error_message FROM ended_attempts WHERE run_id = %s AND attempt = 4", [killer]
    )
    assert (error_type, f"exit code {DIES}" in message) == ("ProcessDied", True)
    [(output,)] = database.rows("SELECT output FROM attempt_outputs WHERE run_id = %s AND attempt = 4", [killer])
    assert output == b"attempt 4 ends the process\n"
    fleet.until(lambda: database.open_run(neighbour).state == RunState.RUNNING, "the neighbour runs again")
    assert database.open_run(neighbour).failed_attempts == 0
    gate.touch()
    fleet.until(lambda: database.final_state(neighbour)[0] == RunState.SUCCEEDED, "the neighbour succeeds")
    *before, (_, end) = database.attempts(neighbour)
    assert ({outcome for _, outcome in before}, end) == ({lost}, AttemptOutcome.SUCCEEDED)
    assert last.alive
