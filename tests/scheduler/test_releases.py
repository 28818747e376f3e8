"""Releases of workflows, failures that nothing handles, and rows that nothing leaves."""

from collections.abc import Sequence
from datetime import timedelta
from typing import LiteralString
from uuid import UUID, uuid4

import pytest
from prometheus_client import REGISTRY

from tests.control.test_doctor import examine
from tests.fixtures.acts import HANDLER, ending, submission
from tests.fixtures.database import ClockedDatabase, Database
from tests.fixtures.services import until
from tests.scheduler.test_loop import running
from tests.transitions.graphs import after, changed, drain_some, never, play, put
from tests.transitions.test_batches import ON, called, change, of, started
from tidewheel.clock import monotonic_seconds
from tidewheel.control.reads.findings import Finding, Severity
from tidewheel.ids import job_id
from tidewheel.process.service import Shutdown
from tidewheel.runs import RunState
from tidewheel.scheduler.backlog import Unhandled, UnhandledWatch
from tidewheel.scheduler.cancels import PendingCancels
from tidewheel.scheduler.concurrency_keys import KeyDuties, KeyRepair
from tidewheel.scheduler.releases import Releases
from tidewheel.scheduler.retention import Retention
from tidewheel.scheduler.retention_rules import periods_of
from tidewheel.schemas.generated.records import LifecycleEvent, ReplyStatus
from tidewheel.settings.services import SchedulerSettings


def end_root(database: Database, key: str) -> UUID:
    root = database.trigger(key)
    database.succeed(database.begin(root))
    return root


def queued(database: Database) -> list[str]:
    return [key for (key,) in database.rows("SELECT key FROM job_runs JOIN jobs USING (job_id) ORDER BY key")]


def test_a_running_scheduler_releases_the_children(database: Database) -> None:
    put(database, {"a": [], "b": after("a")})
    with running(database):
        end_root(database, "a")
        until(lambda: queued(database) == ["b"], "the child is released")
    assert database.count("releases") == 0


def test_a_release_that_waits_for_a_lock_stops_neither_others_nor_firing(database: Database) -> None:
    put(database, {"a": [], "b": after("a")})
    put(database, {"x": [], "y": after("x")})
    end_root(database, "a")
    end_root(database, "x")
    session = database.session()
    releases = Releases(session, database.installation)
    with database.transaction() as deleting:
        deleting.execute("SELECT FROM jobs WHERE key = 'b' FOR UPDATE")
        since = monotonic_seconds()
        releases.step(range(64))
        assert monotonic_seconds() - since < 5  # a session's lock_timeout is 10 s
        assert queued(database) == ["y"]
    until(lambda: releases.step(range(64))[0], "the release is due again")
    session.close()
    assert queued(database) == ["b", "y"]
    assert database.count("releases") == 0


def test_a_release_that_fails_alone_is_postponed_and_the_others_go_on(database: Database) -> None:
    put(database, {"a": [], "b": after("a")})
    put(database, {"x": [], "y": after("x")})
    # A child without any version: no drain of it can succeed.
    database.execute("DELETE FROM job_versions WHERE job_id = %s", [job_id("default", "b")])
    broken = end_root(database, "a")
    end_root(database, "x")
    session = database.session()
    releases = Releases(session, database.installation)
    until(lambda: releases.step(range(64)) and queued(database) == ["y"], "the other child is released")
    session.close()
    assert database.rows("SELECT run_id, due_at > tidewheel_now() + interval '50 s' FROM releases") == [(broken, True)]


def test_a_release_that_never_drains_is_quarantined_until_a_resume(database: Database) -> None:
    put(database, {"a": [], "b": after("a")})
    at = "UPDATE job_versions SET effective_at = %s WHERE job_id = %s"
    database.execute(at, ["infinity", job_id("default", "b")])
    broken = end_root(database, "a")
    session = database.session()
    releases = Releases(session, database.installation)
    for _ in range(5):
        assert examine_quarantine(database) == []
        releases.step(range(64))
        database.execute("UPDATE releases SET due_at = tidewheel_now() WHERE due_at < 'infinity'")
    releases.step(range(64))
    [finding] = examine_quarantine(database)
    assert finding.severity is Severity.ERROR
    assert finding.what == "1 workflow occurrence cannot continue"
    assert "KeyError" in finding.evidence
    assert finding.remedy.endswith(f"tidewheel workflow resume {broken} --tenant default")
    database.execute(at, ["2020-01-01T00:00Z", job_id("default", "b")])
    assert changed(database, "resume", broken)
    assert not changed(database, "resume", broken)
    assert examine_quarantine(database) == []
    releases.step(range(64))
    session.close()
    assert queued(database) == ["b"]


