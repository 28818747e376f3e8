"""The scheduler of shard 0 exports what is due and not done, for the whole installation."""

from datetime import timedelta
from uuid import uuid4

from prometheus_client import REGISTRY

from tests.fixtures.acts import about, ending
from tests.fixtures.database import ClockedDatabase
from tests.fixtures.services import until
from tests.scheduler.firing import fire_due
from tidewheel.runs import RunState
from tidewheel.scheduler.backlog_metrics import BacklogMetrics

MINUTE = timedelta(minutes=1)


def measure(database: ClockedDatabase) -> None:
    BacklogMetrics(database.session(), database.installation).measure()


def value(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(f"tidewheel_{name}", labels)


def executor(database: ClockedDatabase, lease: timedelta) -> None:
    database.execute(
        "INSERT INTO executors (executor_id, name, queues, handlers, slots, last_heartbeat_at, started_at, lease)"
        " VALUES (%s, 'test', '{}', '{}', 1, tidewheel_now(), tidewheel_now(), %s)",
        [uuid4(), lease],
    )


def test_due_runs_are_counted_by_queue_and_lane_with_the_age_of_the_oldest(still: ClockedDatabase) -> None:
    still.submit("report", queue="reports", lane="batch")
    still.submit("mail")
    still.trigger("report")
    still.advance(MINUTE)
    still.trigger("report")
    still.trigger("mail")
    still.trigger("mail", delay="1h")
    measure(still)
    assert value("runs_due", queue="reports", lane="batch") == 2
    assert value("runs_due_oldest_seconds", queue="reports", lane="batch") == 60
    assert value("runs_due", queue="default", lane="standard") == 1
    assert value("outbox_due", lane="batch") == 2
    assert value("outbox_oldest_seconds", lane="batch") == 60


def test_queue_that_has_been_worked_off_has_no_due_runs(still: ClockedDatabase) -> None:
    still.submit()
    run_id = still.trigger()
    own = BacklogMetrics(still.session(), still.installation)
    own.measure()
    assert value("runs_due", queue="default", lane="standard") == 1
    still.begin(run_id)
    own.measure()
    assert value("runs_due", queue="default", lane="standard") == 0
    still.execute("DELETE FROM job_runs")
    own.measure()
    assert value("runs_due", queue="default", lane="standard") == 0


def test_frozen_run_is_not_due(still: ClockedDatabase) -> None:
    still.submit("report", queue="reports")
    still.submit("mail")
    still.trigger("report")
    still.trigger("mail")
    [reply] = still.apply_batch({"type": "freeze", "queue": "reports"})
    assert reply.status == "accepted", reply.errors
    measure(still)
    assert value("runs_due", queue="reports", lane="standard") == 0
    assert value("runs_due", queue="default", lane="standard") == 1


def test_timer_that_a_freeze_holds_is_not_overdue(still: ClockedDatabase) -> None:
    still.submit("minutely", schedule={"interval": "1m"})
    still.apply_batch({"type": "freeze", "scope": "tenant"})
    still.advance(MINUTE)
    assert fire_due(still) == 1
    still.advance(5 * MINUTE)
    measure(still)
    assert (value("timers_overdue"), value("jobs_behind")) == (0, 0)


def test_attempt_of_an_executor_that_is_gone_is_an_orphan(still: ClockedDatabase) -> None:
    still.submit()
    still.begin(still.trigger())
    measure(still)
    assert value("runs_orphaned") == 1


def test_instants_of_overdue_timers_are_counted(still: ClockedDatabase) -> None:
    still.submit("minutely", schedule={"interval": "1m"})
    still.submit("daily", schedule={"interval": "1d"})
    still.submit("held", schedule={"interval": "1m"})
    still.apply_batch(about("job.pause", "held"))
    still.advance(timedelta(minutes=5))
    measure(still)
    assert value("timers_overdue") == 1
    assert value("occurrences_missing") == 5
    assert value("jobs_behind") == 1
    assert value("timers_overdue_oldest_seconds") == 240


def test_blocked_ordering_keys_are_counted(still: ClockedDatabase) -> None:
    still.submit(ordering_key="k")
    still.end(ending(still.begin(still.trigger()), RunState.FAILED))
    still.trigger()
    still.advance(MINUTE)
    measure(still)
    assert (value("ordering_keys_blocked"), value("ordering_keys_blocked_oldest_seconds")) == (1, 60)


def test_part_of_a_lease_without_a_heartbeat_is_the_largest_of_all(still: ClockedDatabase) -> None:
    executor(still, MINUTE)
    executor(still, timedelta(minutes=10))
    still.advance(timedelta(seconds=30))
    measure(still)
    assert value("lease_used_ratio") == 0.5


def test_scheduler_that_loses_shard_0_exports_zeros(still: ClockedDatabase) -> None:
    still.submit()
    still.trigger()
    own = BacklogMetrics(still.session(), still.installation)
    own.step(measures=True)

    def measured() -> bool:
        own.step(measures=True)
        return value("runs_due", queue="default", lane="standard") == 1

    until(measured, "the backlog is measured")

    def reset() -> bool:
        own.step(measures=False)
        return value("runs_due", queue="default", lane="standard") == 0

    until(reset, "the gauges are reset")
    assert value("outbox_due", lane="standard") == 0
    own.close()
