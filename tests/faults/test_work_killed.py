"""A scheduler is killed during bulk work and another continues: each thing is done once."""

from collections import Counter
from uuid import UUID

import pytest

from tests.fixtures.oracle import Oracle
from tests.fixtures.services import Fleet
from tidewheel.control.client.client import Client

pytestmark = [pytest.mark.postgres, pytest.mark.kafka, pytest.mark.slow]

LETTERS = 20
RATE = 40.0  # a second: batches of four
ONCE = {"max_attempts": 1}


def started(client: Client, kind: str) -> UUID | None:
    """The id of a new work on all that have failed."""
    if kind == "retry":
        return client.runs.retry_failed(everything=True, rate=RATE).work_id
    begin = client.dead_letters.redrive if kind == "redrive" else client.dead_letters.purge
    return begin(everything=True, rate=RATE).work_id


@pytest.mark.parametrize("point", ["working.before_commit", "working.after_commit"])
@pytest.mark.parametrize("kind", ["redrive", "retry", "purge"])
def test_killed_work_is_continued_by_the_next_scheduler(kind: str, point: str, fleet: Fleet, oracle: Oracle) -> None:
    doomed = {"key": "doomed", "schedule": "manual", "target": "lost-cause", "retry": ONCE}
    fleet.ask({"type": "job.submit", "job": doomed})
    for _ in range(LETTERS):
        fleet.ask({"type": "job.trigger", "key": "doomed"})
    fleet.flush()
    fleet.start_all("intake", "relay", "executor")
    oracle.wait_answered()
    fleet.until(lambda: fleet.database.count("dead_letters") == LETTERS, "each run is a dead letter")
    with Client(fleet.database.url) as client:
        work_id = started(client, kind)
        assert work_id is not None
        fleet.start("scheduler", failpoint=f"{point}:exit:3").wait_killed()
        begun = client.works.get(work_id)
        assert (begun.state, 0 < begun.processed < LETTERS) == ("running", True)
        fleet.start("scheduler")
        fleet.until(lambda: client.works.get(work_id).state == "finished", "the work is finished")
        assert client.works.get(work_id).done_count == LETTERS
    oracle.wait_settled()
    oracle.reader.read_to_end()
    retried = {run: event.parent_run_id for run, event in oracle.completed().items() if event.parent_run_id}
    originals = set(oracle.completed()) - set(retried)
    assert Counter(retried.values()) == (dict.fromkeys(originals, 1) if kind != "purge" else {})
    assert fleet.database.count("dead_letters") == {"redrive": 2, "retry": 2, "purge": 0}[kind] * LETTERS
    assert len(originals) == LETTERS
    fleet.promised |= set(retried)
    fleet.stop()
    oracle.check(failures=("doomed",))
