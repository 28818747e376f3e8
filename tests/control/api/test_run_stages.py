"""Stages of a run with their clocks, and facts of its payload."""

from datetime import UTC, datetime

from tests.control.api.answering import ApiClient, answer_of, answering
from tests.fixtures.acts import EXECUTOR, ending
from tests.fixtures.database import Database
from tidewheel.runs import RunState
from tidewheel.transitions.claim import Claim, claim_runs

_BROKER = datetime(2026, 11, 20, 1, 0, 0, 4000, UTC)
_CLAIM = f"t.runs.standard/3/1841@{int(_BROKER.timestamp() * 1000)}"


def test_stages_name_the_clock_of_each_instant_and_what_is_not_recorded(database: Database, client: ApiClient) -> None:
    database.submit()
    run = database.trigger()
    claimed = database.within(claim_runs, database.installation, [Claim(run, 1, 1, _CLAIM)], executor_id=EXECUTOR)
    [started] = claimed.started
    stages = answer_of(client.get(f"/api/v1/runs/{run}"))["stages"]
    assert [(each["name"], each["clock"], each["known"]) for each in stages] == [
        ("due", "database", True), ("written", "database", True), ("published", "broker", True),
        ("claimed", "database", True), ("begun", "executor", False),
    ]  # fmt: skip
    assert stages[2]["at"] == "2026-11-20T01:00:00.004000Z"
    database.end(ending(started, RunState.SUCCEEDED))
    ended = answer_of(client.get(f"/api/v1/runs/{run}"))["stages"]
    assert [(each["name"], each["attempt"]) for each in ended[2:]] == [
        ("published", 1), ("claimed", 1), ("begun", 1), ("ended", 1), ("announced", None),
    ]  # fmt: skip
    assert not ended[-1]["known"]
    run = database.trigger()
    database.within(claim_runs, database.installation, [Claim(run, 1, 1, "sweep")], executor_id=EXECUTOR)
    stages = answer_of(client.get(f"/api/v1/runs/{run}"))["stages"]
    [published] = [each for each in stages if each["name"] == "published"]
    assert (published["at"], published["known"]) == (None, False), "a run of the sweep"


def test_payload_facts_are_those_of_the_run_or_of_its_job(database: Database) -> None:
    database.submit(payload={"depot": 4})
    own, of_job = database.trigger(payload=[1, 2]), database.trigger()
    with answering(database) as client:
        facts = [answer_of(client.get(f"/api/v1/runs/{run}"))["payload"] for run in (own, of_job)]
    assert facts == [
        {"bytes": 5, "content_type": "application/json", "is_own": True},
        {"bytes": 11, "content_type": "application/json", "is_own": False},
    ]
