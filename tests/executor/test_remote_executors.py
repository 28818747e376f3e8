"""Executors in other languages, below HTTP."""

from datetime import timedelta

from tests.fixtures.database import Database
from tests.transitions.acts import apply_batch, submit, trigger
from tidewheel.executor.remote_executors import RemoteClaim, RemoteExecutors


def test_sweep_of_remote_executors_skips_cancelled_runs(database: Database) -> None:
    """As the sweep of any executor does: a backlog of it would hide what is behind."""
    remote = RemoteExecutors(database.session(), database.installation, notify=lambda _: None)
    submit(database, "cancelled", target="a")
    submit(database, "wanted", target="a")
    for _ in range(2):
        trigger(database, "cancelled")
    wanted = trigger(database, "wanted")
    apply_batch(database, {"type": "runs.cancel", "key": "cancelled"})
    database.execute("UPDATE job_runs SET publish_at = publish_at - interval '10 seconds'")
    mine = remote.register("theirs", ["default"], ["a"], 1, lease=timedelta(seconds=15))
    claimed = remote.claim(RemoteClaim(mine, 1, sweep=1))
    assert [one.run_id for one in claimed.started] == [wanted]


def test_sweep_of_remote_executors_skips_pending_cancels(database: Database) -> None:
    remote = RemoteExecutors(database.session(), database.installation, notify=lambda _: None)
    submit(database, target="a")
    cancelled, wanted = trigger(database), trigger(database)
    with database.transaction() as holding:
        holding.execute("SELECT FROM job_runs WHERE run_id = %s FOR UPDATE", [cancelled])
        apply_batch(database, {"type": "run.cancel", "run_id": str(cancelled)})
    database.execute("UPDATE job_runs SET publish_at = publish_at - interval '10 seconds'")
    mine = remote.register("theirs", ["default"], ["a"], 1, lease=timedelta(seconds=15))
    claimed = remote.claim(RemoteClaim(mine, 1, sweep=1))
    assert [one.run_id for one in claimed.started] == [wanted]
