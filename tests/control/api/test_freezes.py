"""Freezes over HTTP: listed, idempotent by scope, and refused with the field."""

from http import HTTPStatus

from tests.control.api.answering import ApiClient, answer_of, refusal
from tests.fixtures.database import Database


def test_freeze_is_listed_until_its_thaw(client: ApiClient) -> None:
    scope = {"queue": "reports"}
    made = client.post("/api/v1/freezes", json={**scope, "reason": "printer swap", "by": "anna"})
    assert answer_of(made) == {"unchanged": False}
    assert answer_of(client.post("/api/v1/freezes", json=scope)) == {"unchanged": True}
    [found] = answer_of(client.get("/api/v1/freezes"))["freezes"]
    assert (found["freeze"]["queue"], found["freeze"]["by"], found["waiting"]) == ("reports", "anna", 0)
    assert answer_of(client.post("/api/v1/freezes:thaw", json=scope)) == {"unchanged": False}
    assert answer_of(client.get("/api/v1/freezes")) == {"freezes": []}
    again = client.post("/api/v1/freezes:thaw", json=scope)
    assert refusal(again, HTTPStatus.NOT_FOUND)["code"] == "unknown_freeze"
    empty = refusal(client.post("/api/v1/freezes", json={}), HTTPStatus.UNPROCESSABLE_ENTITY)
    assert [error["path"] for error in empty["errors"]] == ["scope"]


def test_repeated_key_returns_the_first_answer_and_a_body_names_no_tenant(
    database: Database, client: ApiClient
) -> None:
    key = {"Idempotency-Key": "once"}
    for _ in range(2):
        assert answer_of(client.post("/api/v1/freezes", json={"scope": "tenant"}, headers=key)) == {"unchanged": False}
    wrong = client.post("/api/v1/freezes:thaw", json={"tenant": "acme", "label": "a=b"})
    remedies = {each["path"]: each["remedy"] for each in refusal(wrong, HTTPStatus.UNPROCESSABLE_ENTITY)["errors"]}
    assert remedies == {"tenant": "send it in the query, as ?tenant=", "label": "write labels, as an object"}
    assert database.count("freezes") == 1
