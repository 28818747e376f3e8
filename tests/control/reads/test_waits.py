"""Each open run has the reason for which it waits, with what to do."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from tests.control.cli.command import json_output, tidewheel
from tests.fixtures.acts import EXECUTOR, HANDLER
from tests.fixtures.database import Database
from tests.transitions.graphs import after, end_and_drain, put
from tidewheel.control.reads.fleet import ExecutorSummary, use_of
from tidewheel.control.reads.waits import Wait, WaitCode, read_waits, start_executor
from tidewheel.runs import AttemptOutcome

_NOW = datetime(2026, 3, 2, tzinfo=UTC)


def executor(
    database: Database, *handlers: str, executor_id: UUID | None = None, queue: str = "default", silent: str = "0 s"
) -> None:
    """Enter an executor with its last heartbeat so long ago."""
    database.execute(
        "INSERT INTO executors (executor_id, name, queues, handlers, slots, last_heartbeat_at, started_at, lease)"
        " VALUES (%s, 'worker-1', %s, %s, 4, tidewheel_now() - %s::interval, tidewheel_now(), '15 s')",
        [executor_id or uuid4(), [queue], list(handlers), silent],
    )


def why(database: Database, run_id: UUID) -> Wait:
    return database.within(read_waits, [run_id])[run_id]


def request_cancel(database: Database, run_id: UUID) -> None:
    """Accept a cancel whose run another transaction locks."""
    database.execute("INSERT INTO pending_cancels (run_id, tenant, reason) VALUES (%s, 'default', 'r')", [run_id])


def open_runs(database: Database) -> tuple[int, int]:
    """Return how many runs the freeze of the queue keeps, and how many a cancellation would match."""
    [frozen] = database.client.freezes.list()
    return frozen.open_runs, database.client.runs.cancel_matching(queue="default", dry_run=True).matched


@pytest.fixture
def job(database: Database) -> Database:
    database.submit()
    return database


def test_run_without_a_live_executor_has_what_is_missing(job: Database) -> None:
    run_id = job.trigger()
    found = why(job, run_id)
    assert (found.code, found.words) == (WaitCode.NO_EXECUTOR, "no live executor serves queue default")
    start = "tidewheel service executor --queues default --handlers MODULES"
    assert found.remedy == f"{start}, where MODULES includes the module that defines {HANDLER}"
    executor(job, "other")
    executor(job, HANDLER, queue="reports")
    found = why(job, run_id)
    assert (found.code, found.words) == (
        WaitCode.NO_HANDLER, f"no live executor of queue default has handler {HANDLER}",
    )  # fmt: skip
    executor(job, HANDLER, silent="1 h")
    assert why(job, run_id).words.startswith(f"{found.words}; the last one has been silent since ")
    executor(job, HANDLER)
    found = why(job, run_id)
    assert found.code is WaitCode.SLOT
    assert found.words == "waits for the live executor of queue default"


def test_creating_a_job_that_no_live_executor_can_run_prints_a_note(database: Database) -> None:
    made = ("--manual", "--handler", HANDLER)
    assert tidewheel(database, "job", "create", "before", *made).err == "", "before the first executor"
    executor(database, "other")
    done = tidewheel(database, "job", "create", "typo", *made)
    assert (done.code, done.out) == (0, "typo: created, version 1\n")
    words = f"no live executor of queue default has handler {HANDLER}"
    assert done.err == f"note: {words}; start one: {start_executor('default', HANDLER)}\n"
    assert tidewheel(database, "job", "trigger", "typo").err == done.err
    updated = tidewheel(database, "job", "update", "typo", "--queue", "reports").err
    assert updated.startswith("note: no live executor serves queue reports; ")
    assert tidewheel(database, "job", "update", "typo", "--queue", "x", "-o", "json").err == ""
    executor(database, HANDLER)
    assert tidewheel(database, "job", "create", "fits", *made).err == ""


def test_run_of_a_target_that_no_executor_runs_names_the_setting(database: Database) -> None:
    database.submit(target={"type": "http", "url": "https://example.org/"})
    executor(database, HANDLER)
    found = why(database, database.trigger())
    assert (found.code, found.words) == (WaitCode.NO_TARGET, "no live executor of queue default runs http targets")
    assert found.remedy is not None
    assert "TIDEWHEEL_TARGETS" in found.remedy


def test_run_whose_time_has_not_come_has_its_instant(job: Database) -> None:
    ahead = why(job, job.trigger(delay="1h"))
    assert ahead.code is WaitCode.NOT_YET
    assert ahead.until is not None
    assert ahead.until > job.now() + timedelta(minutes=50)


def test_retrying_run_has_the_end_of_its_last_attempt_and_the_time_of_the_next(job: Database) -> None:
    failed = job.begin(job.trigger())
    job.requeue(failed, AttemptOutcome.FAILED, timedelta(hours=1))
    found = why(job, failed.run_id)
    assert (found.code, found.until) == (WaitCode.RETRY, job.value("SELECT publish_at FROM job_runs"))
    assert found.words.startswith("attempt 1 failed (ValueError); retrying at ")
    told = job.begin(job.trigger())
    job.requeue(told, AttemptOutcome.FAILED, timedelta(hours=1), f"row 7; no {'price' * 50}\nat once")
    assert why(job, told.run_id).words.startswith(f"attempt 1 failed (ValueError: row 7; no {'price' * 38}); retrying")
    lost = job.begin(job.trigger())
    job.requeue(lost, AttemptOutcome.LOST)
    executor(job, HANDLER)
    assert why(job, lost.run_id).code is WaitCode.SLOT
    job.client.freezes.freeze(queue="default")
    assert why(job, failed.run_id).code is WaitCode.FROZEN


def test_run_that_its_tenants_rate_holds_names_that_rate(job: Database) -> None:
    job.client.tenants.limit("default", triggers_per_second=1)
    job.installation.rates.forget()
    runs = [job.trigger() for _ in range(15)]
    found = why(job, runs[-1])
    assert (found.code, found.words.partition(";")[0]) == (
        WaitCode.TENANT_RATE, "held by the tenant's rate, 1 runs a second",
    )  # fmt: skip


def test_run_behind_its_jobs_active_run_has_its_id(database: Database) -> None:
    database.submit(overlap="buffer_all")
    first, second = database.trigger(), database.trigger()
    database.begin(first)
    assert not database.claim(second).started
    found = why(database, second)
    assert (found.code, found.behind_run_id) == (WaitCode.TURN, first)
    assert found.words == f"waits behind run {first}, the job's active run, which is running"


def test_run_without_a_place_has_its_key(database: Database) -> None:
    database.submit(concurrency_key={"key": "acme", "at_once": 1})
    first, second = database.trigger(), database.trigger()
    database.begin(first)
    assert database.claim(second).waiting == {second}
    found = why(database, second)
    assert (found.code, found.words) == (
        WaitCode.KEY, "waits for a place of the concurrency key 'acme': 1 of 1 are taken",
    )  # fmt: skip


def test_due_run_names_the_limit_of_its_tenant_before_a_claim_has_looked(job: Database) -> None:
    executor(job, HANDLER, executor_id=EXECUTOR)
    begun, waiting = job.begin(job.trigger()), job.trigger()
    failed = job.begin(job.trigger())
    job.requeue(failed, AttemptOutcome.FAILED)
    job.client.tenants.limit("default", in_flight=1)
    words = "tenant default has 1 of 1 active runs; the oldest waiting run starts when one ends"
    found = why(job, waiting)
    assert (found.code, found.words) == (WaitCode.TENANT, words), "no scheduler has counted the active runs yet"
    assert found.remedy == "raise the limit with `tidewheel admin tenant limits default --in-flight N`"
    job.execute("UPDATE tenants SET in_flight_since = NULL")
    assert why(job, waiting).code is WaitCode.SLOT, "the row of the tenant counts"
    job.execute("UPDATE run_keys SET running = 1")
    assert (why(job, waiting).words, why(job, begun.run_id).code) == (words, WaitCode.RUNNING)
    assert why(job, failed.run_id).words == words
    job.client.tenants.limit("default", in_flight=2)
    assert why(job, waiting).code is WaitCode.SLOT


def test_due_run_names_its_full_key_before_a_claim_has_looked(database: Database) -> None:
    executor(database, HANDLER)
    database.submit(concurrency_key={"key": "acme", "at_once": 1})
    first, second = database.trigger(), database.trigger()
    assert why(database, second).code is WaitCode.SLOT
    database.begin(first)
    found = why(database, second)
    assert (found.code, found.words) == (
        WaitCode.KEY, "waits for a place of the concurrency key 'acme': 1 of 1 are taken",
    )  # fmt: skip


def test_blocked_run_has_its_occurrence_and_its_parents(database: Database) -> None:
    put(database, {"a": [], "b": after("a"), "c": after("a"), "d": after("b", "c")})
    root = database.trigger("a")
    end_and_drain(database)
    end_and_drain(database, limit=1)
    blocked = database.value("SELECT run_id FROM job_runs WHERE state = 'blocked'")
    found = why(database, blocked)
    words = f"waits for its parents in the workflow occurrence of run {root}: 1 of 2 have ended"
    assert (found.code, found.words, found.remedy) == (WaitCode.PARENTS, words, f"tidewheel workflow show {root}")
    database.apply_batch({"type": "workflow.pause", "run_id": str(root)})
    found = why(database, blocked)
    words = f"the workflow occurrence of run {root} is paused"
    assert (found.code, found.words, found.remedy) == (WaitCode.PARENTS, words, f"tidewheel workflow resume {root}")


def test_run_under_way_has_its_executor_and_the_silence_of_it(job: Database) -> None:
    executor(job, HANDLER, executor_id=EXECUTOR)
    started = job.begin(job.trigger())
    found = why(job, started.run_id)
    assert (found.code, found.executor_id) == (WaitCode.RUNNING, EXECUTOR)
    assert found.words.startswith("running on worker-1 since ")
    job.execute("UPDATE executors SET last_heartbeat_at = tidewheel_now() - interval '1 min'")
    found = why(job, started.run_id)
    assert (found.code, found.remedy) == (
        WaitCode.EXECUTOR_SILENT, "start an executor of queue default if none is running",
    )  # fmt: skip
    assert re.fullmatch(r"its lease ended at .+, and a live executor ends attempt 1 as lost; .+", found.detail or "")
    assert found.words == f"{found.reason}; {found.detail}"


def test_frozen_run_has_its_freezes_and_one_to_cancel_its_cancel(job: Database) -> None:
    run_id = job.trigger()
    job.client.freezes.freeze(queue="default", reason="printer swap", by="anna")
    found = why(job, run_id)
    assert (found.code, len(found.freezes)) == (WaitCode.FROZEN, 1)
    assert found.words.endswith("by anna (queue default of tenant default): printer swap")
    assert (found.cancel_requested, open_runs(job)) == (False, (1, 1))
    request_cancel(job, run_id)
    found = why(job, run_id)
    assert (found.code, found.cancel_requested) == (WaitCode.CANCEL, True)
    assert open_runs(job) == (0, 0), "neither a freeze nor a cancellation counts it"


def test_attempt_under_way_whose_cancel_is_accepted_says_so(job: Database) -> None:
    executor(job, HANDLER, executor_id=EXECUTOR)
    started = job.begin(job.trigger())
    request_cancel(job, started.run_id)
    found = why(job, started.run_id)
    assert (found.code, found.cancel_requested) == (WaitCode.RUNNING, True)
    assert found.words.endswith("; cancel requested")


def test_lists_and_details_have_the_same_reason(job: Database) -> None:
    run_id = job.trigger()
    [listed] = json_output(job, "run", "list")["runs"]
    shown = json_output(job, "run", "show", run_id)
    assert listed["why"] == shown["why"]
    assert listed["why"]["code"] == "no_executor"
    assert tidewheel(job, "run", "list").lines[1].endswith("no live executor serves queue default")
    facts = dict(line.split(maxsplit=1) for line in tidewheel(job, "run", "show", run_id).lines)
    assert facts["why"] == listed["why"]["words"]
    assert facts["remedy"] == listed["why"]["remedy"]


class Counted(psycopg.Cursor[tuple[Any, ...]]):
    """A cursor that counts statements."""

    statements: Sequence[object] = ()

    def execute(self, query: Any, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - as the base class
        Counted.statements = [*Counted.statements, query]
        return super().execute(query, *arguments, **options)


def test_run_that_a_cancellation_names_waits_for_its_end(job: Database) -> None:
    run_id, started = job.trigger(), job.begin(job.trigger())
    executor(job, HANDLER)
    [reply] = job.apply_batch({"type": "runs.cancel", "key": "job"})
    number = job.value("SELECT id FROM cancellations")
    assert reply.unchanged is False
    found = why(job, run_id)
    words = f"cancellation {number} includes the run: no executor starts the run, and a scheduler ends it"
    assert (found.code, found.words, found.cancellation_id) == (WaitCode.CANCEL, words, number)
    assert why(job, started.run_id).code is not WaitCode.CANCEL, "an executor has its attempt"
    job.execute("UPDATE cancellations SET finished_at = tidewheel_now()")
    assert why(job, run_id).code is not WaitCode.CANCEL


def test_number_of_statements_does_not_grow_with_the_page(job: Database) -> None:
    job.apply_batch(*({"type": "job.trigger", "key": "job"} for _ in range(30)))
    runs = [run_id for (run_id,) in job.rows("SELECT run_id FROM job_runs")]
    connection = job.connection()
    connection.cursor_factory = Counted  # type: ignore[assignment]
    assert len(read_waits(connection, runs)) == 30
    assert len(Counted.statements) == 2


def test_buffered_root_has_the_occurrence_that_keeps_the_place(database: Database) -> None:
    put(database, {"a": [], "b": after("a")}, overlap="buffer_one")
    root = database.trigger("a")
    end_and_drain(database)
    second = database.trigger("a")
    database.claim(second)
    found = why(database, second)
    words = f"waits for the occurrence of run {root} to end, by the job's overlap policy"
    assert (found.code, found.words, found.remedy) == (WaitCode.TURN, words, f"tidewheel workflow show {root}")


def test_use_of_slots_names_idle_executors_and_free_slots_of_the_others() -> None:
    def used(*runs: int, slots: int = 4) -> str:
        live = [
            ExecutorSummary(UUID(int=at), f"e{at}", (), (), slots, stopping=False, started_at=_NOW,
                            last_heartbeat_at=_NOW, is_silent=False, lease_ends_at=_NOW)
            for at in range(len(runs))
        ]  # fmt: skip
        return use_of(live, {UUID(int=at): many for at, many in enumerate(runs) if many}).words

    assert used() == ""
    assert used(0) == "executor e0 is idle"
    assert used(0, 4) == "executor e0 is idle; all 4 other slots are in use"
    assert used(0, 0, 3) == "2 of 3 executors are idle; 1 of 4 other slots is free"
    assert used(2, 1) == "5 of 8 slots are free"
    assert used(1, slots=1) == "the only slot is in use"
