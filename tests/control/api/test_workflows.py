"""Occurrences of workflows over HTTP: listed, shown with their graph, paused, resumed and cancelled."""

from http import HTTPStatus

from tests.control.api.answering import ApiClient, answer_of, answering, refusal
from tests.fixtures.database import Database
from tests.transitions.graphs import DIAMOND, after, play, put
from tests.transitions.test_workflows import give, run_of
from tidewheel.control.client.client import Client
from tidewheel.ids import child_run_id, job_id
from tidewheel.runs import RunState

WORKFLOWS = "/api/v1/workflows"
_INVALID = HTTPStatus.UNPROCESSABLE_ENTITY


def test_occurrence_is_listed_shown_resumed_paused_and_cancelled(database: Database, client: ApiClient) -> None:
    put(database, DIAMOND)
    root = database.trigger("a")
    play(database, lambda key: RunState.FAILED if key == "b" else RunState.SUCCEEDED)
    [listed] = answer_of(client.get(WORKFLOWS, params={"job": "a"}))["workflows"]
    assert (listed["root_run_id"], listed["state"], listed["failed"]) == (str(root), "failed", 1)
    shown = answer_of(client.get(f"{WORKFLOWS}/{root}"))
    assert shown["summary"] == listed
    assert {node["key"]: node["state"] for node in shown["nodes"]} == {
        "a": "succeeded", "b": "failed", "c": "succeeded", "d": "skipped",
    }  # fmt: skip
    d = shown["nodes"][-1]
    assert (d["key"], d["parents"], d["reason"]) == (
        "d", [{"key": "b", "when": "success"}, {"key": "c", "when": "success"}], "parents",
    )  # fmt: skip
    once = {"Idempotency-Key": "again-7"}
    for _ in range(2):  # the repeat resumes nothing: it gets the first answer
        resumed = answer_of(client.post(f"{WORKFLOWS}/{root}:resume", headers=once))
        assert resumed == {"root_run_id": str(root), "unchanged": False}
    assert answer_of(client.post(f"{WORKFLOWS}/{root}:resume"))["unchanged"]
    assert not answer_of(client.post(f"{WORKFLOWS}/{root}:pause", json={"reason": "look"}))["unchanged"]
    paused = answer_of(client.get(f"{WORKFLOWS}/{root}"))
    assert (paused["summary"]["state"], paused["summary"]["reason"]) == ("paused", "look")
    assert not answer_of(client.post(f"{WORKFLOWS}/{root}:cancel"))["unchanged"]
    logged = answer_of(client.get("/api/v1/audit-log", params={"object": f"workflow/{root}"}))["entries"]
    assert [entry["action"] for entry in logged] == ["workflow.cancel", "workflow.pause", "workflow.resume"]


def test_parents_of_a_run_are_read_with_their_results(database: Database, client: ApiClient) -> None:
    put(database, {"a": [], "b": after("a")})
    root = database.trigger("a")
    give(database, {"a": b'{"rows": 7}'})
    child = run_of(database, "b")
    shown = answer_of(client.get(f"/api/v1/runs/{child}/parents"))
    assert shown == {
        "parents": [
            {
                "key": "a", "when": "success", "status": "succeeded", "run_id": str(root), "result": {"rows": 7},
                "result_bytes": 11, "left_out": False, "expired": False,
            }
        ]
    }  # fmt: skip
    assert answer_of(client.get(f"/api/v1/runs/{child}/parents", params={"job": "a"})) == shown
    assert answer_of(client.get(f"/api/v1/runs/{root}/parents")) == {"parents": []}
    with Client(database.url) as reading:
        [parent] = reading.workflows.parents(child, key="a")
    assert (parent.run_id, parent.result) == (root, {"rows": 7})
    database.execute("INSERT INTO tenants (tenant) VALUES ('acme')")
    absent = client.get(f"/api/v1/runs/{child}/parents", params={"tenant": "acme"})
    assert refusal(absent, HTTPStatus.NOT_FOUND)["code"] == "unknown_run"


def test_occurrences_of_another_tenant_and_unknown_ones_are_not_found(database: Database, client: ApiClient) -> None:
    put(database, DIAMOND)
    database.execute("INSERT INTO tenants (tenant) VALUES ('acme')")
    root = database.trigger("a")
    play(database)
    other = child_run_id(job_id("default", "b"), database.value("SELECT now()"), root, 7)
    for run, tenant in ((root, "acme"), (other, "default")):
        of = {"tenant": tenant}
        absent = [client.get(f"{WORKFLOWS}/{run}", params=of)]
        absent += [client.post(f"{WORKFLOWS}/{run}:{verb}", params=of) for verb in ("pause", "resume", "cancel")]
        for answer in absent:
            assert refusal(answer, HTTPStatus.NOT_FOUND)["code"] == "unknown_workflow"
    assert answer_of(client.get(WORKFLOWS, params={"tenant": "acme"}))["workflows"] == []
    ended = refusal(client.post(f"{WORKFLOWS}/{root}:pause"), HTTPStatus.UNPROCESSABLE_ENTITY)
    assert (ended["errors"][0]["path"], ended["errors"][0]["remedy"]) == ("run_id", "pause only an open occurrence")


def test_batches_have_pages_and_a_repeated_change_has_the_first_answer(database: Database) -> None:
    database.submit()
    with Client(database.url) as requesting, answering(database) as client:
        ids = [requesting.batches.submit([{"ref": "a", "key": "job"}], open=True) for _ in range(3)]
        first = answer_of(client.get("/api/v1/batches?limit=2"))
        assert [one["batch_id"] for one in first["batches"]] == [str(ids[2]), str(ids[1])]
        last = answer_of(client.get(f"/api/v1/batches?limit=2&cursor={first['next_cursor']}"))
        assert ([one["batch_id"] for one in last["batches"]], last["next_cursor"]) == ([str(ids[0])], None)
        page = requesting.batches.list(limit=2)
        assert (page.next_cursor, requesting.batches.list(after=page.next_cursor)[0].batch_id) == (ids[1], ids[0])
        more = [{"ref": "b", "key": "job"}]
        assert [requesting.batches.add(ids[0], more, request_id="add-1") for _ in range(2)] == [True, True]
        assert [requesting.batches.close(ids[0], request_id="close-1") for _ in range(2)] == [True, True]
        assert not requesting.batches.close(ids[0])
        resumed = {"batch_id": str(ids[0]), "unchanged": True}
        assert answer_of(client.post(f"/api/v1/batches/{ids[0]}:resume")) == resumed, "it is open"
        named = refusal(
            client.post(f"/api/v1/batches/{ids[0]}:add", json={"runs": more, "batch_id": str(ids[0])}), _INVALID
        )
        assert named["errors"][0]["remedy"] == "leave it out; the URL already names it"
        created = client.post("/api/v1/batches", json={"runs": more})
        where = f"/api/v1/batches/{created.json()['batch_id']}"
        assert (created.status_code, created.headers["location"]) == (HTTPStatus.CREATED, where)
