"""The form of a job as a browser uses it: JSON, check, save, lost race, pasted schedules."""

import json
import re
from collections.abc import Mapping
from http import HTTPStatus
from uuid import UUID

import httpx
import pytest

from tests.control.api.answering import ApiClient
from tests.control.console.pages import assert_has, assert_refused, done, fields_of, found_on, signed_console, typed_in
from tests.control.console.test_page_costs import MOST_BYTES
from tests.fixtures.acts import about
from tests.fixtures.database import Database
from tidewheel.control.client.client import Client
from tidewheel.errors import UnknownJob
from tidewheel.ids import job_id
from tidewheel.nouns.jobs.fields import FIELDS
from tidewheel.nouns.jobs.reads import show_job
from tidewheel.nouns.jobs.versions import job_at
from tidewheel.schedules.zones import zone_names

HOSTILE = '<script>alert(1)</script>"\u202e'
CRON: Mapping[str, object] = {"cron": ["30 2 * * *"], "timezone": "Europe/Berlin"}
FULL: Mapping[str, object] = {
    "schedule": CRON, "payload": {"depot": 4, "amount": 120.5}, "labels": {"app.kubernetes.io/name": "stock"},
    "retry": {"max_attempts": 3, "intervals": ["1s", "1m30s"]}, "start_to_close": "1m", "lane": "batch",
    "target": {"type": "http", "url": "https://example.org/a", "headers": {"X-Team": "billing"}, "async": True},
    "concurrency_key": {"key": "k"}, "description": "a\u00e9\n\u05d0", "priority": 7,
}  # fmt: skip


def pressed(
    client: httpx.Client, path: str, do: str, page: httpx.Response | None = None, **typed: str
) -> httpx.Response:
    """Open a page, type, and press a button; names have two underscores for a dot."""
    fields = typed_in(page or client.get(path)) | {name.replace("__", "."): text for name, text in typed.items()}
    return client.post(path, data=fields | {"do": do})


def stored(database: Database, key: str, number: int) -> dict[str, object]:
    """Return the job of a version as submitted."""
    return database.within(job_at, "default", key, number)


def version(database: Database, key: str = "job") -> int:
    return database.client.versions(key, limit=1)[0].number


def test_keys_and_dedupe_are_typed_and_emptied(pages: ApiClient) -> None:
    pages.database.submit(concurrency_key="mail")
    page = pages.get("/jobs/job/edit")
    assert typed_in(page)["concurrency_key.key"] == "mail"
    answer = pressed(
        pages, "/jobs/job/edit", "save", concurrency_key__key="", ordering_key__key=HOSTILE[:-1],
        ordering_key__on_failure="skip", dedupe__window="10m", dedupe__mode="debounce",
    )  # fmt: skip
    assert answer.status_code == HTTPStatus.SEE_OTHER, answer.text
    saved = stored(pages.database, "job", 2)
    assert "concurrency_key" not in saved
    assert saved["ordering_key"] == {"key": HOSTILE[:-1], "on_failure": "skip"}
    assert saved["dedupe"] == {"window": "10m", "mode": "debounce"}
    assert "<script>alert" not in pages.get("/jobs/job/edit").text
    refused = pressed(
        pages, "/jobs/job/edit", "save", ordering_key__key="", ordering_key__on_failure="", dedupe__window="x"
    )
    assert_refused(refused, 'id="f-dedupe.window" value="x"')


def test_job_typed_into_the_form_is_submitted_with_what_was_set_alone(pages: ApiClient) -> None:
    answer = pressed(
        pages, "/jobs/new", "save", key="nightly", schedule="cron", schedule__cron="30 2 * * *\r\n0 12 * * *",
        schedule__timezone="Europe/Berlin", target="http", target__url="https://example.org/run", labels="team=a=b",
        payload='{"depot": 4}', retry__max_attempts="2", start_to_close="90",
    )  # fmt: skip
    assert (answer.status_code, answer.headers["location"]) == (HTTPStatus.SEE_OTHER, "/jobs/nightly")
    assert stored(pages.database, "nightly", 1) == {
        "key": "nightly", "schedule": {"cron": ["30 2 * * *", "0 12 * * *"], "timezone": "Europe/Berlin"},
        "target": {"type": "http", "url": "https://example.org/run"}, "labels": {"team": "a=b"},
        "payload": {"depot": 4}, "retry": {"max_attempts": 2}, "start_to_close": "1m30s",
    }  # fmt: skip
    assert "Version 1 of" in pages.get("/jobs/nightly").text


