"""`ctx.batch.add`: runs come into the batch of a running attempt, once, and from no other attempt."""

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import LiteralString
from uuid import UUID, uuid4

import pytest

from tests.fixtures.acts import EXECUTOR, submission
from tests.fixtures.database import Database
from tests.fixtures.services import until
from tests.transitions.stepping import in_background
from tests.transitions.test_batches import of, started, states
from tidewheel.errors import AttemptOver, InvalidInput
from tidewheel.executor.batch_adds import BatchAdds
from tidewheel.executor.handler_channel import NoChannel
from tidewheel.executor.run_batch import RunBatch
from tidewheel.postgres.session_pool import SessionPool
from tidewheel.runs import AttemptOutcome

BLOCKED: LiteralString = "SELECT count(*) > 0 FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))"
MORE = [{"ref": "b", "key": "job", "after": ["a"]}, {"ref": "c", "key": "job", "payload": {"n": 1}}]


@pytest.fixture
def adds(database: Database) -> Iterator[BatchAdds]:
    database.submit(overlap="allow_all")
    made = BatchAdds(SessionPool(database.session, 2), database.installation, EXECUTOR, lambda: None)
    yield made
    made.close()


def add(adds: BatchAdds, run: UUID, attempt: int, runs: object = MORE) -> bool:
    return adds.add(run, attempt, json.dumps({"runs": runs}).encode(), None)


def run_of(database: Database, ref: str) -> UUID:
    return database.value("SELECT run_id FROM batch_runs WHERE ref = %s", [ref])


def test_a_later_attempt_adds_nothing_twice_and_an_earlier_one_nothing_at_all(
    database: Database, adds: BatchAdds
) -> None:
    batch = started(database, of("a"))
    run = run_of(database, "a")
    first = database.begin(run)
    assert add(adds, run, 1)
    assert states(database, batch) == {"a": "running", "b": "blocked", "c": "queued"}
    database.requeue(first, AttemptOutcome.LOST)
    with pytest.raises(AttemptOver):
        add(adds, run, 1, of("z"))  # between two attempts
    database.execute("UPDATE job_runs SET publish_at = tidewheel_now() WHERE run_id = %s", [run])
    other = BatchAdds(SessionPool(database.session, 2), database.installation, uuid4(), lambda: None)
    database.begin(run)
    for zombie, attempt in ((adds, 1), (other, 2)):
        with pytest.raises(AttemptOver, match="no run was added"):
            add(zombie, run, attempt, of("z"))
    other.close()
    both = [in_background(lambda: add(adds, run, 2, of("d"))) for _ in range(2)]
    assert sorted(each.result(10.0) for each in both) == [False, True]
    assert not add(adds, run, 2), "the first attempt has added them"
    database.apply_batch({"type": "run.cancel", "run_id": str(run)})
    with pytest.raises(AttemptOver):
        add(adds, run, 2, of("z"))
    assert set(states(database, batch)) == set("abcd")
    assert b'{"n":1}' in [one.payload for one in database.requests()]


def test_runs_that_do_not_fit_are_refused_by_their_path(database: Database, adds: BatchAdds) -> None:
    database.apply_batch(submission("root"), submission("child", schedule={"after": ["root"]}))
    started(database, of("a"))
    run = run_of(database, "a")
    database.begin(run)
    database.execute("UPDATE tenants SET max_payload_bytes = 4")
    refused = {
        "runs": [],
        "runs.0.key": of("x", key="gone"),
        "runs.0.after.0.ref": [{"ref": "x", "key": "job", "after": ["z"]}],
        "runs.0.ref": of("a", "x"),
        "runs.1.payload": [*of("x"), {"ref": "y", "key": "job", "payload": "long"}],
        "runs.0.run_at": [{"ref": "x", "key": "job", "run_at": "2027-01-01T00:00:00Z"}],
    }
    for path, runs in refused.items():
        with pytest.raises(InvalidInput) as error:
            add(adds, run, 1, runs)
        assert error.value.errors[0].path == path
    for key in ("job", "root"):
        [reply] = database.apply_batch({"type": "job.trigger", "key": key})
        alone = UUID(reply.run_id)
        [one] = database.claim(alone).started
        with pytest.raises(InvalidInput, match="batch: the run belongs to no batch"):
            add(adds, alone, one.attempt)
    assert database.count("batch_runs") == 1


def test_a_call_that_waits_for_its_batch_keeps_no_other_from_adding(database: Database, adds: BatchAdds) -> None:
    first, _ = started(database, of("a")), started(database, of("b"))
    runs = [run_of(database, ref) for ref in "ab"]
    for run in runs:
        database.begin(run)
    with database.transaction() as holding:
        holding.execute("SELECT FROM workflows WHERE root_run_id = %s FOR UPDATE", [first])
        waiting = in_background(lambda: add(adds, runs[0], 1, of("x")))
        until(lambda: database.value(BLOCKED, [holding.info.backend_pid]), "it waits for the batch")
        assert add(adds, runs[1], 1, of("y"))
        assert not waiting.done()
    assert waiting.result(10.0)


async def test_coroutines_that_add_leave_the_threads_of_the_loop_to_others() -> None:
    go_on = threading.Event()

    class Waiting(NoChannel):
        def add_runs(self, document: bytes) -> bool:
            return bool(document) and go_on.wait(10.0)

    adding = [asyncio.create_task(RunBatch(Waiting()).add_async([])) for _ in range(100)]
    await asyncio.sleep(0)  # all of them have begun
    await asyncio.wait_for(asyncio.to_thread(go_on.set), 5.0)
    assert all(await asyncio.gather(*adding))
