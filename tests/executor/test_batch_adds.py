"""`ctx.batch.add`: runs come into the batch of a running attempt, once, and from no other attempt."""

import json
from collections.abc import Iterator
from uuid import UUID, uuid4

import pytest

from tests.fixtures.database import Database
from tests.transitions.acts import EXECUTOR, apply_batch, begin, claim, requests, requeue, submission, submit
from tests.transitions.stepping import in_background
from tests.transitions.test_batches import of, started, states
from tidewheel.errors import AttemptOver, InvalidInput
from tidewheel.executor.batch_adds import BatchAdds
from tidewheel.runs import AttemptOutcome

MORE = [{"ref": "b", "key": "job", "after": ["a"]}, {"ref": "c", "key": "job", "payload": {"n": 1}}]


@pytest.fixture
def adds(database: Database) -> Iterator[BatchAdds]:
    submit(database, overlap="allow_all")
    made = BatchAdds(database.session(), database.installation, EXECUTOR, lambda: None)
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
    first = begin(database, run)
    assert add(adds, run, 1)
    assert states(database, batch) == {"a": "running", "b": "blocked", "c": "queued"}
    requeue(database, first, AttemptOutcome.LOST)
    with pytest.raises(AttemptOver):
        add(adds, run, 1, of("z"))  # between two attempts
    database.execute("UPDATE job_runs SET publish_at = tidewheel_now() WHERE run_id = %s", [run])
    other = BatchAdds(database.session(), database.installation, uuid4(), lambda: None)
    begin(database, run)
    for zombie, attempt in ((adds, 1), (other, 2)):
        with pytest.raises(AttemptOver, match="no run was added"):
            add(zombie, run, attempt, of("z"))
    other.close()
    both = [in_background(lambda: add(adds, run, 2, of("d"))) for _ in range(2)]
    assert sorted(each.result(10.0) for each in both) == [False, True]
    assert not add(adds, run, 2), "the first attempt has added them"
    apply_batch(database, {"type": "run.cancel", "run_id": str(run)})
    with pytest.raises(AttemptOver):
        add(adds, run, 2, of("z"))
    assert set(states(database, batch)) == set("abcd")
    assert b'{"n":1}' in [one.payload for one in requests(database)]


def test_runs_that_do_not_fit_are_refused_by_their_path(database: Database, adds: BatchAdds) -> None:
    apply_batch(database, submission("root"), submission("child", schedule={"after": ["root"]}))
    started(database, of("a"))
    run = run_of(database, "a")
    begin(database, run)
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
        [reply] = apply_batch(database, {"type": "job.trigger", "key": key})
        alone = UUID(reply.run_id)
        [one] = claim(database, alone).started
        with pytest.raises(InvalidInput, match="batch: the run belongs to no batch"):
            add(adds, alone, one.attempt)
    assert database.count("batch_runs") == 1