def test_zone_is_searched_among_all_without_a_script(pages: ApiClient) -> None:
    page = pages.get("/jobs/new")
    assert 'list="zones"' in page.text
    zones = page.text.partition('<datalist id="zones">')[2].partition("</datalist>")[0]
    assert zones.split("<option>")[1:] == sorted(zone_names())
    assert page.num_bytes_downloaded < MOST_BYTES


def test_form_that_nobody_has_changed_is_an_identical_spec(pages: ApiClient) -> None:
    pages.database.submit("job", **FULL)
    form = pages.get("/jobs/job/edit")
    document = pressed(pages, "/jobs/job/edit", "as_json", form)
    assert json.loads(typed_in(document)["document"])["concurrency_key"] == {"key": "k"}
    for page in (form, document):
        assert "No changes yet" in pressed(pages, "/jobs/job/edit", "check", page).text
        assert pressed(pages, "/jobs/job/edit", "save", page).headers["location"] == "/jobs/job"
        assert "Nothing differs: version 1" in pages.get("/jobs/job").text
        assert version(pages.database) == 1


@pytest.mark.parametrize("view", ["form", "json"])
def test_masked_url_that_comes_back_keeps_the_stored_secret(pages: ApiClient, view: str) -> None:
    """Issue 39, N12: it was refused until the secret was typed again."""
    url = "https://example.org/hook?day=1&token=s3cret-of-url"
    pages.database.submit("job", **{**FULL, "target": {"type": "http", "url": url}})

    def press(do: str, **typed: str) -> httpx.Response:
        page = pages.get("/jobs/job/edit")
        page = pressed(pages, "/jobs/job/edit", "as_json", page, **typed) if view == "json" else page
        answer = pressed(pages, "/jobs/job/edit", do, page, **({} if view == "json" else typed))
        assert "s3cret" not in page.text + answer.text
        return answer

    assert "No changes yet" in press("check").text
    assert press("check", priority="3").status_code == HTTPStatus.OK
    assert press("save", priority="3").headers["location"] == "/jobs/job"
    saved = pages.database.within(show_job, "default", "job", as_stored=True)
    assert (saved.summary.version, saved.job["target"], saved.job["priority"]) == (2, {"type": "http", "url": url}, 3)
    elsewhere = press("save", target__url="https://example.net/hook?day=1&token=[redacted]")
    assert elsewhere.status_code == HTTPStatus.UNPROCESSABLE_ENTITY, "the secret would go to another host"
    assert version(pages.database) == 2


def test_check_shows_instants_beside_each_other_and_changes_nothing(pages: ApiClient) -> None:
    pages.database.submit("job", **FULL, start_at="2031-06-01T00:00:00Z")
    answer = pressed(pages, "/jobs/job/edit", "check", schedule__cron="45 2 * * *", payload='{"depot": 5}')
    assert answer.status_code == HTTPStatus.OK
    assert answer.text.count('<s class="gone">') == 10
    assert answer.text.count('<ins class="new">') == 9  # the tenth lies beyond the last instant of now
    assert_has(answer.text, "Both columns end at", "An occurrence is missed once it is 1 min late.")
    assert_has(answer.text, "45 2 * * *</bdi></code>: <bdi>at 02:45, every day", "02:30</s>", "02:45 +")
    assert_has(answer.text, "Runs under way end as they are")
    assert "  &#34;depot&#34;: 4" in answer.text
    assert version(pages.database) == 1
    pages.database.apply_batch(about("job.pause", "job"))
    answer = pressed(pages, "/jobs/job/edit", "check", schedule__cron="45 2 * * *")
    assert answer.text.count("<bdi>paused</bdi></td>") == 19  # ten of now and nine after saving
    pages.database.submit("often", schedule={"interval": "10s"})
    answer = pressed(pages, "/jobs/often/edit", "check", schedule="cron", schedule__cron="45 2 29 2 *")
    assert answer.text.count('<s class="gone">') == 10
    assert_has(answer.text, "The first instant after saving is", without=('<ins class="new">', "02:45:00 +"))


