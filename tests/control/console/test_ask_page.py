"""The page of an answer, and the suggestions of the field."""

from http import HTTPStatus

from tests.control.api.answering import ApiClient
from tests.transitions.acts import submit, trigger
from tidewheel.control.console.words import short_id

DAILY = {"cron": "30 2 * * *", "timezone": "Europe/Berlin"}


def test_ids_and_keys_lead_to_their_pages(pages: ApiClient) -> None:
    submit(pages.database, "a/b")
    run = trigger(pages.database, "a/b")
    for text, path in ((str(run), f"/runs/{run}"), (short_id(run), f"/runs/{run}"), ("a/b", "/jobs/id:")):
        answer = pages.get("/ask", params={"q": text})
        assert answer.status_code == HTTPStatus.SEE_OTHER
        assert answer.headers["location"].startswith(path)


def test_instant_of_a_job_is_explained_in_the_zone_that_is_named(pages: ApiClient) -> None:
    submit(pages.database, "nightly", schedule=DAILY)
    page = pages.get("/ask", params={"q": "nightly at 1 Jan 2040 02:30", "tz": "Europe/Berlin"}).text
    assert "The answer is for <time" in page
    assert "2040-01-01T01:30:00.000000Z" in page
    assert "Scheduled." in page
    assert 'href="/jobs/nightly"' in page
    assert 'href="/ask?q=nightly+at+2040-01-02T01%3A30%3A00.000000Z"' in page
    assert "2040-01-01T02:30:00.000000Z" in pages.get("/ask", params={"q": "nightly at 1 Jan 2040 02:30"}).text


def test_time_of_another_zone_than_the_jobs_has_a_link_to_the_other_reading(pages: ApiClient) -> None:
    submit(pages.database, "nightly", schedule=DAILY)
    question = "nightly at 1 Jan 2040 02:30"
    page = pages.get("/ask", params={"q": question, "tz": "UTC"}).text
    assert "2040-01-01T02:30:00.000000Z" in page
    assert "In Europe/Berlin, the job's zone, that text would be" in page
    assert '<a href="/ask?q=nightly+at+1+Jan+2040+02%3A30&amp;tz=Europe%2FBerlin">' in page
    assert 'href="/ask?q=nightly+at+2040-01-01T01%3A30%3A00.000000Z"' in page
    for text, zone in ((question, "Europe/Berlin"), ("nightly at 2040-01-01T01:30:00Z", "UTC")):
        assert "that text would be" not in pages.get("/ask", params={"q": text, "tz": zone}).text


def test_time_that_cannot_be_read_is_named_once_with_an_example_to_type(pages: ApiClient) -> None:
    submit(pages.database, "nightly", schedule=DAILY)
    page = pages.get("/ask", params={"q": "nightly at noon"}).text
    assert page.count("is not a time") == 1
    assert "04:03, 3am, yesterday" in page


def test_instant_before_the_first_submit_did_not_fire(pages: ApiClient) -> None:
    submit(pages.database, "nightly", schedule=DAILY)
    page = pages.get("/ask", params={"q": "nightly at 2020-01-01"}).text
    assert "Did not fire: the job was first submitted at" in page
    assert "Not yet." not in page


def test_what_is_not_understood_names_the_nearest_keys_and_three_examples(pages: ApiClient) -> None:
    submit(pages.database, "nightly")
    page = pages.get("/ask", params={"q": "<script>alert(1)</script>"})
    assert page.status_code == HTTPStatus.OK
    assert "<script>alert" not in page.text
    assert page.text.count('href="/ask?q=') == 3
    assert 'href="/jobs/nightly"' in pages.get("/ask", params={"q": "nightyl"}).text
    assert "Ask for a run" in pages.get("/ask").text
    assert pages.get("/ask", params={"q": "x" * 401}).status_code == HTTPStatus.UNPROCESSABLE_ENTITY
    assert pages.get("/ask", params={"q": "a\u0000"}).status_code == HTTPStatus.UNPROCESSABLE_ENTITY


def test_suggestions_are_at_most_eight_with_their_addresses(pages: ApiClient) -> None:
    for number in range(12):
        submit(pages.database, f"job-{number:02}", schedule=DAILY)
    answer = pages.get("/ask", params={"q": "job", "format": "json"})
    assert answer.headers["content-type"] == "application/json"
    found = answer.json()
    assert found["kind"] == "matches"
    assert [each["href"] for each in found["suggestions"]] == [f"/jobs/job-{number:02}" for number in range(8)]
    exact = pages.get("/ask", params={"q": "job-03 at 2040-01-01 02:30", "format": "json"}).json()
    assert exact["suggestions"][0]["kind"] == "occurrence"
    assert exact["suggestions"][0]["words"]
    assert exact["suggestions"][0]["href"].startswith("/ask?q=job-03+at+2040-01-01")
