"""Actions by forms on a real API: dialog, change, refusal, message, rights."""

from datetime import timedelta
from http import HTTPStatus

from tests.control.api.answering import ApiClient
from tests.control.console.pages import assert_refused, fields_of, found_on, posted, shown, signed_console
from tests.fixtures.database import Database
from tidewheel.control.client.client import Client
from tidewheel.ids import job_id
from tidewheel.jobs.values import format_timestamp
from tidewheel.nouns.jobs.reads import show_job


def actions(database: Database) -> list[str]:
    """Return the actions of the audit log that pages may take."""
    return [each.action for each in database.client.audit_log.list().entries if each.door == "console"]


def test_pause_shows_its_message_once_and_offers_to_undo_it(pages: ApiClient) -> None:
    pages.database.submit("nightly")
    answer = posted(pages, "/jobs/nightly/pause", reason="<script>stock")
    assert (answer.status_code, answer.headers["location"]) == (HTTPStatus.SEE_OTHER, "/jobs/nightly")
    page = shown(pages, "/jobs/nightly", "nightly</bdi>", "is paused.", "&lt;script&gt;stock")
    assert "is paused." not in pages.get("/jobs/nightly").text
    undo = found_on(page, r'<form method="post" action="(/jobs/nightly/resume)"')
    assert pages.post(undo, data=fields_of(pages.get("/jobs/nightly/resume"))).status_code == HTTPStatus.SEE_OTHER
    assert "Resume…" not in pages.get("/jobs/nightly").text


def test_undo_of_a_resume_pauses_with_the_former_end_and_reason(pages: ApiClient) -> None:
    pages.database.submit("nightly", schedule={"cron": "0 2 * * *"})
    until = pages.database.now() + timedelta(days=1)
    paused = posted(pages, "/jobs/nightly/pause", until=format_timestamp(until), reason="stock & <b>")
    assert paused.status_code == HTTPStatus.SEE_OTHER, paused.text
    posted(pages, "/jobs/nightly/resume")
    page = pages.get("/jobs/nightly").text
    undo = found_on(page, r'<form method="post" action="(/jobs/nightly/pause[^"]*)"')
    token = fields_of(pages.get("/jobs/nightly/pause"))["token"]
    assert pages.post(undo, data={"token": token}).status_code == HTTPStatus.SEE_OTHER
    job = pages.database.within(show_job, "default", "nightly")
    assert (job.pause_reason, job.summary.paused_until) == ("stock & <b>", until)


def test_message_waits_for_a_whole_page(pages: ApiClient) -> None:
    """A script's read of a part comes between the action and its page."""
    pages.database.submit("nightly")
    posted(pages, "/jobs/nightly/pause")
    assert "is paused." not in pages.get("/jobs/nightly", headers={"Tidewheel-Part": "1"}).text
    assert "is paused." in pages.get("/jobs/nightly").text


def test_message_and_undo_of_a_long_key_fit_a_cookie(pages: ApiClient) -> None:
    key = "\N{SNOWMAN WITHOUT SNOW}" * 255
    pages.database.submit(key)
    place = f"/jobs/id:{job_id('default', key)}"
    assert posted(pages, f"{place}/pause").status_code == HTTPStatus.SEE_OTHER
    shown(pages, place, "is paused.", f'action="{place}/resume"')


def test_pause_of_a_paused_job_changes_its_end_alone_and_says_so(pages: ApiClient) -> None:
    pages.database.submit("nightly", schedule={"cron": "0 2 * * *"})
    posted(pages, "/jobs/nightly/pause", reason="disk full")
    assert "A pause with the same end changes nothing." in pages.get("/jobs/nightly/pause").text
    posted(pages, "/jobs/nightly/pause", reason="stock")
    assert "Nothing was changed: " in pages.get("/jobs/nightly").text
    assert pages.database.value("SELECT pause_reason FROM jobs") == "disk full"
    pages.database.submit("by-hand")
    assert "Resume automatically at" not in pages.get("/jobs/by-hand/pause").text, "nothing would end it"


def test_refused_field_keeps_all_that_was_typed(pages: ApiClient) -> None:
    pages.database.submit("nightly", schedule={"cron": "0 2 * * *"})
    answer = posted(pages, "/jobs/nightly/pause", until="tomorrow", reason="<b>stock")
    assert_refused(answer, 'value="tomorrow" aria-invalid="true"')
    assert 'value="&lt;b&gt;stock"' in answer.text
    assert actions(pages.database) == []


def test_dialog_that_was_opened_before_another_change_overwrites_nothing(pages: ApiClient) -> None:
    pages.database.submit("nightly")
    late = fields_of(pages.get("/jobs/nightly/pause"))
    posted(pages, "/jobs/nightly/pause", reason="disk full")
    refused = pages.post("/jobs/nightly/pause", data=late | {"reason": "stock"})
    assert refused.status_code == HTTPStatus.UNPROCESSABLE_ENTITY
    for words in ("It has been paused since", "disk full", "Nothing was changed", 'value="stock"'):
        assert words in refused.text
    again = pages.post("/jobs/nightly/pause", data=fields_of(refused) | {"reason": "stock"})
    assert again.status_code == HTTPStatus.SEE_OTHER
    late = fields_of(pages.get("/jobs/nightly/resume"))
    with Client(pages.database.url) as client:
        client.resume("nightly")
        client.pause("nightly", reason="audit")
        assert pages.post("/jobs/nightly/resume", data=late).status_code == HTTPStatus.UNPROCESSABLE_ENTITY
    assert pages.database.value("SELECT pause_reason FROM jobs") == "audit"


def test_change_is_recorded_with_the_person_and_the_key(database: Database) -> None:
    database.submit("a/b")
    with signed_console(database, "read", "operate", name="anna") as client:
        answer = posted(client, f"/jobs/id:{job_id('default', 'a/b')}/pause")
        assert answer.status_code == HTTPStatus.SEE_OTHER
    found = next(each for each in database.client.audit_log.list().entries if each.action == "job.pause")
    assert (found.door, found.actor, found.named) == ("console", "ops", "anna")


def test_forged_form_changes_nothing(pages: ApiClient) -> None:
    pages.database.submit("nightly")
    fields = fields_of(pages.get("/jobs/nightly/pause")) | {"token": "0" * 64}
    assert pages.post("/jobs/nightly/pause", data=fields).status_code == HTTPStatus.FORBIDDEN
    assert pages.get("/jobs/unknown/pause").status_code == HTTPStatus.NOT_FOUND
