"""Executors that are killed within an attempt: nothing is repeated that must not be."""

import json
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, LiteralString
from uuid import UUID

import pytest

from tests.executor.own_transactions import MAKE_EFFECTS
from tests.fixtures.oracle import Oracle
from tests.fixtures.services import HANDLERS, ROLES, SHORT_LEASE, Fleet, Role, Service
from tidewheel.runs import AttemptOutcome, RunState
from tidewheel.schemas.generated.records import RunStatus


@pytest.mark.postgres
@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.parametrize("target", ["steps", "steps-sync", "steps-process"])
def test_finished_steps_are_not_repeated_after_a_kill(fleet: Fleet, target: str) -> None:
    fleet.start_all("intake", "scheduler", "relay")
    fleet.ask({"type": "job.submit", "job": {"key": "job", "schedule": "manual", "target": target}})
    fleet.ask({"type": "job.trigger", "key": "job"})
    fleet.flush()
    doomed = fleet.start("executor", LEASE=SHORT_LEASE)
    if target != "steps-process":  # then its worker process alone is killed
        doomed.meant_to_die = True
        doomed.wait_killed()
        fleet.start("executor", LEASE=SHORT_LEASE)
    succeeded = "SELECT count(*) FROM runs WHERE state = %s"
    fleet.until(lambda: fleet.database.value(succeeded, [RunState.SUCCEEDED]) == 1, "the run has succeeded")
    lines = [json.loads(line) for line in fleet.effects.read_text().splitlines()]
    assert [(line["step"], line["attempt"]) for line in lines] == [(0, 1), (1, 1), (2, 2)]
    assert fleet.database.value("SELECT result FROM attempt_outputs WHERE result IS NOT NULL") == b"[1,11,22]"
    fleet.kill()


CHUNKS = {"HANDLERS": f"{HANDLERS},tests.faults.chunk_handlers", "LEASE": SHORT_LEASE}


@pytest.mark.postgres
@pytest.mark.kafka
@pytest.mark.slow
def test_runs_of_a_killed_call_run_again_alone_once_each(fleet: Fleet) -> None:
    fleet.start_all("intake", "scheduler", "relay")
    fleet.ask({"type": "job.submit", "job": {"key": "job", "schedule": "manual", "target": "chunk"}})
    for _ in range(3):
        fleet.ask({"type": "job.trigger", "key": "job"})
    fleet.flush()
    doomed = fleet.start("executor", **CHUNKS)
    doomed.meant_to_die = True
    doomed.wait_killed()
    fleet.start("executor", **CHUNKS)
    succeeded = "SELECT count(*) FROM runs WHERE state = %s AND attempt = 2"
    fleet.until(lambda: fleet.database.value(succeeded, [RunState.SUCCEEDED]) == 3, "the runs have succeeded")
    lines = [json.loads(line) for line in fleet.effects.read_text().splitlines()]
    assert sorted((line["attempt"], line["together"]) for line in lines) == [(1, 3)] * 3 + [(2, 1)] * 3
    assert len({line["run_id"] for line in lines}) == 3
    assert fleet.database.rows("SELECT DISTINCT outcome FROM ended_attempts WHERE attempt = 1") == [("lost",)]
    fleet.kill()


# Where the executor is killed, how the run ends then, and how often it took effect.
POINTS: dict[str, tuple[RunStatus, int]] = {
    "claim.before_commit": (RunStatus.SUCCEEDED, 1),  # nothing was claimed
    "claim.after_commit": (RunStatus.FAILED, 0),  # claimed: it is unknown whether it had started
    "attempt.before_effect": (RunStatus.FAILED, 0),
    "attempt.after_effect": (RunStatus.FAILED, 1),
    "completion.before_commit": (RunStatus.FAILED, 1),
    "completion.after_commit": (RunStatus.SUCCEEDED, 1),
}


@pytest.mark.postgres
@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_at_most_once_run_never_starts_twice_when_killed(point: str, fleet: Fleet, oracle: Oracle) -> None:
    status, effects = POINTS[point]
    job = {"key": "once", "schedule": "manual", "target": "note", "delivery": "at_most_once"}
    fleet.ask({"type": "job.submit", "job": job})
    request_id = fleet.ask({"type": "job.trigger", "key": "once"})
    fleet.flush()
    fleet.start_all("intake", "relay")
    armed = fleet.start("executor", failpoint=f"{point}:exit", LEASE=SHORT_LEASE)
    armed.wait_killed()
    fleet.start("executor", LEASE=SHORT_LEASE)
    fleet.wait_started()
    oracle.wait_answered()
    run_id = oracle.replies()[request_id].run_id or ""
    oracle.wait_settled()
    oracle.reader.read_to_end()
    event = oracle.completed()[run_id]
    assert (event.status, event.attempt) == (status, 1)
    assert len(oracle.effects()) == effects
    if status is RunStatus.FAILED:
        assert event.error is not None
        assert (event.reason, event.error.type) == ("unknown_outcome", "unknown_outcome")
        assert [letter.run_id for letter in oracle.letters()] == [run_id]


OWN = {"HANDLERS": "tests.executor.own_handlers"}
COMPLETED = 6
COMPLETING = ("complete_in.held", "complete_in.written", "attempt.after_effect", "completion.before_commit")


def submit(fleet: Fleet, handler: str) -> None:
    fleet.database.execute(MAKE_EFFECTS)
    payload = {"url": fleet.database.url, "do": "nothing"}
    job: dict[str, Any] = {"key": "own", "schedule": "manual", "target": handler, "payload": payload}
    fleet.ask({"type": "job.submit", "job": job | {"overlap": "buffer_all"}})
    for _ in range(COMPLETED):
        fleet.ask({"type": "job.trigger", "key": "own"})
    fleet.flush()


