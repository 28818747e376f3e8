"""The page of what a text names, and the suggestions of the field."""

from http import HTTPStatus

from tests.control.api.answering import ApiClient
from tests.control.console.pages import assert_has, signed_console
from tidewheel.control.console.words import short_id


def test_ids_and_keys_lead_to_their_pages(pages: ApiClient) -> None:
    pages.database.submit("a/b")
    run = pages.database.trigger("a/b")
    for text, path in ((str(run), f"/runs/{run}"), (short_id(run), f"/runs/{run}"), ("a/b", "/jobs/id:")):
        answer = pages.get("/ask", params={"q": text})
        assert answer.status_code == HTTPStatus.SEE_OTHER
        assert answer.headers["location"].startswith(path)


def test_what_is_not_understood_is_escaped_or_refused(pages: ApiClient) -> None:
    page = pages.get("/ask", params={"q": "<script>alert(1)</script>"})
    assert page.status_code == HTTPStatus.OK
    assert_has(page.text, without=("<script>alert", 'href="/ask?q='))
    assert pages.get("/ask", params={"q": "x" * 256}).status_code == HTTPStatus.UNPROCESSABLE_ENTITY
    assert pages.get("/ask", params={"q": "a\u0000"}).status_code == HTTPStatus.UNPROCESSABLE_ENTITY


def test_suggestions_are_at_most_eight_with_their_addresses(pages: ApiClient) -> None:
    for number in range(12):
        pages.database.submit(f"job-{number:02}")
    answer = pages.get("/ask", params={"q": "job", "format": "json"})
    assert answer.headers["content-type"] == "application/json"
    found = answer.json()
    assert found["kind"] == "matches"
    jobs = [f"/jobs/job-{number:02}" for number in range(6)]
    assert [each["href"] for each in found["suggestions"]] == [*jobs, "/jobs", "/jobs/new"]
    exact = pages.get("/ask", params={"q": "job-03", "format": "json"}).json()
    assert [each["href"] for each in exact["suggestions"]] == ["/jobs/job-03"]


def test_pages_and_actions_are_found_by_a_part_of_their_names_as_far_as_the_key_may_open_them(pages: ApiClient) -> None:
    assert pages.get("/ask", params={"q": "dead l"}).headers["location"] == "/dead-letters"
    found = pages.get("/ask", params={"q": "FREEZ"}).text
    assert ('href="/freeze">Freeze…' in found, 'href="/freeze">Freezes' in found) == (True, True)
    assert 'href="/admin/audit"' in pages.get("/ask").text
    with signed_console(pages.database, "read") as client:
        every = client.get("/ask").text
        for label in ("Fleet", "Audit log", "New job", "Freeze…"):
            assert f">{label}</a></li>" not in every
        assert ">Runs</a></li>" in every
