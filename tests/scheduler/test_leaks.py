"""Rows that only open runs need are gone when these have ended. The tables that keep rows are listed."""

from datetime import timedelta
from typing import LiteralString

from tests.fixtures.acts import ending, submission
from tests.fixtures.database import ClockedDatabase
from tests.transitions.graphs import drain_some, never, play
from tests.transitions.test_batches import ON, called, change, of, started
from tidewheel.process.service import Shutdown
from tidewheel.runs import RunState
from tidewheel.scheduler.key_duties import KeyDuties
from tidewheel.scheduler.key_repair import KeyRepair
from tidewheel.scheduler.pending_cancels import PendingCancels
from tidewheel.scheduler.retention import Retention
from tidewheel.scheduler.retention_rules import periods_of
from tidewheel.schemas.generated.records import ReplyStatus
from tidewheel.settings.services import SchedulerSettings

# Definitions, history with a retention, and the messages that the relay deletes.
_KEPT = {
    *("tidewheel_migrations", "settings", "schemas", "message_keys", "task_token_keys"),
    *("tenants", "tenant_locks", "jobs", "job_versions", "job_edges"),
    *("timers", "requests", "audit_log", "outbox"),
    *("finished_runs", "run_inputs", "attempts", "attempt_outputs", "failed_runs", "dead_letters"),
    *("workflows", "batches", "batch_runs", "run_edges", "run_days", "job_days", "retention_state"),
}
_TABLES: LiteralString = """
SELECT relname FROM pg_class
 WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition
"""


def test_workflows_batches_keys_orders_and_windows_leave_no_row(clocked: ClockedDatabase) -> None:
    """Succeeded, failed, resumed and cancelled ones, with joins, callbacks, retries and runs that wait."""
    clocked.apply_batch(
        *(submission(key, overlap="allow_all", retry={"max_attempts": 1}) for key in ("job", "bad", "called")),
        submission("root", overlap="skip", retry={"max_attempts": 1}),
        submission("left", schedule={"after": ["root"]}),
        submission("right", schedule={"after": ["root"]}, retry={"max_attempts": 1}),
        submission("last", schedule={"after": ["left", "right"]}),
        submission("keyed", concurrency_key={"key": "k", "at_once": 1, "rate": "100/s"}),
    )
    failing = {"bad", "right"}

    def decide(key: str) -> RunState:
        return RunState.FAILED if key in failing else RunState.SUCCEEDED

    def settle() -> None:
        session = clocked.session()
        for _ in range(8):
            play(clocked, decide)
            PendingCancels(session, clocked.installation).step()
            KeyDuties(session, clocked.installation).promote(range(clocked.installation.shards))
            if not clocked.count("job_runs"):
                break
            clocked.advance(timedelta(seconds=1))
        session.close()

    root = clocked.trigger("root")
    runs = [*of("a"), *of("c", key="bad"), {"ref": "b", "key": "job", "after": ["a", "c"], "delay": "1s"}]
    batch = started(clocked, runs, on=ON)
    dropped = started(clocked, [*runs, *of("e", key="keyed")], on=ON, open=True)
    for _ in range(3):
        clocked.trigger("keyed")
        clocked.trigger("job", dedupe={"key": "k", "window": "1h", "mode": "reject"})
        clocked.trigger("job", ordering_key="acme")
    clocked.trigger("job", dedupe={"key": "l", "window": "1s", "mode": "debounce"})
    begun = clocked.begin(clocked.trigger("keyed", concurrency_key="other"))
    clocked.apply_batch({"type": "run.cancel", "run_id": str(begun.run_id)})
    clocked.end(ending(begun, RunState.CANCELLED))
    change(clocked, "cancel", dropped)
    settle()
    failing.clear()
    for ended in (root, batch, dropped):
        assert change(clocked, "resume", ended).status is ReplyStatus.ACCEPTED
    settle()
    assert clocked.rows("SELECT DISTINCT state, pending FROM workflows") == [("succeeded", 0)]
    assert len(called(clocked)) == 7
    assert not drain_some(clocked, never())
    clocked.advance(timedelta(hours=2))
    KeyRepair(clocked.session(), clocked.installation).repair()
    retention = Retention(clocked.url, periods_of(SchedulerSettings.load()), Shutdown())
    retention.step()
    retention.close()
    tables = {name for (name,) in clocked.rows(_TABLES)}
    assert tables >= _KEPT, "a listed table is gone"
    left = sorted(tables - _KEPT - {"test_clock"})
    assert {name: rows for name in left if (rows := clocked.count(name))} == {}
    assert clocked.value("SELECT count(*) FROM runs WHERE state = 'succeeded'") > 10