def test_every_error_stands_at_its_field_and_what_was_typed_stays(pages: ApiClient) -> None:
    pages.database.submit("job", **FULL)
    wrong = {
        "schedule__cron": "61 * * * *", "retry__max_attempts": "many", "labels": "a", "payload": "{", "lane": "fast",
        "start_to_close": "1 week", "priority": "11",
    }  # fmt: skip
    for do in ("check", "save"):
        answer = pressed(pages, "/jobs/job/edit", do, None, **wrong)
        assert answer.status_code == HTTPStatus.UNPROCESSABLE_ENTITY
        kept = typed_in(answer)
        for name, text in wrong.items():
            path = name.replace("__", ".")
            assert f'href="#f-{path}"' in answer.text, path
            assert re.search(rf'id="f-{re.escape(path)}"[^>]*aria-invalid="true"', answer.text), path
            assert kept[path] == text
        assert '<a href="#f-retry.max_attempts">Attempts</a>: ' in answer.text
        for path in ("labels", "payload"):
            assert answer.text.count(f'href="#f-{path}"') == 1
        answer = pressed(pages, "/jobs/job/edit", do, None, target__url="http://127.0.0.1:9000/hook")
        assert answer.status_code == HTTPStatus.UNPROCESSABLE_ENTITY, do
        assert 'href="#f-target.url"' in answer.text, do
        assert "TIDEWHEEL_HTTP_ALLOW_PRIVATE" in answer.text, do
    assert version(pages.database) == 1


def test_json_that_cannot_be_read_is_kept(pages: ApiClient) -> None:
    pages.database.submit()
    page = pressed(pages, "/jobs/job/edit", "as_json")
    for text, word in (
        ("{", "Not valid JSON"), ('{"schedule": "manual", "target": "t", "key": "other"}', "A job keeps its key"),
        ('{"schedule": "manual", "target": "t", "concurrencyPolicy": "Forbid"}', "Write it as overlap"),
        ("[]", "object"),
    ):  # fmt: skip
        answer = pressed(pages, "/jobs/job/edit", "save", page, document=text)
        assert answer.status_code == HTTPStatus.UNPROCESSABLE_ENTITY, text
        assert word in answer.text, text
        assert typed_in(answer)["document"] == text


def test_what_the_form_lacks_survives_the_way_from_json_to_form(pages: ApiClient) -> None:
    pages.database.submit()
    page = pressed(pages, "/jobs/job/edit", "as_json")
    spec = {"schedule": "manual", "target": "t", "key": "job", "dedupe": {"window": "10m"}, "payload": {}}
    page = pressed(pages, "/jobs/job/edit", "as_form", page, document=json.dumps(spec))
    assert pressed(pages, "/jobs/job/edit", "save", page, queue="night").status_code == HTTPStatus.SEE_OTHER
    saved = stored(pages.database, "job", 2)
    assert (saved["dedupe"], saved["queue"], saved["payload"]) == ({"window": "10m"}, "night", {})


def test_other_kind_of_schedule_drops_the_fields_of_the_former(pages: ApiClient) -> None:
    pages.database.submit(schedule=CRON)
    for kind, typed, schedule in (
        ("interval", {"schedule__interval": "90"}, {"interval": "1m30s"}),
        ("manual", {}, {"manual": True}),
        ("once", {"schedule__once": "2040-01-01T00:00:00Z"}, {"once": "2040-01-01T00:00:00.000000Z"}),
    ):
        done(pressed(pages, "/jobs/job/edit", "save", None, schedule=kind, **typed))
        assert stored(pages.database, "job", version(pages.database))["schedule"] == schedule
    answer = pressed(pages, "/jobs/job/edit", "check", schedule="cron", schedule__cron="")
    assert_has(answer.text, 'href="#f-schedule.cron"', "Is empty", "Write a cron expression such as 0 8 * * MON-FRI")


def test_second_click_saves_once_and_undo_leads_back(pages: ApiClient) -> None:
    pages.database.submit(lane="batch")
    sent = typed_in(pages.get("/jobs/job/edit")) | {"do": "save", "lane": "critical"}
    for _ in range(2):
        assert pages.post("/jobs/job/edit", data=sent).status_code == HTTPStatus.SEE_OTHER
    assert version(pages.database) == 2
    page = pages.get("/jobs/job")
    undo = found_on(page.text, r'action="(/jobs/job/rollback\?[^"]+)"')
    answer = pages.post(undo, data=fields_of(page))
    assert answer.status_code == HTTPStatus.SEE_OTHER, answer.text
    assert stored(pages.database, "job", 3)["lane"] == "batch"


