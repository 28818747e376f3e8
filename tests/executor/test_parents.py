"""Handlers read their parents' results and add to their batch: coroutines, threads, worker processes."""

import json
from uuid import UUID

import pytest

from tests.executor import parent_handlers
from tests.executor.running import Executing
from tests.fixtures.acts import submission
from tests.fixtures.database import Database
from tests.fixtures.services import until
from tests.transitions.graphs import drain_some, never, workflow
from tidewheel.local.stack import StackInfo

READERS = ("flow.read", "flow.read-async", "flow.read-isolated")
GROWERS = ("flow.grow", "flow.grow-async", "flow.grow-isolated")


@pytest.mark.kafka
def test_handlers_of_every_kind_read_their_parents_results_and_add_to_their_batch(
    database: Database, info: StackInfo
) -> None:
    executing = Executing(database, info.kafka)
    executing.make_topics()
    parents = ["a", {"job": "large", "when": "always"}, {"job": "none", "when": "failure"}]
    database.apply_batch(
        submission("root", target="flow.give", payload=0),
        submission("a", target="flow.give", payload="xx", schedule={"after": ["root"]}),
        submission("large", target="flow.give", payload="x" * 65_531, schedule={"after": ["root"]}),
        submission("none", target="flow.give", schedule={"after": ["root"]}),
        *(submission(each, target=each, schedule={"after": parents}) for each in READERS),
        submission("alone", target="flow.read", retry={"max_attempts": 1}),
        submission("leaf", target="flow.give", payload=1, overlap="allow_all"),
        *(submission(each, target=each, retry={"initial": "10ms", "max_attempts": 2}) for each in GROWERS),
    )
    with executing.running(known=parent_handlers.handlers(), worker_processes=1):
        root = database.trigger("root")
        [reply] = database.apply_batch(
            {"type": "batch.submit", "runs": [{"ref": each, "key": each, "payload": each} for each in GROWERS]},
        )
        batch = UUID(reply.batch_id)
        until(lambda: drain_some(database, never()), "the root has ended")

        def over() -> bool:
            drain_some(database, never())
            return workflow(database, root)[1] == workflow(database, batch)[1] == 0

        until(over, "the occurrences end")
        alone = executing.ended(database.trigger("alone"))
    results = database.rows(
        "SELECT j.key, x.result FROM finished_runs r JOIN jobs j USING (job_id) JOIN attempt_outputs x USING (run_id)"
        " WHERE j.key = ANY (%s) AND x.result IS NOT NULL",
        [[*READERS, *GROWERS]],
    )
    expected = {
        "a": ["succeeded", "left out", False],
        "large": ["succeeded", "left out", False],
        "none": ["failed", 4, False],
        "one": ["succeeded", 2, False],
    }
    second = [2, False]  # the first attempt has added the runs
    found = {key: json.loads(result) for key, result in results}
    assert found == dict.fromkeys(READERS, expected) | dict.fromkeys(GROWERS, second)
    assert workflow(database, batch) == ("succeeded", 0, 0)
    assert database.count("batch_runs") == 9
    assert (alone.error_type, alone.state) == ("LookupError", "failed")
    assert "has no parent 'a'" in str(alone.error_message)