def examine_quarantine(database: Database) -> list[Finding]:
    return [each for each in examine(database) if each.check == "quarantine"]


LATER = timedelta(seconds=11)


def check(database: ClockedDatabase) -> list[tuple[str, str, int]]:
    announced: list[Unhandled] = UnhandledWatch(database.session(), database.installation).check()
    return [(each.queue, each.handler, each.runs) for each in announced]


def waiting() -> float | None:
    return REGISTRY.get_sample_value("tidewheel_runs_without_executor")


def announced(database: ClockedDatabase) -> list[LifecycleEvent]:
    return [event for event in database.lifecycle() if event.type == "io.tidewheel.job.no_executor.v1"]


def executor(
    database: ClockedDatabase, *, queues: Sequence[str] = ("default",), handlers: Sequence[str] = (), **columns: object
) -> None:
    announced = {"stopping": False} | columns
    database.execute(
        "INSERT INTO executors (executor_id, name, queues, handlers, slots, last_heartbeat_at, started_at, stopping)"
        " VALUES (%s, 'test', %s, %s, 1, tidewheel_now(), tidewheel_now(), %s)",
        [uuid4(), list(queues), list(handlers), announced["stopping"]],
    )


def test_run_without_an_executor_for_its_handler_is_announced(still: ClockedDatabase) -> None:
    still.submit("mail", queue="reports")
    run_id, *_ = [still.trigger("mail") for _ in range(3)]
    executor(still, handlers=[HANDLER])  # of another queue
    executor(still, queues=["reports"], handlers=["other"])
    assert check(still) == []  # due for a moment only
    still.advance(LATER)
    executor(still, queues=["reports"], handlers=["other"])
    assert check(still) == [("reports", HANDLER, 3)]
    assert waiting() == 3
    [event] = announced(still)
    assert (event.job_key, event.reason) == ("mail", f"no executor of queue reports has handler {HANDLER}")
    assert event.detail["runs"] == "3"
    assert event.detail["run_id"] == str(run_id)
    run = still.open_run(run_id)
    assert (run.state, run.attempt, run.failed_attempts) == ("queued", 0, 0)


def test_queue_without_executors_is_announced_for_every_target(still: ClockedDatabase) -> None:
    still.submit("call", queue="web", target={"type": "http", "url": "https://example.org/"})
    still.trigger("call")
    still.advance(LATER)
    assert check(still) == [("web", "tidewheel.http", 1)]
    [event] = announced(still)
    assert event.reason == "no executor of queue web runs http targets (TIDEWHEEL_TARGETS)"


def test_announcement_is_repeated_after_ten_minutes(still: ClockedDatabase) -> None:
    still.submit()
    still.trigger()
    still.advance(LATER)
    assert len(check(still)) == 1
    still.advance(timedelta(minutes=9))
    assert check(still) == []
    assert waiting() == 1
    still.advance(timedelta(minutes=2))
    assert len(check(still)) == 1
    assert len(announced(still)) == 2


@pytest.mark.parametrize("gone", ["stopping", "silent"])
def test_stopping_executor_does_not_count(still: ClockedDatabase, gone: str) -> None:
    still.submit()
    still.trigger()
    if gone == "silent":
        executor(still, handlers=[HANDLER])
        still.advance(timedelta(minutes=2))
    else:
        still.advance(LATER)
        executor(still, handlers=[HANDLER], stopping=True)
    assert check(still) == [("default", HANDLER, 1)]


def test_live_executor_ends_announcements(still: ClockedDatabase) -> None:
    still.submit()
    still.trigger()
    still.advance(LATER)
    assert len(check(still)) == 1
    executor(still, handlers=[HANDLER])
    still.advance(timedelta(seconds=1))
    assert check(still) == []
    assert waiting() == 0


def test_owned_and_future_runs_are_not_announced(still: ClockedDatabase) -> None:
    still.submit(overlap="allow_all")
    still.begin(still.trigger())
    still.trigger(delay="1h")
    still.advance(LATER)
    assert check(still) == []


def test_each_queue_lane_and_handler_is_found(still: ClockedDatabase) -> None:
    wanted: set[tuple[str, str, int]] = set()
    for queue in ("a", "b", "default"):
        for lane in ("critical", "standard", "batch"):
            handler = f"{queue}-{lane}"
            still.submit(handler, queue=queue, lane=lane, target=handler)
            still.trigger(handler)
            wanted.add((queue, handler, 1))
    still.advance(LATER)
    assert set(check(still)) == wanted


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