def test_page_that_was_left_by_back_loses_nothing(pages: ApiClient) -> None:
    pages.database.submit()
    page = pages.get("/jobs/job/edit")
    assert pressed(pages, "/jobs/job/edit", "save", page, lane="batch").status_code == HTTPStatus.SEE_OTHER
    answer = pressed(pages, "/jobs/job/edit", "save", page, queue="mine")
    assert_refused(answer, "This page has saved something else")
    race = pressed(pages, "/jobs/job/edit", "save", answer)
    assert race.status_code == HTTPStatus.CONFLICT
    assert typed_in(race)["queue"] == "mine"


def test_lost_race_names_the_other_and_lays_changes_on_top(database: Database) -> None:
    database.submit(lane="batch", queue="a", labels={"team": "x"})
    with signed_console(database, "read", "write", name="anna") as client:
        late = client.get("/jobs/job/edit")
        first = pressed(client, "/jobs/job/edit", "save", queue="hers", labels="team=y")
        assert first.status_code == HTTPStatus.SEE_OTHER
        answer = pressed(client, "/jobs/job/edit", "save", late, lane="critical", queue="mine")
        assert answer.status_code == HTTPStatus.CONFLICT
        assert "nna, ops saved version 2 meanwhile" in answer.text
        assert version(database) == 2
        shown = typed_in(answer)
        assert (shown["lane"], shown["queue"], shown["labels"]) == ("critical", "mine", "team=y")
        assert pressed(client, "/jobs/job/edit", "save", answer).status_code == HTTPStatus.SEE_OTHER
    saved = stored(database, "job", 3)
    assert (saved["lane"], saved["queue"], saved["labels"]) == ("critical", "mine", {"team": "y"})


def test_lost_race_of_json_keeps_the_document_and_shows_what_differs(pages: ApiClient) -> None:
    pages.database.submit(lane="batch")
    late = pressed(pages, "/jobs/job/edit", "as_json")
    assert pressed(pages, "/jobs/job/edit", "save", queue="hers").status_code == HTTPStatus.SEE_OTHER
    answer = pressed(
        pages, "/jobs/job/edit", "save", late, document=typed_in(late)["document"].replace("batch", "critical")
    )
    assert answer.status_code == HTTPStatus.CONFLICT
    assert "hers" in answer.text
    assert pressed(pages, "/jobs/job/edit", "save", answer).status_code == HTTPStatus.SEE_OTHER
    assert stored(pages.database, "job", 3)["lane"] == "critical"


def test_job_that_was_deleted_meanwhile_can_be_made_again(pages: ApiClient) -> None:
    pages.database.submit()
    late = pages.get("/jobs/job/edit")
    pages.database.client.delete("job")
    answer = pressed(pages, "/jobs/job/edit", "save", late, lane="batch")
    assert answer.status_code == HTTPStatus.CONFLICT
    assert "deleted the job meanwhile" in answer.text
    assert pressed(pages, "/jobs/job/edit", "save", answer).status_code == HTTPStatus.SEE_OTHER
    assert stored(pages.database, "job", 2)["lane"] == "batch"


def test_new_job_of_a_key_that_exists_overwrites_nothing(pages: ApiClient) -> None:
    pages.database.submit("nightly")
    answer = pressed(pages, "/jobs/new", "save", key="nightly", schedule="manual", target__name="other")
    assert_refused(answer, "There is a job of this key, at version 1")
    assert typed_in(answer)["target.name"] == "other"
    missing = pressed(pages, "/jobs/new", "save", schedule="manual", target__name="other")
    assert 'href="#f-key"' in missing.text


