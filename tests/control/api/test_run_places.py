"""Stages of a run with their clocks, facts of its payload, places of its rows and messages."""

from datetime import UTC, datetime
from http import HTTPStatus
from uuid import uuid4

from tests.control.api.answering import answer_of, answering, refusal
from tests.fixtures.database import Database
from tests.transitions.acts import EXECUTOR, begun, end, ending, submit, trigger
from tidewheel.runs import RunState
from tidewheel.transitions.claim import Claim, claim_runs

_BROKER = datetime(2026, 11, 20, 1, 0, 0, 4000, UTC)
_CLAIM = f"t.runs.standard/3/1841@{int(_BROKER.timestamp() * 1000)}"


def test_stages_name_the_clock_of_each_instant_and_what_is_not_recorded(database: Database) -> None:
    submit(database)
    run = trigger(database)
    with database.transaction() as connection:
        [started] = claim_runs(
            connection, database.installation, [Claim(run, 1, 1, _CLAIM)], executor_id=EXECUTOR
        ).started
    with answering(database) as client:
        stages = answer_of(client.get(f"/api/v1/runs/{run}"))["stages"]
        assert [(each["name"], each["clock"], each["known"]) for each in stages] == [
            ("due", "database", True), ("written", "database", True), ("published", "broker", True),
            ("claimed", "database", True), ("begun", "executor", False),
        ]  # fmt: skip
        assert stages[2]["at"] == "2026-11-20T01:00:00.004000Z"
        end(database, ending(started, RunState.SUCCEEDED))
        ended = answer_of(client.get(f"/api/v1/runs/{run}"))["stages"]
        assert [(each["name"], each["attempt"]) for each in ended[2:]] == [
            ("published", 1), ("claimed", 1), ("begun", 1), ("ended", 1), ("announced", None),
        ]  # fmt: skip
        assert not ended[-1]["known"]
        run = trigger(database)
        with database.transaction() as connection:
            claim_runs(connection, database.installation, [Claim(run, 1, 1, "sweep")], executor_id=EXECUTOR)
        [published] = [
            each for each in answer_of(client.get(f"/api/v1/runs/{run}"))["stages"] if each["name"] == "published"
        ]
        assert (published["at"], published["known"]) == (None, False), "a run of the sweep"


def test_payload_facts_are_those_of_the_run_or_of_its_job(database: Database) -> None:
    submit(database, payload={"depot": 4})
    own, of_job = trigger(database, payload=[1, 2]), trigger(database)
    with answering(database) as client:
        facts = [answer_of(client.get(f"/api/v1/runs/{run}"))["payload"] for run in (own, of_job)]
    assert facts == [
        {"bytes": 5, "content_type": "application/json", "is_own": True},
        {"bytes": 11, "content_type": "application/json", "is_own": False},
    ]


def test_where_names_the_table_the_rows_of_the_outbox_and_the_claims_of_its_tenant(database: Database) -> None:
    submit(database)
    run = trigger(database, request_id="order-7")
    with answering(database) as client:
        queued = answer_of(client.get(f"/api/v1/runs/{run}/where"))
        assert (queued["table_name"], queued["day"], queued["request_id"]) == ("job_runs", None, "order-7")
        assert [each["topic"] for each in queued["outbox"]] == [
            database.installation.topics.runs("default", "standard")
        ]
        assert (queued["claims"], queued["kafka"]) == ([], "it was left out")
        started = begun(database)
        end(database, ending(started, RunState.FAILED))
        ended = answer_of(client.get(f"/api/v1/runs/{started.run_id}/where"))
        assert ended["table_name"].startswith("finished_runs")
        [claim] = ended["claims"]
        assert (claim["attempt"], claim["topic"], claim["partition"], claim["offset"]) == (1, "test", 0, 0)
        database.execute("INSERT INTO tenants (tenant) VALUES ('acme')")
        for path in (f"{run}/where?tenant=acme", f"{uuid4()}/where"):
            refusal(client.get(f"/api/v1/runs/{path}"), HTTPStatus.NOT_FOUND)
