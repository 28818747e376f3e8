"""Overlapping runs on real executors: the active one is signalled within a second and frees its slot."""

from collections import Counter
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.executor.handlers import GATES
from tests.executor.running import Executing
from tests.executor.test_lease import heart
from tests.fixtures.acts import EXECUTOR, about
from tests.fixtures.database import Database
from tests.fixtures.services import until
from tests.transitions.overlapping import make, signals
from tidewheel.process.service import Shutdown
from tidewheel.runs import RunState
from tidewheel.transitions.cancellation import RunningAttempt, Signal, add_signals

A_SECOND = timedelta(seconds=1)
# Were it not for the terminate, a handler that does not listen would hold its run for a minute.
DEAF: dict[str, Any] = {"cancel_grace": timedelta(seconds=60)}


def entered(gate: str, run_id: UUID) -> bool:
    return str(run_id) in GATES[gate].entered


def created_at(executing: Executing, run_id: UUID) -> datetime:
    return executing.database.value("SELECT created_at FROM runs WHERE run_id = %s", [run_id])


@pytest.mark.kafka
def test_cancel_other_stops_the_active_run_and_starts_the_next(executing: Executing, gate: str) -> None:
    with executing.running():
        for handler in ("acts.wait", "acts.wait-on-thread"):
            first = executing.held(gate, handler, overlap="cancel_other")
            second = executing.trigger(handler, gate, overlap="cancel_other")
            ended = executing.ended(first)
            until(partial(entered, gate, second), f"the second {handler} runs")
            until(lambda: GATES[gate].stopped, "the first has seen that it is cancelled")
            assert GATES[gate].stopped.pop() == str(first), handler
            assert ended.state == "cancelled", handler
            assert ended.finished_at is not None
            assert ended.finished_at - created_at(executing, second) < A_SECOND, handler
        assert GATES[gate].stopped == []
        GATES[gate].opened.set()
        until(lambda: executing.database.count("job_runs") == 0, "the others have ended")
    assert executing.database.count("signals") == executing.database.count("active_runs") == 0


@pytest.mark.kafka
def test_terminate_other_starts_at_once_and_frees_the_slot(executing: Executing, gate: str) -> None:
    with executing.running(**DEAF):
        pairs: dict[str, tuple[UUID, UUID]] = {}
        for handler in ("acts.wait", "acts.wait-on-thread", "acts.wait-deaf"):
            first = executing.held(gate, handler, overlap="terminate_other")
            pairs[handler] = first, executing.held(gate, handler, overlap="terminate_other")
            ended = executing.ended(first)
            assert (ended.state, ended.reason) == ("cancelled", "overlap"), handler
        told = {str(first) for handler, (first, _) in pairs.items() if handler != "acts.wait-deaf"}
        until(lambda: set(GATES[gate].stopped) == told, "those that listen are told to stop")
        until(lambda: executing.database.count("signals") == 0, "the signals are taken away")
        GATES[gate].opened.set()
        for handler, (first, second) in pairs.items():
            assert executing.ended(second).state == "succeeded", handler
            assert executing.database.attempts(first) == [(1, "cancelled")], handler
            assert executing.database.attempts(second) == [(1, "succeeded")], handler


@pytest.mark.landing
@pytest.mark.kafka
def test_one_slot_suffices_for_terminate_other(executing: Executing, gate: str) -> None:
    """Two executors with a slot each: the second terminates a run and so frees the first one's slot."""
    with executing.running(slots=1, **DEAF), executing.running(slots=1, **DEAF):
        executing.held(gate, overlap="terminate_other")
        second = executing.held(gate, overlap="terminate_other")
        assert executing.run("acts.echo", 1).state == "succeeded"
        GATES[gate].opened.set()
        assert executing.ended(second).state == "succeeded"


@pytest.mark.landing
@pytest.mark.kafka
@pytest.mark.parametrize("policy", ["skip", "buffer_all", "allow_all", "cancel_other"])
def test_each_of_a_thousand_due_runs_of_one_job_is_decided_by_its_policy(
    executing: Executing, gate: str, policy: str
) -> None:
    database = executing.database
    database.submit(target="acts.echo" if policy == "allow_all" else "acts.wait", overlap=policy)
    asked = [about("job.trigger", payload=gate)] * 500
    executing.publish(*(UUID(reply.run_id) for _ in range(2) for reply in database.apply_batch(*asked)))

    def states() -> Counter[str]:
        return Counter(dict(database.rows("SELECT state, count(*) FROM runs GROUP BY state")))

    with executing.running(slots=1200):
        if policy != "allow_all":
            until(lambda: not states().keys() & {"queued", "cancelling"}, "each is decided")
            waiting = 999 if policy == "buffer_all" else 0
            assert (states()["running"], states()["buffered"]) == (1, waiting)
            database.apply_batch(about("job.delete"))
        GATES[gate].opened.set()
        until(lambda: database.count("job_runs") == 0, "all have ended")
    ended = {
        "skip": {"succeeded": 1, "skipped": 999},
        "buffer_all": {"succeeded": 1, "cancelled": 999},
        "allow_all": {"succeeded": 1000},
        "cancel_other": {"succeeded": 1, "skipped": 999 - states()["cancelled"], "cancelled": states()["cancelled"]},
    }
    assert states() == Counter(ended[policy])
    assert len(database.completions()) == 1000
    assert database.count("active_runs") == database.count("signals") == 0


class Beating:
    def __init__(self, database: Database, executor_id: UUID) -> None:
        self.told: list[tuple[UUID, int, Signal]] = []
        self.here: set[UUID] = set()
        self._heartbeat = heart(
            database, executor_id=executor_id, every=timedelta(seconds=5), on_signal=self._on_signal
        )

    def __enter__(self) -> "Beating":
        self._heartbeat.start(Shutdown())
        return self

    def __exit__(self, *_: object) -> None:
        self._heartbeat.leave(clean=True)

    def look(self) -> None:
        """Let it look at the signals now, as when it is notified."""
        self.told.clear()
        self._heartbeat.wake.set()
        until(lambda: self.told, "it has looked")

    def _on_signal(self, run_id: UUID, number: int, kind: Signal) -> bool:
        self.told.append((run_id, number, kind))
        return run_id in self.here


def test_delivered_terminate_is_deleted_and_those_of_others_are_left(database: Database) -> None:
    known, coming, theirs = (RunningAttempt(uuid4(), 1, "default", each) for each in (EXECUTOR, EXECUTOR, uuid4()))
    database.within(add_signals, Signal.TERMINATE, [known, coming, theirs])
    with Beating(database, EXECUTOR) as beating:
        beating.here |= {known.run_id, theirs.run_id}
        left = {coming.run_id, theirs.run_id}
        until(lambda: {run for run, *_ in signals(database)} == left, "the first is taken away")
        beating.look()
        assert beating.told[0] == (coming.run_id, 1, Signal.TERMINATE)
        database.execute("UPDATE signals SET created_at = created_at - interval '1 minute'")
        expected = [theirs.run_id]
        until(lambda: [run for run, *_ in signals(database)] == expected, "one that nobody claimed is none to come")


def test_cancel_signal_stays_until_its_run_ends(database: Database) -> None:
    database.submit(overlap="skip")
    first = database.begin(database.trigger())
    database.claim(make(database, "cancel_other"))
    with Beating(database, EXECUTOR) as beating:
        beating.here.add(first.run_id)
        for _ in range(2):
            beating.look()
    assert signals(database) == [(first.run_id, 1, "cancel", EXECUTOR)]
    assert database.open_run(first.run_id).state == RunState.CANCELLING
