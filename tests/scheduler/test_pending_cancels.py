"""Cancels of locked runs are applied once, and a failing one does not block others."""

from uuid import UUID

import pytest

from tests.fixtures.database import Database
from tests.transitions.acts import begun, end, ending, open_run, trigger
from tests.transitions.overlapping import signals
from tidewheel.process.service import Shutdown
from tidewheel.runs import RunState
from tidewheel.scheduler import pending_cancels as module
from tidewheel.scheduler.loop import Scheduler
from tidewheel.scheduler.pending_cancels import PendingCancels
from tidewheel.settings.services import SchedulerSettings
from tidewheel.transitions.finish import finish_runs


def want(database: Database, *runs: UUID) -> None:
    for run in runs:
        database.execute(
            "INSERT INTO pending_cancels (run_id, tenant, reason) VALUES (%s, 'default', 'requested')", [run]
        )


def states(database: Database, *runs: UUID) -> list[str]:
    found = dict(database.rows("SELECT run_id, state FROM runs"))
    return [found[run] for run in runs]


def test_scheduler_applies_pending_cancels(with_job: Database) -> None:
    over, running, queued = begun(with_job), begun(with_job), trigger(with_job)
    end(with_job, ending(over, RunState.SUCCEEDED))
    want(with_job, over.run_id, running.run_id, queued, queued)
    stop = Shutdown()
    scheduler = Scheduler(SchedulerSettings.load(), with_job.url, with_job.installation, stop)
    scheduler.step()
    stop.request()
    scheduler.run()  # enters, sees that it is to end, and closes what it holds
    assert states(with_job, over.run_id, queued) == ["succeeded", "cancelled"]
    assert open_run(with_job, running.run_id).state == "cancelling"
    assert [signal[0] for signal in signals(with_job)] == [running.run_id]
    assert with_job.count("pending_cancels") == 0


def test_locked_runs_do_not_hide_other_pending_cancels(with_job: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_APPLIED", 2)
    runs = [trigger(with_job) for _ in range(5)]
    want(with_job, *runs)
    wanted = PendingCancels(with_job.session(), with_job.installation)
    with with_job.transaction() as holding:
        holding.execute("SELECT FROM job_runs WHERE run_id = ANY (%s) FOR UPDATE", [runs[:3]])
        assert [wanted.step().ended for _ in range(3)] == [0, 1, 1]
    assert sum(wanted.step().ended for _ in range(3)) == 3
    assert with_job.count("pending_cancels") == 0


def test_failing_pending_cancel_does_not_block_others(with_job: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    poison, *others = [trigger(with_job) for _ in range(3)]
    want(with_job, poison, *others)
    tries = 0

    def fails(connection: object, installation: object, ends: list[module.RunEnd]) -> object:
        nonlocal tries
        if any(each.run_id == poison for each in ends):
            tries += 1
            message = "a row that cannot be worked with"
            raise ValueError(message)
        return finish_runs(connection, installation, ends)  # type: ignore[arg-type]  # as they came

    monkeypatch.setattr(module, "finish_runs", fails)
    wanted = PendingCancels(with_job.session(), with_job.installation)
    assert [wanted.step().ended for _ in range(3)] == [2, 0, 0]
    assert states(with_job, *others) == ["cancelled"] * 2
    assert (tries, with_job.count("pending_cancels")) == (2, 1)
