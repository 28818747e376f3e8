"""Handlers of a workflow read their parents' results: coroutines, threads and worker processes alike."""

import json

import pytest

from tests.executor import parent_handlers
from tests.executor.running import Executing
from tests.fixtures.database import Database
from tests.fixtures.services import until
from tests.transitions.acts import apply_batch, submission, trigger
from tests.transitions.graphs import drain_some, never, workflow
from tidewheel.local.stack import StackInfo

READERS = ("flow.read", "flow.read-async", "flow.read-isolated")


@pytest.mark.kafka
def test_handlers_of_every_kind_read_their_parents_results(database: Database, info: StackInfo) -> None:
    executing = Executing(database, info.kafka)
    executing.make_topics()
    parents = ["a", {"job": "large", "when": "always"}, {"job": "none", "when": "failure"}]
    apply_batch(
        database,
        submission("root", target="flow.give", payload=0),
        submission("a", target="flow.give", payload="xx", schedule={"after": ["root"]}),
        submission("large", target="flow.give", payload="x" * 65_531, schedule={"after": ["root"]}),
        submission("none", target="flow.give", schedule={"after": ["root"]}),
        *(submission(each, target=each, schedule={"after": parents}) for each in READERS),
        submission("alone", target="flow.read", retry={"max_attempts": 1}),
    )
    with executing.running(known=parent_handlers.handlers(), worker_processes=1):
        root = trigger(database, "root")
        until(lambda: drain_some(database, never()), "the root has ended")

        def over() -> bool:
            drain_some(database, never())
            return workflow(database, root)[1] == 0

        until(over, "the occurrence ends")
        alone = executing.ended(trigger(database, "alone"))
    results = database.rows(
        "SELECT j.key, x.result FROM finished_runs r JOIN jobs j USING (job_id) JOIN attempt_outputs x USING (run_id)"
        " WHERE j.key = ANY (%s)",
        [list(READERS)],
    )
    expected = {
        "a": ["succeeded", "left out", False],
        "large": ["succeeded", "left out", False],
        "none": ["failed", 4, False],
        "one": ["succeeded", 2, False],
    }
    assert {key: json.loads(result) for key, result in results} == dict.fromkeys(READERS, expected)
    assert (alone.error_type, alone.state) == ("LookupError", "failed")
    assert "has no parent 'a'" in str(alone.error_message)
