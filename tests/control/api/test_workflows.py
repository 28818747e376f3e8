"""Parents of runs and pages of batches over HTTP."""

from http import HTTPStatus

from tests.control.api.answering import ApiClient, answer_of, answering, refusal
from tests.fixtures.database import Database
from tests.transitions.graphs import after, put
from tests.transitions.test_workflows import give, run_of
from tidewheel.control.client.client import Client


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
    [parent] = database.client.workflows.parents(child, key="a")
    assert (parent.run_id, parent.result) == (root, {"rows": 7})
    database.execute("INSERT INTO tenants (tenant) VALUES ('acme')")
    absent = client.get(f"/api/v1/runs/{child}/parents", params={"tenant": "acme"})
    assert refusal(absent, HTTPStatus.NOT_FOUND)["code"] == "unknown_run"


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
        named = refusal(client.post(f"/api/v1/batches/{ids[0]}:add", json={"runs": more, "batch_id": str(ids[0])}))
        assert named["errors"][0]["remedy"] == "leave it out; the URL already names it"
        created = client.post("/api/v1/batches", json={"runs": more})
        where = f"/api/v1/batches/{created.json()['batch_id']}"
        assert (created.status_code, created.headers["location"]) == (HTTPStatus.CREATED, where)
