"""Freezes over HTTP: idempotent by key, and refused with the field."""

from http import HTTPStatus

from tests.control.api.answering import ApiClient, answer_of, refusal
from tests.fixtures.database import Database


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