def test_pasted_schedule_or_cron_job_fills_the_form(pages: ApiClient) -> None:
    text = "CRON_TZ=Europe/Berlin\n30 2 * * 1-5 /srv/bin/count"
    page = pressed(pages, "/jobs/new", "paste", paste=text, key="mine", description="typed before", labels="team=a")
    typed = typed_in(page)
    assert (typed["schedule.timezone"], typed["key"], typed["description"]) == ("Europe/Berlin", "mine", "typed before")
    assert "known schedule format" in pressed(pages, "/jobs/new", "paste", paste="every full moon").text
    text = (
        "apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: count}\nspec:\n  schedule: '30 2 * * *'\n"
        "  concurrencyPolicy: Forbid\n  suspend: true\n"
    )
    page = pressed(pages, "/jobs/new", "paste", paste=text)
    assert [typed_in(page)[name] for name in ("key", "overlap", "schedule.cron")] == ["count", "skip", "30 2 * * *"]
    pressed(pages, "/jobs/new", "save", page, target="handler", target__name="t")
    assert stored(pages.database, "count", 1)["overlap"] == "skip"
    assert pages.database.client.next("count").words.startswith("The job is paused")


def test_payload_of_256_kib_is_saved(pages: ApiClient) -> None:
    payload = json.dumps({"rows": ["\u00e9" * 1000] * 125})
    answer = pressed(pages, "/jobs/new", "save", key="big", schedule="manual", target__name="t", payload=payload)
    assert answer.status_code == HTTPStatus.SEE_OTHER
    assert "No changes yet" in pressed(pages, "/jobs/big/edit", "check").text
    huge = pressed(pages, "/jobs/big/edit", "save", payload=json.dumps("x" * 300_000))
    assert 'href="#f-payload"' in huge.text


def test_form_beyond_its_limit_is_refused_with_that_limit_and_a_way_back(pages: ApiClient) -> None:
    pages.database.submit()
    refused = pressed(pages, "/jobs/job/edit", "save", payload=" " * 3_000_000)
    assert refused.status_code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    assert "This form accepts at most 2 MiB, a payload 256 KiB of that; nothing was saved" in refused.text
    assert "Go back in the browser" in refused.text
    with signed_console(pages.database, "read", "write") as browser:
        refused = pressed(browser, "/jobs/job/edit", "save", payload=" " * 9_000_000)
        assert refused.status_code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE


def test_hostile_text_in_every_field_comes_back_as_text(pages: ApiClient) -> None:
    others = {"key": HOSTILE, "paste": HOSTILE, "under": "", "base": HOSTILE}
    fields = {field.path: HOSTILE for field in FIELDS} | others
    token = fields_of(pages.get("/jobs/new"))
    for kind, target in (("cron", "http"), ("after", "shell"), (HOSTILE, HOSTILE)):
        for do in ("check", "save", "as_json", "as_form", "paste"):
            sent = fields | token | {"do": do, "schedule": kind, "target": target, "document": HOSTILE}
            for view in ("form", "json"):
                answer = pages.post("/jobs/new", data=sent | {"view": view})
                assert answer.status_code in {HTTPStatus.OK, HTTPStatus.UNPROCESSABLE_ENTITY}
                assert "<script>alert" not in answer.text
    assert pages.database.count("jobs") == 0


def test_key_with_signs_is_edited_by_its_id(pages: ApiClient) -> None:
    key = "<script>alert(2)</script>/../\u05d0"
    pages.database.submit(key)
    path = f"/jobs/id:{job_id('default', key)}/edit"
    page = pages.get(path)
    assert "<script>alert" not in page.text
    assert pressed(pages, path, "save", page, lane="batch").status_code == HTTPStatus.SEE_OTHER
    assert stored(pages.database, key, 2)["lane"] == "batch"
    assert pages.get(f"/jobs/id:{UUID(int=1)}/edit").status_code == HTTPStatus.NOT_FOUND


def test_key_that_may_not_write_sees_no_button_and_changes_nothing(database: Database) -> None:
    database.submit()
    with signed_console(database, "read", "operate") as client:
        pages = [client.get(path) for path in ("/jobs", "/jobs/job", "/jobs/job/versions")]
        assert not re.search(r"/jobs/new|/edit|/trigger|/delete|/rollback", "".join(page.text for page in pages))
        for path in ("/jobs/new", "/jobs/job/edit"):
            assert client.get(path).status_code == HTTPStatus.FORBIDDEN
            answer = client.post(path, data=fields_of(pages[1]) | {"do": "save", "key": "other"})
            assert answer.status_code == HTTPStatus.FORBIDDEN
            assert "write" in answer.text
    with Client(database.url) as client, pytest.raises(UnknownJob):
        client.versions("other")