def finish(fleet: Fleet) -> None:
    """Wait until all runs are over; each has had its effect once."""
    succeeded = "SELECT count(*) FROM runs WHERE state = %s"
    fleet.until(lambda: fleet.database.value(succeeded, [RunState.SUCCEEDED]) == COMPLETED, "all runs have succeeded")
    once = "SELECT count(*), count(DISTINCT run_id) FROM effects"
    assert fleet.database.rows(once) == [(COMPLETED, COMPLETED)]
    same = "SELECT count(*) FROM effects AS e JOIN runs AS r ON r.run_id = e.run_id AND r.attempt = e.attempt"
    assert fleet.database.value(same) == COMPLETED
    fleet.until(lambda: fleet.database.count("deferred_effects") == 0, "what they set off is done")


@pytest.mark.postgres
@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.parametrize("point", COMPLETING)
def test_own_transaction_has_one_effect_when_killed(fleet: Fleet, point: str) -> None:
    """Each of the runs of one job waits until the run before it is no longer active."""
    fleet.start_all("intake", "scheduler", "relay")
    submit(fleet, "own.thread")
    doomed = fleet.start("executor", failpoint=f"{point}:exit:2", **OWN)
    doomed.wait_killed()
    fleet.start("executor", **OWN)
    finish(fleet)
    fleet.kill()


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


@pytest.mark.postgres
@pytest.mark.kafka
@pytest.mark.slow
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


FAILURES = 5
ONCE = {"max_attempts": 1}
# Before and after the end is committed, and before and after the relay knows that the request has arrived.
TRIGGERING: tuple[tuple[Role, str], ...] = (
    ("executor", "completion.before_commit"),
    ("executor", "completion.after_commit"),
    ("relay", "relay.produced"),
    ("relay", "relay.acknowledged"),
)


@pytest.mark.postgres
@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.parametrize(("role", "point"), TRIGGERING)
def test_each_failure_triggers_one_run(role: Role, point: str, fleet: Fleet, oracle: Oracle) -> None:
    fleet.ask({"type": "job.submit", "job": {"key": "alert", "schedule": "manual", "target": "note"}})
    doomed = {"key": "doomed", "schedule": "manual", "target": "lost-cause", "on_failure": "alert", "retry": ONCE}
    fleet.ask({"type": "job.submit", "job": doomed})
    for _ in range(FAILURES):
        fleet.ask({"type": "job.trigger", "key": "doomed"})
    fleet.flush()
    others: list[Role] = [other for other in ROLES if other != role]
    fleet.start_all(*others)
    armed = fleet.start(role, failpoint=f"{point}:exit")
    armed.wait_killed()
    fleet.start(role)
    oracle.wait_answered()
    fleet.until(lambda: len(alerts(oracle)) >= FAILURES, "each failure has its run")
    oracle.wait_settled()
    oracle.reader.read_to_end()
    fleet.promised |= set(alerts(oracle))
    fleet.stop()
    oracle.check(failures=("doomed",))
    failed = {run for run, event in oracle.completed().items() if event.job_key == "doomed"}
    assert len(failed) == FAILURES
    assert sorted(alerts(oracle).values()) == sorted(failed)


def alerts(oracle: Oracle) -> dict[str, str]:
    """The runs of the job that was named, each with the run whose failure it is about."""
    oracle.look()
    found: dict[str, str] = {}
    for run_id, event in oracle.completed().items():
        if event.job_key == "alert":
            about = json.loads(event.result or b"null")
            assert event.labels == {"tidewheel.on_failure_of": about["run_id"]}
            found[run_id] = about["run_id"]
    return found


JOBS = ("first", "second")
EACH = 6
SPANS: LiteralString = """
SELECT a.started_at, a.finished_at
  FROM ended_attempts AS a JOIN runs AS r USING (run_id) JOIN jobs AS j USING (job_id)
 WHERE j.key = %s
 ORDER BY a.started_at
"""
OVERLAPPING = {
    "claim.before_commit": 3,
    "claim.after_commit": 3,
    "completion.before_commit": 2,
    "completion.after_commit": 2,
}


def submit_and_trigger(fleet: Fleet) -> None:
    """Jobs whose runs wait for each other, and triggers for all of them at once."""
    for key in JOBS:
        fleet.ask({"type": "job.submit", "job": {"key": key, "schedule": "manual", "target": "note"}})
    for number in range(EACH):
        for key in JOBS:
            trigger = {"type": "job.trigger", "key": key, "overlap": "buffer_all", "payload": {"number": number}}
            fleet.ask(trigger)
    fleet.flush()


def done(oracle: Oracle) -> bool:
    if not oracle.answered():
        return False
    return sum(c.status is RunStatus.SUCCEEDED for c in oracle.completed().values()) == EACH * len(JOBS)


@pytest.mark.postgres
@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.parametrize("point", sorted(OVERLAPPING))
def test_active_run_is_transferred_when_killed(point: str, fleet: Fleet, oracle: Oracle) -> None:
    submit_and_trigger(fleet)
    fleet.start_all("intake", "scheduler", "relay")
    doomed = fleet.start("executor", failpoint=f"{point}:exit:{OVERLAPPING[point]}")
    doomed.wait_killed()
    fleet.start("executor")
    fleet.start("executor")
    fleet.wait_started()
    fleet.until(lambda: done(oracle), "every run has been active")
    oracle.wait_settled()
    fleet.kill()
    oracle.check()
    for key in JOBS:
        spans: list[tuple[datetime, datetime]] = [(a, b) for a, b in fleet.database.rows(SPANS, [key])]
        assert len(spans) >= EACH
        assert all(earlier[1] <= later[0] for earlier, later in pairwise(spans))
